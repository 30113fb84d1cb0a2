#include "master/rules/census.h"

#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

Census::Entry Node(uint32_t ranks, bool candidate, bool ready, bool member) {
  Census::Entry entry;
  entry.ranks = ranks;
  entry.candidate = candidate;
  entry.ready = ready;
  entry.member = member;
  return entry;
}

TEST(Census, CountsByKind) {
  Census census;
  census.Add(Node(8, true, true, true));
  census.Add(Node(8, true, false, false));
  census.Add(Node(8, false, true, true));  // it leaves
  census.Add(Node(4, true, true, false));
  EXPECT_EQ(census.candidates(), 3U);
  EXPECT_EQ(census.ready(), 2U);
  ASSERT_EQ(census.kinds().size(), 2U);
  const Census::Kind& eight = census.kinds().at(8);
  EXPECT_EQ(eight.nodes, 3U);
  EXPECT_EQ(eight.candidates.all, 2U);
  EXPECT_EQ(eight.candidates.members, 1U);
  EXPECT_EQ(eight.ready.all, 1U);
  EXPECT_EQ(eight.ready.members, 1U);
}

TEST(Census, WhatHasGoneIsNotThere) {
  Census census;
  const Census::Entry node = Node(8, true, true, true);
  census.Add(node);
  census.Remove(node);
  EXPECT_EQ(census.candidates(), 0U);
  EXPECT_EQ(census.ready(), 0U);
  EXPECT_TRUE(census.kinds().empty());
}

TEST(CensusDeathTest, NobodyGoesTwice) {
  Census census;
  census.Add(Node(8, true, true, true));
  census.Remove(Node(8, true, true, true));
  EXPECT_DEATH(census.Remove(Node(8, true, true, true)), "never counted");
}

}  // namespace
}  // namespace phalanx::master

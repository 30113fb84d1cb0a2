#include "base/log.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

TEST(Log, QuotesOnlyWhatNeedsIt) {
  EXPECT_EQ(LogText("node-lost", {{"node", "a"}, {"epoch", "3"}}), "node-lost node=a epoch=3");
  EXPECT_EQ(LogText("x", {{"reason", "two words"}}), "x reason=\"two words\"");
  EXPECT_EQ(LogText("x", {{"reason", ""}}), "x reason=\"\"");
}

TEST(Log, KeepsOneLineAndNoControlCharacters) {
  EXPECT_EQ(LogText("x", {{"text", "a\nb\x1b[31m\"\\"}}), "x text=\"a\\nb?[31m\\\"\\\\\"");
}

}  // namespace
}  // namespace phalanx

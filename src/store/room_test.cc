#include "store/room.h"

#include <gtest/gtest.h>

namespace phalanx::store {
namespace {

TEST(RoomTest, FollowsTheLimitOfOpenFiles) {
  struct Case {
    uint64_t files_limit;
    uint64_t connections;
  };
  const Case cases[] = {
      {0, 0},
      {8, 7},
      {90, 79},
      {1'024, 896},    // what a shell gives
      {4'096, 3'584},  // from here on 512 are kept back
      {66'048, 65'536},
      {640'512, 640'000},  // what a node asks for that holds the store of 80,000 ranks: eight connections each
      {800'512, 800'000},  // ... of 100,000
      {1'048'576, 1'048'064},
      {1ull << 30, kConnectionsMax},  // what some containers give
      {UINT64_MAX, kConnectionsMax},  // no limit
  };
  for (const Case& c : cases) EXPECT_EQ(ConnectionsFor(c.files_limit), c.connections) << c.files_limit;
}

TEST(RoomTest, WhatIsAskedForIsEnough) {
  for (const uint64_t connections : {0ull, 1ull, 100ull, 896ull, 3'584ull, 80'000ull, 640'000ull, 1ull << 20}) {
    EXPECT_GE(ConnectionsFor(FilesFor(connections)), connections);
  }
  EXPECT_EQ(FilesFor(UINT64_MAX), kConnectionsMax + kFilesKeptBack);
}

TEST(RoomTest, SaysWhichLimitItIs) {
  EXPECT_EQ(FullText(896, 1'024),
            "896 connections are open, all that a limit of 1024 open files leaves room for (ulimit -Hn)");
  EXPECT_EQ(FullText(kConnectionsMax, 1ull << 30), "1048576 connections are open, more than any world needs");
}

}  // namespace
}  // namespace phalanx::store

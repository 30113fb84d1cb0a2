#include "master/endpoint/room.h"

#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

constexpr uint64_t kUsualHardLimit = 1 << 20;

TEST(EndpointRoom, IsWhatTheWorldMayNeed) {
  const EndpointRoom small = RoomFor(kUsualHardLimit, {2, 16});
  EXPECT_EQ(small.files, 512U + 2 * 2 + 20 * 16);
  EXPECT_EQ(small.why_full, "836 files are open, more than 2 nodes and 16 ranks need");
  const EndpointRoom large = RoomFor(kUsualHardLimit, {10'000, 40'000});
  EXPECT_GT(large.files, 10'000U + 2 * 40'000) << "each agent, and a client of each rank";
  EXPECT_LT(large.files, kUsualHardLimit);
}

TEST(EndpointRoom, LeavesTheMasterItsFilesUnderAnyLimit) {
  for (const uint64_t limit : {uint64_t{0}, uint64_t{1}, uint64_t{256}, uint64_t{1'024}, uint64_t{4'096}}) {
    const EndpointRoom room = RoomFor(limit, {10'000, 80'000});
    EXPECT_EQ(room.files, limit - limit / 8) << limit;
  }
  EXPECT_EQ(RoomFor(kUsualHardLimit, {100'000, 800'000}).files, kUsualHardLimit - 512);
  EXPECT_EQ(RoomFor(1'024, {10'000, 0}).why_full,
            "896 files are open, all that a limit of 1024 leaves room for (ulimit -Hn)");
}

// The first node's Hello tells how large the job is; all others may dial before it is heard.
TEST(EndpointRoom, OfAWorldThatIsNotKnownIsAllThereIs) {
  EXPECT_EQ(RoomFor(kUsualHardLimit, {0, 0}).files, kUsualHardLimit - 512);
}

}  // namespace
}  // namespace phalanx::master

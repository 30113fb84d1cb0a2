#include "data/capi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::data {
namespace {

TEST(CInterface, ReasonsAreCutToTheRoomTheyHave) {
  phx_data_part part;
  char error[16];
  EXPECT_EQ(phx_data_part_check("/proc/none", &part, error, sizeof error), -1);
  EXPECT_STREQ(error, "/proc/none: ope");
  EXPECT_EQ(phx_data_part_check("/proc/none", &part, nullptr, 0), -1);
  EXPECT_EQ(phx_data_abi_version(), 1U);
}

TEST(CInterface, NothingIsDoneWithoutParts) {
  phx_data_counts counts;
  char error[200];
  const phx_data_join_spec spec{"/proc/none", nullptr, 0, PHX_DATA_MMAP, 0, nullptr, nullptr};
  EXPECT_EQ(phx_data_join_parts(&spec, &counts, error, sizeof error), nullptr);
  EXPECT_THAT(error, testing::HasSubstr("joining /proc/none: there is nothing to join"));
  phx_data_close(nullptr);
}

}  // namespace
}  // namespace phalanx::data

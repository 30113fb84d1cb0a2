#include "elasticity/capi.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;

constexpr int64_t kSizes[] = {4, 6};  // of a batch of 12, whose counts are 1, 2 and 3

struct Answer {
  int64_t found = 0;
  int64_t batch = -7;
  std::array<int64_t, 4> counts = {-7, -7, -7, -7};
  std::array<uint8_t, 4> is_numpy = {7, 7, 7, 7};
};

Answer Ask(int64_t batch_max, int64_t gpus_min, uint32_t flags, size_t room, bool with_marks = true) {
  Answer answer;
  answer.found = phx_elasticity_choose_batch(kSizes, 2, batch_max, gpus_min, 100, flags, &answer.batch,
                                             answer.counts.data(), with_marks ? answer.is_numpy.data() : nullptr, room);
  return answer;
}

TEST(CInterface, CountsFitOrAreCut) {
  EXPECT_EQ(phx_elasticity_abi_version(), 2U);
  const Answer whole = Ask(8, 1, PHX_ELASTICITY_PREFER_LARGER, 4);
  EXPECT_EQ(whole.found, 3);
  EXPECT_EQ(whole.batch, 12);
  EXPECT_THAT(whole.counts, ElementsAre(1, 2, 3, -7));
  EXPECT_THAT(whole.is_numpy, ElementsAre(0, 1, 1, 7));
  const Answer cut = Ask(8, 1, PHX_ELASTICITY_PREFER_LARGER, 2);
  EXPECT_EQ(cut.found, 3);
  EXPECT_THAT(cut.counts, ElementsAre(1, 2, -7, -7));
  EXPECT_THAT(cut.is_numpy, ElementsAre(0, 1, 7, 7));
  EXPECT_THAT(Ask(8, 1, PHX_ELASTICITY_PREFER_LARGER, 4, /*with_marks=*/false).counts, ElementsAre(1, 2, 3, -7));
}

TEST(CInterface, FlagsAreThoseOfTheRequest) {
  EXPECT_EQ(Ask(8, 1, PHX_ELASTICITY_PREFER_LARGER | PHX_ELASTICITY_WITHIN_LARGEST, 4).batch, 8);
  EXPECT_EQ(Ask(8, 1, PHX_ELASTICITY_PREFER_LARGER | PHX_ELASTICITY_WITHOUT_WHOLE, 4).found, 1);
  EXPECT_EQ(Ask(8, 90, 0, 4).found, PHX_ELASTICITY_NO_COUNTS);
  EXPECT_EQ(Ask(8, 90, 0, 4).batch, 4);
  EXPECT_EQ(Ask(8, 90, PHX_ELASTICITY_PREFER_LARGER, 4).found, 0);
}

TEST(CInterface, RefusesWhatIsBeyondTheLimits) {
  const Answer answer = Ask(5, 1, 0, 4);
  EXPECT_EQ(answer.found, PHX_ELASTICITY_BEYOND_LIMITS);
  EXPECT_EQ(answer.batch, -7);
}

}  // namespace
}  // namespace phalanx::elasticity

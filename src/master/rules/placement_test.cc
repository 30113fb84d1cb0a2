#include "master/rules/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;

// Candidates arrive in order of id.
Candidate Was(uint64_t id, int32_t previous) { return {id, -1, previous, id}; }
Candidate New(uint64_t id) { return {id, -1, -1, id}; }
Candidate Wants(uint64_t id, int32_t rank) { return {id, rank, -1, id}; }

TEST(Place, ByArrivalWhereNobodyWasThere) { EXPECT_THAT(Place({New(3), New(1), New(2)}, 9), ElementsAre(1, 2, 3)); }

TEST(Place, SurvivorsKeepTheirRankAndANewcomerFillsTheHole) {
  EXPECT_THAT(Place({Was(1, 0), Was(3, 2), New(9)}, 3), ElementsAre(1, 9, 3));
}

TEST(Place, OnAShrinkOnlyTheHighestMove) {
  EXPECT_THAT(Place({Was(1, 0), Was(3, 2), Was(4, 3)}, 4), ElementsAre(1, 4, 3));
  EXPECT_THAT(Place({Was(3, 2), Was(4, 3)}, 4), ElementsAre(3, 4));
  EXPECT_THAT(Place({Was(2, 1), Was(5, 4), Was(6, 5)}, 6), ElementsAre(5, 2, 6));
}

TEST(Place, MovingSurvivorsGoBeforeNewcomers) {
  // Three of four are left, one is new, but only three places are allowed.
  EXPECT_THAT(Place({Was(1, 0), Was(4, 3), New(9)}, 3), ElementsAre(1, 4, 9));
}

TEST(Place, SurvivorsArePreferredToEarlierSpares) {
  EXPECT_THAT(Place({New(1), Was(7, 0), Was(8, 1)}, 2), ElementsAre(7, 8));
  EXPECT_THAT(Place({Wants(1, 0), Was(7, 0), Was(8, 1)}, 2), ElementsAre(7, 8));
}

TEST(Place, WishesAreGrantedWhereTheRankExists) {
  EXPECT_THAT(Place({Wants(1, 2), Wants(2, 0), New(3)}, 3), ElementsAre(2, 3, 1));
  EXPECT_THAT(Place({Wants(1, 3), Wants(2, 0)}, 4), ElementsAre(2, 1));
}

// Under access switch `access` of pod switch `pod`.
Candidate Under(uint32_t pod, uint32_t access, uint64_t id) { return {id, -1, -1, id, 0, {pod, access}}; }

TEST(Place, NewcomersOfOneSwitchAreNeighbours) {
  // That of the first is the first, then the other of its pod switch, then the others, then who is nowhere.
  EXPECT_THAT(Place({Under(1, 3, 1), Under(2, 1, 2), New(3), Under(1, 2, 4), Under(2, 1, 5), Under(1, 3, 6)}, 6),
              ElementsAre(1, 6, 4, 2, 5, 3));
  // A number of an access switch counts within its pod switch.
  EXPECT_THAT(Place({Under(1, 1, 1), Under(2, 1, 2), Under(1, 1, 3), Under(2, 1, 4)}, 4), ElementsAre(1, 3, 2, 4));
}

TEST(Place, WhoHasARankOrWantsOneIsNotMovedForASwitch) {
  Candidate survivor = Was(1, 1);
  survivor.switches = {1, 1};
  EXPECT_THAT(Place({survivor, Under(2, 2, 2), Under(1, 1, 3)}, 3), ElementsAre(2, 1, 3));
  Candidate wants = Wants(4, 0);
  wants.switches = {2, 2};
  EXPECT_THAT(Place({wants, Under(1, 1, 5), Under(2, 2, 6), Under(1, 1, 7)}, 4), ElementsAre(4, 5, 7, 6));
}

TEST(LayOut, CountsRanksAndRoles) {
  std::vector<Span> spans = {{"a", 2, 0, 0, 0}, {"b", 3, 0, 0, 0}, {"a", 4, 0, 0, 0}};
  EXPECT_EQ(LayOut(spans), 9U);
  EXPECT_EQ(spans[2].rank_base, 5U);
  EXPECT_EQ(spans[2].role_rank_base, 2U);
  EXPECT_EQ(spans[2].role_world_size, 6U);
  EXPECT_EQ(spans[1].role_rank_base, 0U);
  EXPECT_EQ(spans[1].role_world_size, 3U);
}

}  // namespace
}  // namespace phalanx::master

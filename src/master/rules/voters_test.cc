#include "master/rules/voters.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::master {
namespace {

Voters Three() {
  Voters voters(1, 7, 3);
  for (const char* id : {"a", "b", "c"}) {
    voters.Add(id, "10.0.0.1", 7'000);
    voters.Come(id, "10.0.0.1", 7'000);
  }
  return voters;
}

TEST(VotersTest, HalfMayGoOnAndMoreThanHalfMayBegin) {
  Voters voters(0, 1, 4);
  for (const char* id : {"a", "b", "c", "d"}) voters.Add(id, "", 0);
  voters.Come("a", "", 0);
  EXPECT_FALSE(voters.MayDecide());
  EXPECT_EQ(voters.Missing(), 1U);
  voters.Come("b", "", 0);
  EXPECT_TRUE(voters.MayDecide());
  EXPECT_FALSE(voters.AreMost()) << "the other half may go on";
  voters.Come("c", "", 0);
  EXPECT_TRUE(voters.AreMost());
  EXPECT_FALSE(voters.MayDecide(1)) << "those who are here and have no part in it may hear of another master";
}

TEST(VotersTest, SilenceProvesNothing) {
  Voters voters = Three();
  EXPECT_FALSE(voters.Leave("b", /*heard=*/false));
  EXPECT_FALSE(voters.Leave("c", false));
  EXPECT_FALSE(voters.Answer("b", /*refused=*/true)) << "it may have had a part in an election, and ended later";
  EXPECT_FALSE(voters.MayDecide());
}

TEST(VotersTest, WhoEndsWhileItIsHeardOfCountsNoMore) {
  Voters voters = Three();
  EXPECT_TRUE(voters.Leave("b", true)) << "its machine is to be asked";
  EXPECT_TRUE(voters.Leave("c", true));
  EXPECT_FALSE(voters.MayDecide());
  EXPECT_TRUE(voters.Answer("b", true));
  EXPECT_TRUE(voters.MayDecide());
  EXPECT_FALSE(voters.Answer("c", false));
  EXPECT_FALSE(voters.Answer("c", true)) << "it lived when it was asked first";
}

TEST(VotersTest, AtTheEndpointAllOthersMayBeFoundEnded) {
  Voters voters = Three();
  voters.CountEnded();
  voters.Leave("b", false);
  voters.Leave("c", false);
  for (int i = 0; i < kFoundEnded; ++i) {
    EXPECT_FALSE(voters.MayDecide());
    voters.Answer("b", true);
    voters.Answer("c", true);
  }
  EXPECT_TRUE(voters.MayDecide());
  voters.Answer("c", false);
  EXPECT_FALSE(voters.MayDecide());
}

TEST(VotersTest, WhereAllAreGoneOthersMayHaveGoneOnFromThem) {
  Voters voters = Three();
  for (const char* id : {"a", "b", "c"}) voters.BeGone(id);
  EXPECT_FALSE(voters.MayDecide());
  EXPECT_TRUE(Voters().MayDecide()) << "a job that has not trained asks nobody";
}

TEST(ElectorateTest, ARoundThatMayBeConfirmedHasToAgreeToo) {
  Electorate all;
  all.confirmed = Three();
  all.told = Voters(1, 8, 2);
  all.told.Add("a", "", 0);
  EXPECT_FALSE(all.AreMost());
  all.told.Come("a", "", 0);
  EXPECT_TRUE(all.MayDecide());
  EXPECT_FALSE(all.AreMost());
  all.strict = true;
  EXPECT_FALSE(all.MayDecide()) << "another master may have the other half";
  all.told = Voters();
  EXPECT_TRUE(all.MayDecide());
  EXPECT_FALSE(all.MayDecide(std::vector<std::string>{"a"}));
  EXPECT_TRUE(all.MayDecide(std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace phalanx::master

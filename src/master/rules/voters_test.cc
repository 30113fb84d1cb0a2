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

Voters Begun(uint64_t epoch, const std::vector<std::string>& members) {
  Voters round(1, epoch, members.size());
  for (const std::string& id : members) {
    round.Add(id, "10.0.0.1", 7'000);
    round.Come(id, "10.0.0.1", 7'000);
  }
  return round;
}

// Of a pair each half may go on. What was told to one arrived, perhaps, and what it says since does not.
TEST(ElectorateTest, NothingBeginsBesideARoundThatMayRunUnseen) {
  Electorate all;
  all.confirmed = Begun(7, {"a", "b"});
  all.Begin(Begun(8, {"a"}));
  all.Leave("a", /*heard=*/false);
  EXPECT_FALSE(all.MayDecide()) << "b is half of those that have confirmed, and a may train alone";
  EXPECT_FALSE(all.MayDecide(std::vector<std::string>{"b"}));
  all.Come("a", "10.0.0.1", 7'000);
  EXPECT_FALSE(all.MayDecide(std::vector<std::string>{"b"}));
  EXPECT_TRUE(all.MayDecide(std::vector<std::string>{"a", "b"}));
}

TEST(ElectorateTest, ARoundThatAMemberHasLeftIsOver) {
  Electorate all;
  all.confirmed = Begun(7, {"a", "b"});
  for (const bool by_end : {false, true}) {
    all.begun.clear();
    all.Begin(Begun(8, {"a", "c"}));
    all.Leave("a", false);
    all.Leave("c", false);
    EXPECT_FALSE(all.MayDecide());
    if (by_end) {
      all.Answer("c", /*refused=*/true);
    } else {
      all.HaveComeTo({1, 9}, "c");
    }
    EXPECT_TRUE(all.MayDecide());
  }
}

TEST(ElectorateTest, ARoundOfTheSameMembersTakesTheOnesPlace) {
  Electorate all;
  for (uint64_t epoch = 1; epoch <= 100; ++epoch) all.Begin(Begun(epoch, {"a", "b"}));
  EXPECT_EQ(all.begun.size(), 1U);
}

// All that have confirmed have ended; one that was told of a later round may have given the job to another master.
TEST(ElectorateTest, TheWayOutIsOfThoseThatWereToldAsWell) {
  Electorate all;
  all.confirmed = Begun(7, {"a"});
  all.Begin(Begun(8, {"a", "c"}));
  all.CountEnded();
  all.Leave("a", false);
  all.Leave("c", false);
  for (int found = 0; found < kFoundEnded; ++found) all.Answer("a", true);
  EXPECT_FALSE(all.MayDecide());
  for (int found = 0; found < kFoundEnded; ++found) all.Answer("c", true);
  EXPECT_TRUE(all.MayDecide());
  all.CountEnded(false);
  EXPECT_FALSE(all.MayDecide()) << "somebody else may have gone on";
}

}  // namespace
}  // namespace phalanx::master

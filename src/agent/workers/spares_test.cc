#include "agent/workers/spares.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

namespace phalanx::agent {
namespace {

using Texts = std::vector<std::string>;

std::string Joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

std::string Told(const Learnt& learnt) {
  return fmt::format("[{}] deny [{}]", Joined(learnt.modules), Joined(learnt.deny));
}

struct InWords {
  std::string operator()(const StartZygote& a) { return fmt::format("zygote {}: {}", a.zygote, Told(a.learnt)); }
  std::string operator()(const EndZygote& a) { return fmt::format("end zygote {}: {}", a.zygote, a.why); }
  std::string operator()(const DropZygote& a) { return fmt::format("drop zygote {}", a.zygote); }
  std::string operator()(const ForkSpare& a) { return fmt::format("fork {} of zygote {}", a.fork, a.zygote); }
  std::string operator()(const DropFork&) { return "drop fork"; }
  std::string operator()(const DropSpare& a) { return fmt::format("drop spare {}", a.pid); }
  std::string operator()(const LookAtMemory&) { return "look at memory"; }
  std::string operator()(const KeepLearnt& a) { return "keep " + Told(a.learnt); }
  std::string operator()(const TellWaiting& a) { return fmt::format("{} wait", a.waiting); }
  std::string operator()(const TellSpare&) { return "take it"; }
  std::string operator()(const TellWithheld& a) { return "withheld: " + a.why; }
  std::string operator()(const TellCold& a) { return "cold: " + a.why; }
};

ZygoteEnd Died(const std::string& how = "killed by signal 9") { return {ZygoteEnd::Kind::kDied, "", how}; }
ZygoteEnd Tainted(const std::string& module) { return {ZygoteEnd::Kind::kTainted, module, "opened a socket"}; }
ZygoteEnd Failed() { return {ZygoteEnd::Kind::kFailed, "", "it asks for a cold start"}; }

// A node's spares, driven by hand. Fork N becomes the process 100 + N.
class SparesTest : public testing::Test {
 protected:
  // What has been decided. Questions about memory are answered in their place.
  Texts Decided() {
    Texts texts;
    for (std::vector<SpareAction> actions = spares_.Take(); !actions.empty(); actions = spares_.Take()) {
      for (const SpareAction& action : actions) {
        if (const auto* fork = std::get_if<ForkSpare>(&action)) {
          fork_ = fork->fork;
          ahead_.push_back(fork->ahead);
        }
        if (!std::holds_alternative<LookAtMemory>(action)) {
          texts.push_back(std::visit(InWords{}, action));
          continue;
        }
        ++looks_;
        spares_.OnMemory(memory_, now_);
      }
    }
    return texts;
  }
  void Forget() { Decided(); }

  Texts Want(int needed, int kept) {
    spares_.Need(needed, now_);
    spares_.Keep(kept, now_);
    return Decided();
  }
  Texts Ready(int zygote) {
    spares_.OnZygoteReady(zygote, now_);
    return Decided();
  }
  Texts Ended(int zygote, const ZygoteEnd& end) {
    spares_.OnZygoteEnded(zygote, end);
    return Decided();
  }
  // The spare that is on its way has come.
  Texts Comes() {
    spares_.OnSpareWaits(fork_, 100 + static_cast<int64_t>(fork_), now_);
    return Decided();
  }
  Texts ForkFails() {
    spares_.OnForkFailed(fork_, "no memory", now_);
    return Decided();
  }
  Texts Lost(int64_t pid) {
    spares_.OnSpareLost(pid, now_);
    return Decided();
  }
  Texts Learn(const std::vector<std::string>& modules) {
    spares_.Learn(modules, now_);
    return Decided();
  }
  Texts Unlearn(const std::string& module) {
    spares_.Unlearn(module, now_);
    return Decided();
  }
  Texts After(int64_t ms) {
    now_ += ms;
    spares_.OnTime(now_);
    return Decided();
  }
  // What a shell does when it is told of a spare, or needs one.
  int64_t TakeOne() {
    const std::optional<int64_t> pid = spares_.Next();
    if (pid) spares_.Taken(*pid);
    return pid.value_or(0);
  }

  // A zygote works and `kept` spares wait: 101, 102, ...
  void Begin(int kept, Learnt learnt = {}) {
    spares_.Start(std::move(learnt));
    spares_.OnZygoteReady(1, now_);
    Want(0, kept);
    for (int i = 0; i < kept; ++i) Comes();
  }
  // The zygote after `zygote` is ready: another one, of which nothing waits.
  void Renew(int zygote, const std::string& module) {
    Learn({module});
    EXPECT_EQ(After(kRenewAfterMs).size(), 1u);
    spares_.OnZygoteReady(zygote + 1, now_);
  }

  Spares spares_;
  Instant now_ = 50'000;
  int64_t memory_ = int64_t{64} << 30;
  int looks_ = 0;  // at memory
  uint64_t fork_ = 0;
  std::vector<bool> ahead_;  // of each fork
};

// --- how many -----------------------------------------------------------------------------------------------------

TEST_F(SparesTest, OneIsForkedAtATimeOnceTheZygoteIsReady) {
  spares_.Start({{"a"}, {"b"}});
  EXPECT_EQ(Decided(), Texts{"zygote 1: [a] deny [b]"});
  EXPECT_TRUE(spares_.alive());
  EXPECT_EQ(Want(0, 2), Texts{});
  EXPECT_EQ(Ready(1), Texts{"fork 1 of zygote 1"});
  EXPECT_EQ(Want(0, 2), Texts{});
  EXPECT_EQ(Comes(), (Texts{"1 wait", "take it", "fork 2 of zygote 1"}));
  EXPECT_EQ(Comes(), (Texts{"2 wait", "take it"}));
}

TEST_F(SparesTest, TheZygoteThatForksHasDoneItsImports) {
  EXPECT_EQ(spares_.ForksNow(), 0);
  spares_.Start({});
  EXPECT_EQ(spares_.ForksNow(), 0);
  Ready(1);
  EXPECT_EQ(spares_.ForksNow(), 1);
  Renew(1, "a");
  EXPECT_EQ(spares_.ForksNow(), 2);
  Ended(2, {ZygoteEnd::Kind::kDied, "", "killed"});
  EXPECT_EQ(spares_.ForksNow(), 0) << "the next one imports";
  EXPECT_TRUE(spares_.alive());
  Ended(3, Failed());
  EXPECT_EQ(spares_.ForksNow(), 0);
  EXPECT_FALSE(spares_.alive());
}

TEST_F(SparesTest, WhatIsTakenIsReplacedWhenItIsWantedAgain) {
  Begin(2);
  EXPECT_EQ(TakeOne(), 101) << "the oldest first";
  EXPECT_EQ(spares_.waiting(), 1);
  EXPECT_EQ(Decided(), Texts{});
  EXPECT_EQ(Want(0, 2), Texts{"fork 3 of zygote 1"});
}

TEST_F(SparesTest, ThoseWhoNeedOneCountBesideThoseThatAreKept) {
  Begin(0);
  EXPECT_EQ(Want(2, 1), Texts{"fork 1 of zygote 1"});
  EXPECT_EQ(Comes(), (Texts{"1 wait", "take it", "fork 2 of zygote 1"}));
  EXPECT_EQ(TakeOne(), 101);
  EXPECT_EQ(Want(1, 1), Texts{}) << "one is on its way";
  Comes();
  EXPECT_EQ(TakeOne(), 102);
  EXPECT_EQ(Want(0, 1), Texts{});
  EXPECT_EQ(Comes(), (Texts{"1 wait", "take it"}));
}

TEST_F(SparesTest, AForkIsAheadWhereNoWorkerWaitsForIt) {
  Begin(0);
  Want(1, 2);
  Comes();
  TakeOne();
  Want(0, 2);
  Comes();
  EXPECT_EQ(ahead_, (std::vector<bool>{false, true, true}));
}

TEST_F(SparesTest, WhereAWorkerWaitsNoneIsForkedAheadOfNeedUntilTheyAreToBeKept) {
  spares_.Start({});
  Want(0, 2);
  spares_.Need(1, now_);
  spares_.Need(2, now_);
  Forget();
  EXPECT_EQ(Ready(1), Texts{"fork 1 of zygote 1"});
  Comes();
  TakeOne();
  spares_.Need(1, now_);
  EXPECT_EQ(Decided(), Texts{}) << "the second is on its way";
  Comes();
  TakeOne();
  spares_.Need(0, now_);
  EXPECT_EQ(Decided(), Texts{});
  spares_.Keep(2, now_);
  EXPECT_EQ(Decided(), Texts{"fork 3 of zygote 1"});
}

TEST_F(SparesTest, WhatIsToBeKeptWhileAWorkerWaitsIsForkedBehindItsSpare) {
  spares_.Start({});
  spares_.Need(1, now_);
  spares_.Keep(1, now_);
  Forget();
  EXPECT_EQ(Ready(1), Texts{"fork 1 of zygote 1"});
  Comes();
  TakeOne();
  spares_.Need(0, now_);
  EXPECT_EQ(Comes(), (Texts{"1 wait", "take it"}));
}

TEST_F(SparesTest, FewerWantedEndsTheYoungest) {
  Begin(3);
  EXPECT_EQ(Want(0, 1), (Texts{"drop spare 103", "drop spare 102", "1 wait"}));
  EXPECT_EQ(Want(0, 1), Texts{});
  EXPECT_EQ(Want(0, 0), (Texts{"drop spare 101", "0 wait"}));
}

TEST_F(SparesTest, OneThatHasEndedIsPassedOver) {
  Begin(2);
  EXPECT_EQ(spares_.Next(), 101);
  spares_.PassOver(101);
  EXPECT_EQ(Decided(), Texts{"drop spare 101"});
  EXPECT_EQ(TakeOne(), 102);
  EXPECT_EQ(TakeOne(), 0);
}

// --- memory -------------------------------------------------------------------------------------------------------

TEST_F(SparesTest, NothingIsForkedAheadOfNeedWithoutMemory) {
  struct Case {
    int needed;
    int64_t memory;
    Texts decided;
  };
  const std::string withheld = "withheld: less than 512 MiB of memory are left for this job's processes";
  for (const Case& c : {Case{0, kMemoryForSparesBytes, {"fork 1 of zygote 1"}},
                        Case{0, kMemoryForSparesBytes - 1, {withheld}}, Case{1, 0, {"fork 1 of zygote 1"}}}) {
    spares_ = {};
    Begin(0);
    memory_ = c.memory;
    EXPECT_EQ(Want(c.needed, 1), c.decided) << c.needed << " " << c.memory;
  }
}

TEST_F(SparesTest, AWorkerThatWaitsDoesNotWaitForALookAtMemory) {
  Begin(0);
  Want(2, 0);
  Comes();
  EXPECT_EQ(looks_, 0);
  Want(0, 2);
  EXPECT_EQ(looks_, 0) << "a fork is under way";
  Comes();
  Want(0, 3);
  EXPECT_EQ(looks_, 1);
}

TEST_F(SparesTest, WithheldIsUntilSomebodyWantsThemAnew) {
  Begin(1);
  memory_ = 0;
  EXPECT_EQ(Want(0, 3).size(), 1u);
  memory_ = kMemoryForSparesBytes;
  EXPECT_EQ(Ready(1), Texts{}) << "one is what is kept now";
  EXPECT_EQ(Want(0, 3), Texts{"fork 2 of zygote 1"});
}

// --- spares that are lost -----------------------------------------------------------------------------------------

TEST_F(SparesTest, ALostOneIsReplacedUntilTooManyAre) {
  Begin(1);
  for (int lost = 1; lost < kSparesLostMax; ++lost) {
    EXPECT_EQ(Lost(100 + lost), (Texts{fmt::format("drop spare {}", 100 + lost), "0 wait",
                                       fmt::format("fork {} of zygote 1", lost + 1)}));
    Comes();
  }
  const std::string last = fmt::format("drop spare {}", 100 + kSparesLostMax);
  EXPECT_EQ(Lost(100 + kSparesLostMax), (Texts{last, "0 wait", "withheld: those that waited were ended by others"}));
  EXPECT_TRUE(spares_.alive());
}

TEST_F(SparesTest, OneThatServesShowsThatTheyLive) {
  Begin(1);
  for (int lost = 1; lost < kSparesLostMax; ++lost) {
    Lost(100 + lost);
    Comes();
  }
  EXPECT_EQ(TakeOne(), 100 + kSparesLostMax);
  Want(0, 1);
  Comes();
  EXPECT_EQ(Lost(101 + kSparesLostMax).back(), fmt::format("fork {} of zygote 1", kSparesLostMax + 2));
}

// --- forks that fail ----------------------------------------------------------------------------------------------

TEST_F(SparesTest, ThreeFailedForksMeanColdWhereAWorkerWaits) {
  Begin(0);
  EXPECT_EQ(Want(1, 0), Texts{"fork 1 of zygote 1"});
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "fork 2 of zygote 1"}));
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "fork 3 of zygote 1"}));
  const std::string why = "no spare can be forked: no memory";
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "end zygote 1: " + why, "cold: " + why}));
  EXPECT_FALSE(spares_.alive());
}

TEST_F(SparesTest, ColdEndsTheNextZygoteToo) {
  Begin(0);
  Learn({"m"});
  After(kRenewAfterMs);
  Want(1, 0);
  ForkFails();
  ForkFails();
  const Texts decided = ForkFails();
  ASSERT_EQ(decided.size(), 4u);
  EXPECT_EQ(decided[1], "drop zygote 2");
}

TEST_F(SparesTest, ThreeFailedForksAreWithheldWhereNobodyWaits) {
  Begin(1);
  Want(0, 2);
  ForkFails();
  ForkFails();
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "withheld: none can be forked: no memory"}));
  EXPECT_TRUE(spares_.alive());
  EXPECT_EQ(Want(0, 2), Texts{"fork 5 of zygote 1"}) << "three more may fail";
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "fork 6 of zygote 1"}));
}

TEST_F(SparesTest, OneThatComesEndsTheRowOfFailedForks) {
  Begin(0);
  Want(2, 0);
  ForkFails();
  ForkFails();
  Comes();
  ForkFails();
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "fork 6 of zygote 1"}));
}

// Forks fail at once where the zygote is about to die, and its end is told later.
TEST_F(SparesTest, FailedForksOfADeadZygoteAreNotTheNextOnes) {
  Begin(0);
  Want(1, 0);
  ForkFails();
  ForkFails();
  Ended(1, Died());
  Ready(2);
  ForkFails();
  EXPECT_EQ(ForkFails(), (Texts{"drop fork", "fork 6 of zygote 2"}));
}

TEST_F(SparesTest, WhatIsToldOfAnEarlierForkChangesNothing) {
  Begin(0);
  Want(1, 0);
  ForkFails();
  spares_.OnForkFailed(1, "late", now_);
  spares_.OnSpareWaits(1, 101, now_);
  EXPECT_EQ(Decided(), Texts{});
  EXPECT_EQ(spares_.waiting(), 0);
}

TEST_F(SparesTest, AZygoteThatDoesNotForkInTimeIsEnded) {
  Begin(0);
  EXPECT_EQ(spares_.Deadline(), kNever);
  Want(1, 0);
  EXPECT_EQ(spares_.Deadline(), now_ + kForkWithinMs);
  EXPECT_EQ(After(kForkWithinMs - 1), Texts{});
  EXPECT_EQ(After(1), Texts{"end zygote 1: it does not answer"});
  EXPECT_EQ(spares_.Deadline(), kNever);
  EXPECT_EQ(Ended(1, Died("it does not answer")), (Texts{"drop fork", "zygote 2: [] deny []"}));
  EXPECT_EQ(Ready(2), Texts{"fork 2 of zygote 2"});
  Comes();
  EXPECT_EQ(spares_.Deadline(), kNever);
}

// --- zygotes that end ---------------------------------------------------------------------------------------------

TEST_F(SparesTest, WhatTheFirstZygotesEndMeans) {
  struct Case {
    const char* what;
    Learnt learnt;
    ZygoteEnd end;
    Texts decided;
  };
  for (const Case& c : {
           Case{"it says that there is no warm start", {{"a"}, {}}, Failed(), {"cold: it asks for a cold start"}},
           Case{"a module must not be imported ahead",
                {{"a"}, {"b"}},
                Tainted("m"),
                {"keep [a] deny [b,m]", "zygote 2: [a] deny [b,m]"}},
           Case{"one that is denied was imported nevertheless",
                {{}, {"m"}},
                Tainted("m"),
                {"cold: importing m ahead of time opened a socket"}},
           Case{"what was learnt may end it", {{"a"}, {"b"}}, Died(), {"keep [] deny [b]", "zygote 2: [] deny [b]"}},
           Case{"it is tried once more", {{}, {"b"}}, Died(), {"zygote 2: [] deny [b]"}},
       }) {
    spares_ = {};
    spares_.Start(c.learnt);
    Forget();
    EXPECT_EQ(Ended(1, c.end), c.decided) << c.what;
    EXPECT_EQ(spares_.alive(), !c.decided.back().starts_with("cold")) << c.what;
  }
}

TEST_F(SparesTest, TwoZygotesInARowWithoutASpareMeanCold) {
  spares_.Start({});
  EXPECT_EQ(Ended(1, Died()).back(), "zygote 2: [] deny []");
  Ready(2);
  Want(0, 1);
  EXPECT_EQ(Ended(2, Died("killed by signal 11")),
            (Texts{"drop fork", "cold: the process that spares come from does not live: killed by signal 11"}));
}

TEST_F(SparesTest, AZygoteThatGaveASpareEndsTheRowButSoManyAreEnough) {
  spares_.Start({});
  for (int zygote = 1; zygote <= kZygotesMax; ++zygote) {
    Ready(zygote);
    Want(1, 0);
    Comes();
    TakeOne();
    const std::string next = fmt::format("zygote {}: [] deny []", zygote + 1);
    const std::string cold = "cold: the process that spares come from does not live: killed by signal 9";
    EXPECT_EQ(Ended(zygote, Died()), Texts{zygote < kZygotesMax ? next : cold});
  }
}

TEST_F(SparesTest, WhatWasLearntDoesNotEndAZygoteThatHasImportedIt) {
  Begin(0, {{"a"}, {"b"}});
  EXPECT_EQ(Ended(1, Died()), Texts{"zygote 2: [a] deny [b]"});
  EXPECT_EQ(Ended(2, Died()), (Texts{"keep [] deny [b]", "zygote 3: [] deny [b]"})) << "this one had not";
}

TEST_F(SparesTest, WaitingSparesOutliveTheirZygote) {
  Begin(2);
  EXPECT_EQ(Ended(1, Died()), Texts{"zygote 2: [] deny []"});
  EXPECT_EQ(spares_.waiting(), 2);
  EXPECT_TRUE(spares_.alive());
  EXPECT_EQ(TakeOne(), 101);
  EXPECT_EQ(Want(0, 2), Texts{}) << "the next one imports";
  EXPECT_EQ(Ready(2), Texts{"fork 3 of zygote 2"});
}

TEST_F(SparesTest, AZygoteThatCannotBeStartedMeansCold) {
  spares_.Start({});
  Forget();
  spares_.OnZygoteNotStarted(1, "no such file");
  EXPECT_EQ(Decided(), Texts{"cold: no such file"});
  EXPECT_FALSE(spares_.alive());
}

TEST_F(SparesTest, ColdIsToldOnceAndForGood) {
  Begin(1);
  Want(1, 1);
  for (int i = 0; i < kForkFailuresMax; ++i) ForkFails();
  EXPECT_FALSE(spares_.alive());
  EXPECT_EQ(Ended(1, Died()), Texts{});
  EXPECT_EQ(Want(2, 2), Texts{});
  EXPECT_EQ(Learn({"m"}), Texts{"keep [m] deny []"}) << "the next launch may be warm";
  EXPECT_EQ(After(kRenewAfterMs), Texts{});
  EXPECT_EQ(TakeOne(), 101) << "what waits still serves";
}

// --- what lives teach ---------------------------------------------------------------------------------------------

TEST_F(SparesTest, ABetterZygoteBeginsAMomentAfterTheLastRankHasTold) {
  Begin(0, {{"a"}, {}});
  EXPECT_EQ(Learn({}), Texts{}) << "all that it needed was there";
  EXPECT_EQ(Learn({"a"}), Texts{}) << "so it was learnt before";
  EXPECT_EQ(spares_.Deadline(), kNever);
  EXPECT_EQ(Learn({"a", "b"}), Texts{"keep [a,b] deny []"});
  EXPECT_EQ(After(kRenewAfterMs - 1), Texts{});
  EXPECT_EQ(Learn({"c"}), Texts{"keep [a,b,c] deny []"});
  EXPECT_EQ(After(kRenewAfterMs - 1), Texts{});
  EXPECT_EQ(After(1), Texts{"zygote 2: [a,b,c] deny []"}) << "one for all ranks";
  EXPECT_EQ(spares_.Deadline(), kNever);
}

TEST_F(SparesTest, OnlySoManyAreRenewedInARun) {
  Begin(0);
  for (int life = 1; life <= kRenewalsMax; ++life) {
    Learn({fmt::format("m{}", life)});
    Learn({fmt::format("of another rank {}", life)});
    EXPECT_EQ(After(kRenewAfterMs).size(), 1u) << life;
    Ready(life + 1);
  }
  EXPECT_EQ(Learn({"more"}).size(), 1u) << "it is for the next launch";
  EXPECT_EQ(spares_.Deadline(), kNever);
}

TEST_F(SparesTest, ARenewalWantsMemoryForTwoZygotes) {
  for (const auto& [memory, count] : {std::pair{kMemoryForRenewalBytes, 1}, std::pair{kMemoryForRenewalBytes - 1, 0}}) {
    spares_ = {};
    Begin(0);
    memory_ = memory;
    Learn({"m"});
    EXPECT_EQ(After(kRenewAfterMs).size(), static_cast<size_t>(count)) << memory;
    EXPECT_TRUE(spares_.alive());
  }
}

TEST_F(SparesTest, WhatIsLearntMeanwhileMakesAnotherNextZygote) {
  Begin(0);
  Learn({"a"});
  EXPECT_EQ(After(kRenewAfterMs), Texts{"zygote 2: [a] deny []"});
  Learn({"b"});
  EXPECT_EQ(After(kRenewAfterMs), (Texts{"drop zygote 2", "zygote 3: [a,b] deny []"}));
}

TEST_F(SparesTest, TheNextZygotesSparesReplaceTheOthersOneForOne) {
  Begin(2);
  Learn({"m"});
  After(kRenewAfterMs);
  EXPECT_EQ(Ready(2), (Texts{"drop zygote 1", "fork 3 of zygote 2"}));
  EXPECT_EQ(spares_.waiting(), 2);
  EXPECT_EQ(Comes(), (Texts{"drop spare 101", "2 wait", "take it", "fork 4 of zygote 2"}));
  EXPECT_EQ(spares_.Next(), 103) << "a fresh one before a stale one that is older";
  EXPECT_EQ(Comes(), (Texts{"drop spare 102", "2 wait", "take it"}));
}

TEST_F(SparesTest, StaleOnesServeWhileThereIsNoFreshOne) {
  Begin(2);
  Renew(1, "m");
  EXPECT_EQ(TakeOne(), 101);
}

TEST_F(SparesTest, StaleOnesEndFirst) {
  Begin(2);
  Renew(1, "m");
  Forget();
  Comes();
  EXPECT_EQ(Want(0, 1), (Texts{"drop spare 102", "1 wait"}));
  EXPECT_EQ(spares_.Next(), 103);
}

TEST_F(SparesTest, StaleOnesWillDoWhereMemoryIsShort) {
  Begin(2);
  Learn({"m"});
  After(kRenewAfterMs);
  memory_ = 0;
  EXPECT_EQ(Ready(2), Texts{"drop zygote 1"});
  EXPECT_EQ(spares_.waiting(), 2);
}

TEST_F(SparesTest, ASpareOnItsWayEndsWithTheZygoteThatWasReplaced) {
  Begin(0);
  Learn({"m"});
  After(kRenewAfterMs);
  EXPECT_EQ(Want(0, 1), Texts{"fork 1 of zygote 1"});
  EXPECT_EQ(Ready(2), (Texts{"drop fork", "drop zygote 1", "fork 2 of zygote 2"}));
}

TEST_F(SparesTest, TheZygoteThatWorksGoesOnWhereTheNextComesToNothing) {
  struct Case {
    ZygoteEnd end;
    Texts decided;
  };
  for (const Case& c : {Case{Died(), {}}, Case{Failed(), {}},
                        Case{Tainted("bad"), {"keep [m] deny [bad]", "zygote 3: [m] deny [bad]"}}}) {
    spares_ = {};
    Begin(0);
    Learn({"m"});
    After(kRenewAfterMs);
    EXPECT_EQ(Ended(2, c.end), c.decided);
    EXPECT_EQ(Want(1, 0).size(), 1u) << "zygote 1 forks";
  }
  spares_ = {};
  Begin(0);
  Learn({"m"});
  After(kRenewAfterMs);
  spares_.OnZygoteNotStarted(2, "no such file");
  EXPECT_EQ(Decided(), Texts{});
  EXPECT_EQ(Want(1, 0).size(), 1u);
}

TEST_F(SparesTest, TheNextZygoteTakesThePlaceOfOneThatEnds) {
  Begin(1);
  Learn({"m"});
  After(kRenewAfterMs);
  EXPECT_EQ(Ended(1, Died()), Texts{}) << "it is on its way already";
  EXPECT_TRUE(spares_.alive());
  EXPECT_EQ(Want(0, 2), Texts{}) << "and imports still";
  EXPECT_EQ(Ready(2), Texts{"fork 2 of zygote 2"});
  EXPECT_EQ(Comes(), (Texts{"drop spare 101", "1 wait", "take it", "fork 3 of zygote 2"}));
}

TEST_F(SparesTest, UnfitSparesDoNotOutliveTheirZygote) {
  Begin(2, {{"a"}, {}});
  EXPECT_EQ(Unlearn("a.late"), Texts{"keep [a] deny [a.late]"});
  EXPECT_EQ(spares_.waiting(), 2) << "they serve until there is a better zygote";
  EXPECT_EQ(After(kRenewAfterMs), Texts{"zygote 2: [a] deny [a.late]"});
  EXPECT_EQ(Ready(2), (Texts{"drop zygote 1", "drop spare 101", "drop spare 102", "0 wait", "fork 3 of zygote 2"}));
  EXPECT_EQ(Unlearn("a.late"), Texts{}) << "it is known";
}

TEST_F(SparesTest, UnfitSparesEndAtOnceWhereMemoryIsShort) {
  Begin(2);
  memory_ = 0;
  Unlearn("late");
  EXPECT_EQ(After(kRenewAfterMs),
            (Texts{"drop spare 101", "drop spare 102", "0 wait", "drop zygote 1", "zygote 2: [] deny [late]"}));
  EXPECT_TRUE(spares_.alive()) << "who needs one waits for the zygote";
  EXPECT_EQ(Want(1, 0), Texts{});
  EXPECT_EQ(Ready(2), Texts{"fork 3 of zygote 2"});
}

TEST_F(SparesTest, UnfitSparesEndAtOnceWhereAllRenewalsAreUsed) {
  Begin(2);
  for (int life = 1; life <= kRenewalsMax; ++life) Renew(life, fmt::format("m{}", life));
  Forget();
  EXPECT_EQ(Unlearn("late"), (Texts{"keep [m1,m2,m3] deny [late]", "drop fork", "drop spare 101", "drop spare 102",
                                    "0 wait", "drop zygote 4", "zygote 5: [m1,m2,m3] deny [late]"}));
  EXPECT_EQ(Unlearn("late"), Texts{}) << "another rank's word of it";
  EXPECT_EQ(Ready(5), Texts{"fork 6 of zygote 5"});
}

// The last renewal that there is has begun, and does not know of it.
TEST_F(SparesTest, UnfitSparesEndAtOnceWhereTheLastRenewalIsDropped) {
  Begin(1);
  for (int life = 1; life < kRenewalsMax; ++life) Renew(life, fmt::format("m{}", life));
  Learn({"m3"});
  EXPECT_EQ(After(kRenewAfterMs).back(), "zygote 4: [m1,m2,m3] deny []");
  EXPECT_EQ(Unlearn("late"), (Texts{"keep [m1,m2,m3] deny [late]", "drop zygote 4", "drop fork", "drop spare 101",
                                    "0 wait", "drop zygote 3", "zygote 5: [m1,m2,m3] deny [late]"}));
}

TEST_F(SparesTest, UnfitSparesEndAtOnceWhereTheNextZygoteFails) {
  for (const ZygoteEnd& end : {Died(), Failed(), Tainted("late")}) {
    spares_ = {};
    Begin(1);
    Unlearn("late");
    EXPECT_EQ(After(kRenewAfterMs), Texts{"zygote 2: [] deny [late]"});
    EXPECT_EQ(Ended(2, end), (Texts{"drop spare 101", "0 wait", "drop zygote 1", "zygote 3: [] deny [late]"}));
  }
  spares_ = {};
  Begin(1);
  Unlearn("late");
  After(kRenewAfterMs);
  spares_.OnZygoteNotStarted(2, "no such file");
  EXPECT_EQ(Decided(), (Texts{"drop spare 101", "0 wait", "drop zygote 1", "zygote 3: [] deny [late]"}));
}

TEST_F(SparesTest, UnfitSparesEndWithTheirZygote) {
  Begin(1);
  Unlearn("late");
  EXPECT_EQ(Ended(1, Died()), (Texts{"drop spare 101", "0 wait", "zygote 2: [] deny [late]"}));
  spares_ = {};
  Begin(1);
  Unlearn("late");
  After(kRenewAfterMs);
  EXPECT_EQ(Ended(1, Died()), (Texts{"drop spare 101", "0 wait"})) << "the next one is on its way";
  EXPECT_EQ(Ready(2), Texts{"fork 2 of zygote 2"});
  EXPECT_EQ(Comes(), (Texts{"1 wait", "take it"}));
}

TEST_F(SparesTest, UnfitSparesDoNotServeWhereStartsAreCold) {
  Begin(1);
  Want(1, 1);
  for (int i = 0; i < kForkFailuresMax; ++i) ForkFails();
  EXPECT_EQ(Unlearn("late"), (Texts{"keep [] deny [late]", "drop spare 101", "0 wait"}));
}

TEST_F(SparesTest, WhatCannotBeNotedMeansCold) {
  Learnt learnt;
  for (size_t i = 0; i < kDenyMax; ++i) learnt.deny.push_back(fmt::format("m{}", i));
  Begin(1, learnt);
  EXPECT_EQ(Unlearn("m0"), Texts{});
  const std::string why = "late is not to be imported ahead, and no more can be noted";
  EXPECT_EQ(Unlearn("late"), (Texts{"drop spare 101", "0 wait", "end zygote 1: " + why, "cold: " + why}));
}

TEST_F(SparesTest, ANextZygoteThatDoesNotKnowWhatIsUnfitIsDropped) {
  Begin(0);
  Learn({"m"});
  EXPECT_EQ(After(kRenewAfterMs), Texts{"zygote 2: [m] deny []"});
  EXPECT_EQ(Unlearn("late"), (Texts{"keep [m] deny [late]", "drop zygote 2"}));
  EXPECT_EQ(After(kRenewAfterMs), Texts{"zygote 3: [m] deny [late]"});
}

TEST_F(SparesTest, TheDenyListHasAnEnd) {
  Learnt learnt;
  for (size_t i = 0; i + 1 < kDenyMax; ++i) learnt.deny.push_back(fmt::format("m{}", i));
  spares_.Start(learnt);
  Forget();
  EXPECT_EQ(Ended(1, Tainted("last")).size(), 2u);
  EXPECT_EQ(Ended(2, Tainted("one more")), Texts{"cold: importing one more ahead of time opened a socket"});
}

}  // namespace
}  // namespace phalanx::agent

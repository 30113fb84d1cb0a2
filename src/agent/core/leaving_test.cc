#include "agent/core/leaving.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::agent::leaving {
namespace {

// A member whose job has ended well, on the node that had started the master.
Begun Member() { return {0, false, true, true, true, true, true, 1'000}; }

// A node that goes, driven by hand.
class Leaving : public ::testing::Test {
 protected:
  Leaving() { state_.options = {7'000, 2}; }

  void On(const Event& event) { last_ = Step(state_, event, now_); }

  template <typename T>
  const T* Find() const {
    for (const Decision& decision : last_) {
      if (const T* action = std::get_if<T>(&decision.action)) return action;
    }
    return nullptr;
  }
  template <typename T>
  bool Has() const {
    return Find<T>() != nullptr;
  }

  void Begin(const Begun& begun, const StorageSettled& settled) {
    On(begun);
    On(settled);
  }

  State state_;
  Instant now_ = 1'000;
  std::vector<Decision> last_;
};

TEST_F(Leaving, CheckpointsHearWhy) {
  struct Row {
    int exit_code;
    bool asked;
    bool leaving;
    bool tidy;
  };
  for (const Row& row : {Row{0, false, false, true}, Row{1, false, false, false}, Row{143, true, true, false},
                         Row{0, true, true, true}}) {
    state_ = State();
    Begun begun = Member();
    begun.exit_code = row.exit_code;
    begun.asked = row.asked;
    On(begun);
    ASSERT_TRUE(Has<SettleStorage>());
    EXPECT_EQ(Find<SettleStorage>()->leaving, row.leaving);
    EXPECT_EQ(Find<SettleStorage>()->tidy, row.tidy);
  }
}

TEST_F(Leaving, GoesAtOnceWhereNothingIsOnItsWayOrNobodyHears) {
  Begin(Member(), {false, ""});
  ASSERT_TRUE(Has<Depart>());
  EXPECT_EQ(Find<Depart>()->exit_code, 0);
  ASSERT_TRUE(Has<CloseStream>());
  EXPECT_EQ(Find<CloseStream>()->longest_ms, kGoodbyeMs);
  EXPECT_EQ(NextDeadline(state_), kNever);

  Begun cut_off = Member();
  cut_off.attached = false;
  for (const char* const what : {"step 3", ""}) {
    state_ = State();
    Begin(cut_off, {true, what});
    EXPECT_TRUE(Has<Depart>());
    EXPECT_EQ(Has<Warn>(), *what != '\0') << "what is only tidied up is not missed";
  }
}

// A master that is not heard of may not have had the step stored.
TEST_F(Leaving, WhatANodeWithoutAMasterDoesNotAwaitIsSaid) {
  Begun cut_off = Member();
  cut_off.attached = false;
  Begin(cut_off, {true, "step 3"});
  ASSERT_TRUE(Has<Warn>());
  EXPECT_EQ(Find<Warn>()->text,
            "checkpoint: whether storage takes step 3 is not known: the stream to the master has broken");
}

TEST_F(Leaving, WaitsForStorageAndBeats) {
  Begin(Member(), {true, "step 3"});
  ASSERT_TRUE(Has<Say>());
  EXPECT_EQ(Find<Say>()->text, "checkpoint: waiting for storage to take step 3, for up to 600 s");
  EXPECT_TRUE(Has<Beat>());
  EXPECT_FALSE(Has<Depart>());
  EXPECT_EQ(NextDeadline(state_), now_ + 1'000);
  now_ += 999;
  On(Tick{"step 3"});
  EXPECT_TRUE(last_.empty());
  ++now_;
  On(Tick{"step 3"});
  EXPECT_TRUE(Has<Beat>());
  EXPECT_FALSE(Has<Say>());
  On(StorageIdle{});
  EXPECT_TRUE(Has<Depart>());
  EXPECT_FALSE(Has<Warn>());
  EXPECT_EQ(NextDeadline(state_), kNever);
}

TEST_F(Leaving, HowLongItWaitsDependsOnWhy) {
  struct Row {
    bool asked;
    const char* what;
    int64_t longest_ms;
    const char* warning;
  };
  const char* const kNotTaken = "checkpoint: storage has not taken step 4";
  const char* const kNotTidied = "checkpoint: storage has not removed its recycled files in time";
  for (const Row& row : {Row{false, "step 4", kStorageAtEndMs, kNotTaken}, Row{false, "", kTidyMs, kNotTidied},
                         Row{true, "step 4", 7'000, kNotTaken}, Row{true, "", 7'000, kNotTidied}}) {
    state_ = State();
    state_.options = {7'000, 2};
    Begun begun = Member();
    begun.asked = row.asked;
    Begin(begun, {true, row.what});
    EXPECT_EQ(Has<Say>(), *row.what != '\0');
    now_ += row.longest_ms - 1;
    On(Tick{row.what});
    EXPECT_TRUE(Has<Beat>());
    EXPECT_EQ(NextDeadline(state_), now_ + 1);
    ++now_;
    On(Tick{row.what});
    EXPECT_TRUE(Has<Depart>());
    ASSERT_TRUE(Has<Warn>());
    EXPECT_EQ(Find<Warn>()->text, row.warning);
  }
}

// Asked to go, with 7 s for storage and 20 s for those that read its memory.
class LeavingLends : public Leaving {
 protected:
  LeavingLends() { state_.options = {7'000, 2, 20'000}; }

  static Begun Asked() {
    Begun begun = Member();
    begun.exit_code = 143;
    begun.asked = true;
    return begun;
  }
};

TEST_F(LeavingLends, StaysAsLongAsItsMemoryIsNeeded) {
  Begin(Asked(), {false, "", true});
  EXPECT_TRUE(Has<Beat>());
  EXPECT_FALSE(Has<Say>()) << "it may be over in a moment";
  now_ += 1'000;
  On(Tick{""});
  ASSERT_TRUE(Has<Say>());
  EXPECT_EQ(Find<Say>()->text,
            "checkpoint: other nodes read what they go on from in this node's memory, for up to 19 s; a second signal "
            "ends that");
  now_ += 1'000;
  On(Tick{""});
  EXPECT_TRUE(Has<Beat>());
  EXPECT_FALSE(Has<Say>());
  On(StorageIdle{});
  ASSERT_TRUE(Has<Depart>());
  EXPECT_EQ(Find<Depart>()->exit_code, 143);
  EXPECT_EQ(NextDeadline(state_), kNever);
}

TEST_F(LeavingLends, ButNotForLongerThanAPlannedChangeMayTake) {
  Begin(Asked(), {false, "", true});
  now_ += 19'999;
  On(Tick{""});
  EXPECT_FALSE(Has<Depart>());
  EXPECT_EQ(NextDeadline(state_), now_ + 1);
  ++now_;
  On(Tick{""});
  EXPECT_TRUE(Has<Depart>());
  EXPECT_FALSE(Has<Warn>()) << "storage has nothing to do with it";
}

TEST_F(LeavingLends, StorageAndReadersAreWaitedForTogether) {
  Begin(Asked(), {true, "step 3", true});
  now_ += 7'000;
  On(Tick{"step 3"});
  EXPECT_FALSE(Has<Depart>()) << "it is here for the readers, and storage has the time";
  On(StorageIdle{});
  EXPECT_TRUE(Has<Depart>());

  state_ = State();
  state_.options = {30'000, 2, 20'000};
  Begin(Asked(), {true, "step 3", true});
  now_ += 20'000;
  On(Tick{"step 3"});
  EXPECT_FALSE(Has<Depart>()) << "storage may take longer";
  State stored = state_;
  std::swap(stored, state_);
  now_ += 1'000;
  On(Tick{""});
  EXPECT_TRUE(Has<Depart>()) << "the readers have had their time";
  EXPECT_FALSE(Has<Warn>());
  std::swap(stored, state_);
  now_ += 9'000;
  On(Tick{"step 3"});
  EXPECT_TRUE(Has<Depart>());
  EXPECT_TRUE(Has<Warn>());
}

TEST_F(LeavingLends, ASecondSignalOrAMasterThatIsGoneEndsIt) {
  Begin(Asked(), {false, "", true});
  On(AskedAgain{});
  EXPECT_TRUE(Has<Depart>());

  state_ = State();
  Begin(Asked(), {false, "", true});
  On(StreamBroken{""});
  EXPECT_TRUE(Has<Depart>()) << "nobody would say who still reads";
}

TEST_F(Leaving, WithoutTimeForStorageItGoesAtOnce) {
  state_.options.stop_timeout_ms = 0;
  Begun begun = Member();
  begun.asked = true;
  Begin(begun, {true, "step 3"});
  EXPECT_TRUE(Has<Warn>());
  EXPECT_TRUE(Has<Depart>());
}

TEST_F(Leaving, WhoAsksTwiceDoesNotWaitForStorage) {
  On(AskedAgain{});  // the first time is the core's
  EXPECT_TRUE(last_.empty());
  Begin(Member(), {true, "step 3"});
  On(AskedAgain{});
  EXPECT_TRUE(Has<Depart>());
  On(AskedAgain{});
  On(StorageIdle{});
  EXPECT_TRUE(last_.empty());  // once
}

TEST_F(Leaving, WhoseStreamBreaksDoesNotWaitForTheMastersWord) {
  On(StreamBroken{""});  // while it was a member: the core's
  EXPECT_TRUE(last_.empty());
  Begin(Member(), {true, "step 3"});
  On(StreamBroken{"step 4"});
  ASSERT_TRUE(Has<Warn>());
  EXPECT_EQ(Find<Warn>()->text,
            "checkpoint: whether storage takes step 4 is not known: the stream to the master has broken");
  EXPECT_TRUE(Has<Depart>());
  EXPECT_TRUE(Has<CloseStream>());
  EXPECT_EQ(NextDeadline(state_), kNever);
  On(StreamBroken{"step 4"});
  EXPECT_TRUE(last_.empty());  // once

  state_ = State();
  On(Member());
  On(StreamBroken{"step 3"});
  On(StorageSettled{true, "step 3"});
  EXPECT_TRUE(Has<Depart>());

  state_ = State();
  Begin(Member(), {true, ""});
  On(StreamBroken{""});
  EXPECT_TRUE(last_.empty()) << "it tidies up, which needs no master";
  now_ += kTidyMs;
  On(Tick{""});
  EXPECT_TRUE(Has<Depart>());
}

TEST_F(Leaving, WhatIsNotThereIsNotWaitedFor) {
  struct Row {
    const char* what;
    bool has_workers;
    bool has_stream;
    bool has_master;
    bool finished;
    uint32_t max_nodes;
    bool closes;  // the stream
    bool awaits;  // the master
  };
  for (const Row& row : {
           Row{"nothing was started", false, false, false, false, 2, false, false},
           Row{"no stream yet", true, false, false, false, 2, false, false},
           Row{"no stream yet, alone", true, false, true, false, 1, false, true},
           Row{"a member", true, true, false, true, 2, true, false},
           Row{"its master serves others", true, true, true, false, 2, true, false},
           Row{"its master has told of the end", true, true, true, true, 2, true, true},
           Row{"alone", true, true, true, false, 1, true, true},
       }) {
    state_ = State();
    state_.options = {7'000, row.max_nodes};
    Begin({1, false, true, row.finished, row.has_workers, row.has_stream, row.has_master, 1'000}, {});
    EXPECT_TRUE(Has<Depart>()) << row.what;
    EXPECT_EQ(Has<CloseStream>(), row.closes) << row.what;
    bool awaits = Has<AwaitMaster>();
    bool ends = Has<EndProgram>();
    if (row.closes) {
      EXPECT_FALSE(awaits || ends) << row.what;
      On(StreamClosed{});
      awaits = Has<AwaitMaster>();
      ends = Has<EndProgram>();
    }
    EXPECT_EQ(awaits, row.awaits) << row.what;
    EXPECT_EQ(ends, !row.awaits) << row.what;
  }
}

TEST_F(Leaving, AMasterThatWasKilledAtTheEndIsStartedForTheOthers) {
  struct Row {
    bool killed;
    bool finished;
    uint32_t max_nodes;
    bool starts;
  };
  for (const Row& row :
       {Row{true, true, 2, true}, Row{false, true, 2, false}, Row{true, true, 1, true}, Row{true, false, 1, false}}) {
    state_ = State();
    state_.options = {7'000, row.max_nodes};
    Begun begun = Member();
    begun.finished = row.finished;
    Begin(begun, {});
    On(StreamClosed{});
    ASSERT_TRUE(Has<AwaitMaster>());
    On(MasterAnswered{});  // of one that was started before
    EXPECT_TRUE(last_.empty());
    On(MasterEnded{row.killed});
    EXPECT_EQ(Has<StartMaster>(), row.starts);
    EXPECT_EQ(Has<EndProgram>(), !row.starts);
  }
}

TEST_F(Leaving, TheNextMasterIsWaitedForAMoment) {
  const auto start = [this] {
    state_ = State();
    state_.options = {7'000, 2};
    Begin(Member(), {});
    On(StreamClosed{});
    On(MasterEnded{true});
    ASSERT_TRUE(Has<StartMaster>());
  };
  start();
  On(MasterAnswered{});
  EXPECT_TRUE(Has<EndProgram>());
  start();
  EXPECT_EQ(NextDeadline(state_), now_ + kGoodbyeMs);
  now_ += kGoodbyeMs - 1;
  On(Tick{});
  EXPECT_TRUE(last_.empty());
  ++now_;
  On(Tick{});
  EXPECT_TRUE(Has<EndProgram>());
  EXPECT_EQ(NextDeadline(state_), kNever);
}

}  // namespace
}  // namespace phalanx::agent::leaving

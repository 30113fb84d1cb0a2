#include "agent/core/signals.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace phalanx::agent {
namespace {

TEST(Signals, WhatEachMeans) {
  struct Row {
    int signal;
    bool listed;
    SignalMeaning meaning;
  };
  for (const Row& row : {
           Row{SIGTERM, true, SignalMeaning::kStop},
           Row{SIGTSTP, false, SignalMeaning::kStandStill},
           Row{SIGTSTP, true, SignalMeaning::kStop},
           Row{SIGUSR1, false, SignalMeaning::kPassOn},
           Row{SIGUSR1, true, SignalMeaning::kStop},
           Row{SIGUSR2, false, SignalMeaning::kPassOn},
           Row{SIGWINCH, false, SignalMeaning::kPassOn},
           Row{SIGHUP, false, SignalMeaning::kStop},
       }) {
    EXPECT_EQ(MeaningOf(row.signal, row.listed), row.meaning) << row.signal << ", listed " << row.listed;
  }
}

TEST(Signals, HowAWorkersEndIsCalled) {
  CoreState state;
  state.workers[0];
  state.workers[1].doomed = true;
  EXPECT_STREQ(EndState(state, 0, 0, 0), "SUCCEEDED");
  EXPECT_STREQ(EndState(state, 0, 3, 0), "FAILED");
  EXPECT_STREQ(EndState(state, 0, 0, SIGKILL), "FAILED");
  EXPECT_STREQ(EndState(state, 1, 0, 0), "TERMINATED");
  EXPECT_STREQ(EndState(state, 1, 0, SIGTERM), "TERMINATED");
  EXPECT_STREQ(EndState(state, 2, 1, 0), "FAILED");  // of a round that is over
}

}  // namespace
}  // namespace phalanx::agent

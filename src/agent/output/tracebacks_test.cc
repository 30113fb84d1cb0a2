#include "agent/output/tracebacks.h"

#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

const std::string kTrace =
    "Traceback (most recent call last):\n"
    "  File \"train.py\", line 3, in <module>\n"
    "    import nothing\n"
    "ModuleNotFoundError: No module named 'nothing'\n";
const std::string kFolded =
    "[phalanx: rank 1 has the same traceback as rank 0: ModuleNotFoundError: No module named 'nothing']\n";

TEST(TracebacksTest, TheSecondRanksIsALine) {
  Tracebacks tracebacks;
  EXPECT_EQ(tracebacks.Feed(0, 0, "before\n" + kTrace + "behind\n"), "before\n" + kTrace + "behind\n");
  EXPECT_EQ(tracebacks.Feed(0, 1, "before\n" + kTrace + "behind\n"), "before\n" + kFolded + "behind\n");
}

TEST(TracebacksTest, HoweverItIsCut) {
  for (size_t chunk = 1; chunk < kTrace.size(); chunk += 7) {
    Tracebacks tracebacks;
    std::string first;
    std::string second;
    for (size_t at = 0; at < kTrace.size(); at += chunk) first += tracebacks.Feed(0, 0, kTrace.substr(at, chunk));
    for (size_t at = 0; at < kTrace.size(); at += chunk) second += tracebacks.Feed(0, 1, kTrace.substr(at, chunk));
    EXPECT_EQ(first, kTrace) << chunk;
    EXPECT_EQ(second, kFolded) << chunk;
  }
}

TEST(TracebacksTest, TorchsPrefixAndATerminalsEndsOfLinesDoNotCount) {
  std::string ranked;
  std::string text = kTrace;
  for (size_t end = text.find('\n'); end != std::string::npos; end = text.find('\n')) {
    ranked += "[rank1]: " + text.substr(0, end) + "\r\n";
    text.erase(0, end + 1);
  }
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace);
  EXPECT_EQ(tracebacks.Feed(0, 1, ranked), kFolded);
}

TEST(TracebacksTest, WhatDiffersIsShownWhole) {
  const std::string other = kTrace.substr(0, kTrace.rfind("ModuleNot")) + "KeyError: 'lr'\n";
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace);
  EXPECT_EQ(tracebacks.Feed(0, 1, other), other);
  EXPECT_EQ(tracebacks.Feed(0, 2, other), "[phalanx: rank 2 has the same traceback as rank 1: KeyError: 'lr']\n");
  EXPECT_EQ(tracebacks.Feed(0, 3, kTrace + other).find("[phalanx: rank 3"), 0U);
}

TEST(TracebacksTest, ARankThatSaysTheSameAgainIsShownAgain) {
  Tracebacks tracebacks;
  EXPECT_EQ(tracebacks.Feed(0, 0, kTrace + kTrace), kTrace + kTrace);
}

TEST(TracebacksTest, AnotherLifeBeginsAnew) {
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace);
  EXPECT_EQ(tracebacks.Feed(1, 1, kTrace), kTrace);
  EXPECT_EQ(tracebacks.Feed(1, 0, kTrace).find("[phalanx: rank 0 has the same traceback as rank 1"), 0U);
}

TEST(TracebacksTest, WhatWasCutOffIsShownAtTheEnd) {
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace);
  const std::string half = kTrace.substr(0, kTrace.size() / 2);
  EXPECT_EQ(tracebacks.Feed(0, 1, half), "");
  EXPECT_EQ(tracebacks.End(0, 1), half);
  EXPECT_EQ(tracebacks.End(0, 1), "");
  EXPECT_EQ(tracebacks.End(7, 1), "");
}

TEST(TracebacksTest, NothingElseIsHeld) {
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace);
  EXPECT_EQ(tracebacks.Feed(0, 1, "50%|###  |\r"), "50%|###  |\r");
  EXPECT_EQ(tracebacks.Feed(0, 1, "60%|###  |\r"), "60%|###  |\r");
  EXPECT_EQ(tracebacks.Feed(0, 1, "\nTrain loss"), "\nTrain loss") << "no beginning of a traceback";
  EXPECT_EQ(tracebacks.Feed(0, 1, " 1.0\n"), " 1.0\n");
  const std::string bar(3 * Tracebacks::kMaxBytes, '.');
  EXPECT_EQ(tracebacks.Feed(0, 1, bar), bar);
  EXPECT_EQ(tracebacks.Feed(0, 1, bar), bar);
  EXPECT_EQ(tracebacks.Feed(0, 1, "\n" + kTrace), "\n" + kFolded);
}

TEST(TracebacksTest, LongOnesAreNotCompared) {
  std::string deep = "Traceback (most recent call last):\n";
  for (size_t i = 0; i < Tracebacks::kMaxLines; ++i) deep += "  frame\n";
  deep += "RecursionError: too deep\n";
  Tracebacks tracebacks;
  EXPECT_EQ(tracebacks.Feed(0, 0, deep), deep);
  EXPECT_EQ(tracebacks.Feed(0, 1, deep) + tracebacks.End(0, 1), deep);
}

TEST(TracebacksTest, AnotherOneStillGoingOnIsNoReasonToWait) {
  Tracebacks tracebacks;
  const size_t cut = kTrace.find("    import");
  tracebacks.Feed(0, 0, kTrace.substr(0, cut));
  EXPECT_EQ(tracebacks.Feed(0, 1, kTrace), kTrace);
  EXPECT_EQ(tracebacks.Feed(0, 0, kTrace.substr(cut)), kTrace.substr(cut));
}

}  // namespace
}  // namespace phalanx::agent

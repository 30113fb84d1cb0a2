#include "agent/output/tracebacks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

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

const size_t kCut = kTrace.find("    import");

TEST(TracebacksTest, TheQuickerRankWaitsForTheFirst) {
  Tracebacks tracebacks;
  EXPECT_EQ(tracebacks.Feed(0, 0, kTrace.substr(0, kCut)), kTrace.substr(0, kCut));
  EXPECT_EQ(tracebacks.Feed(0, 1, kTrace + "behind\npart"), "");
  EXPECT_EQ(tracebacks.Feed(0, 1, " of a line"), "");
  EXPECT_EQ(tracebacks.Feed(0, 0, kTrace.substr(kCut)), kTrace.substr(kCut) + kFolded + "behind\npart of a line");
  EXPECT_EQ(tracebacks.Feed(0, 1, "\n"), "\n");
}

// Line by line, in any order: each is shown whole or folded, and none in the midst of another.
TEST(TracebacksTest, ThreeAtTheSameTime) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < kTrace.size(); at = kTrace.find('\n', at) + 1) {
    lines.push_back(kTrace.substr(at, kTrace.find('\n', at) + 1 - at));
  }
  for (unsigned order = 0; order < 20'000; ++order) {
    Tracebacks tracebacks;
    std::string shown;
    size_t next[3] = {0, 0, 0};
    unsigned choice = order * 2'654'435'761U;
    for (size_t left = 3 * lines.size(); left > 0; choice = choice * 1'664'525U + 1'013'904'223U) {
      const int rank = static_cast<int>((choice >> 16) % 3);
      if (next[rank] == lines.size()) continue;
      shown += tracebacks.Feed(0, rank, lines[next[rank]++]);
      if (next[rank] == lines.size()) shown += tracebacks.End(0, rank);
      --left;
    }
    ASSERT_EQ(shown.substr(0, kTrace.size()), kTrace) << order;
    const std::string rest = shown.substr(kTrace.size());
    ASSERT_EQ(std::count(rest.begin(), rest.end(), '\n'), 2) << shown;
    ASSERT_EQ(rest.find("Traceback"), std::string::npos) << shown;
  }
}

TEST(TracebacksTest, WhoHasWaitedIsShownWholeWhereTheFirstWritesSomethingElse) {
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace.substr(0, kCut));
  EXPECT_EQ(tracebacks.Feed(0, 1, kTrace), "");
  EXPECT_EQ(tracebacks.End(0, 1), "") << "it still waits";
  EXPECT_EQ(tracebacks.Feed(0, 0, "    other\n"), "    other\n" + kTrace);
  EXPECT_EQ(tracebacks.Feed(0, 0, "KeyError: 1\n"), "KeyError: 1\n");
  EXPECT_EQ(tracebacks.Feed(0, 2, kTrace).find("[phalanx: rank 2 has the same traceback as rank 1"), 0U);
}

TEST(TracebacksTest, WhoHasWaitedIsShownWholeWhereTheFirstEnds) {
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace.substr(0, kCut + 3));
  EXPECT_EQ(tracebacks.Feed(0, 1, kTrace + "behind\n"), "");
  EXPECT_EQ(tracebacks.End(0, 0), kTrace + "behind\n");
  EXPECT_EQ(tracebacks.Feed(0, 1, "more\n"), "more\n");
}

TEST(TracebacksTest, NobodyWaitsForALineThatIsTooLong) {
  const std::string frames = kTrace.substr(0, kTrace.rfind("ModuleNot"));
  const std::string words = "ValueError: " + std::string(Tracebacks::kMaxBytes, '.');
  Tracebacks tracebacks;
  EXPECT_EQ(tracebacks.Feed(0, 0, frames), frames);
  EXPECT_EQ(tracebacks.Feed(0, 1, kTrace), "");
  EXPECT_EQ(tracebacks.Feed(0, 0, words), words + kTrace);
  EXPECT_EQ(tracebacks.Feed(0, 0, "\n") + tracebacks.End(0, 0), "\n");
  EXPECT_EQ(tracebacks.Feed(0, 2, kTrace).find("[phalanx: rank 2 has the same traceback as rank 1"), 0U);
  const std::string other = frames + "KeyError: 'lr'\n";
  EXPECT_EQ(tracebacks.Feed(0, 3, other) + tracebacks.End(0, 3), other);
}

TEST(TracebacksTest, WhoWaitsHoldsNoMoreThanSoMuch) {
  Tracebacks tracebacks;
  tracebacks.Feed(0, 0, kTrace.substr(0, kCut));
  const std::string words = std::string(Tracebacks::kMaxBytes + 1, '.') + "\n";
  EXPECT_EQ(tracebacks.Feed(0, 1, kTrace), "");
  EXPECT_EQ(tracebacks.Feed(0, 1, words), kTrace + words);
  EXPECT_EQ(tracebacks.Feed(0, 0, kTrace.substr(kCut)), kTrace.substr(kCut));
}

}  // namespace
}  // namespace phalanx::agent

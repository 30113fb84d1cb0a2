#include "simulation/network.h"

#include <gtest/gtest.h>

#include <vector>

#include "simulation/machine.h"

namespace phalanx::simulation {
namespace {

class NetworkTest : public ::testing::Test {
 protected:
  void SendMany(StreamId stream, int first, int count) {
    for (int i = first; i < first + count; ++i) {
      network_.Send(stream, Way::kUp, [this, i] { arrived_.push_back(i); });
    }
  }
  void RunUntil(Micros when) {
    bool due = false;
    queue_.At(when, [&due] { due = true; });
    while (!due) queue_.ServeNext();
  }
  static std::vector<int> UpTo(int count) {
    std::vector<int> numbers(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) numbers[static_cast<size_t>(i)] = i;
    return numbers;
  }

  EventQueue queue_;
  Network network_{queue_, 7, 2};
  std::vector<int> arrived_;
};

TEST_F(NetworkTest, OneStreamIsInOrderWhateverTheDelays) {
  network_.SetDelay(0, kMs, 50 * kMs);
  const StreamId stream = network_.Open(0);
  SendMany(stream, 0, 20);
  network_.SetDelay(0, 10, 0);  // faster from now on
  SendMany(stream, 20, 20);
  RunUntil(kSecond);
  EXPECT_EQ(arrived_, UpTo(40));
}

TEST_F(NetworkTest, TwoStreamsAreNot) {
  network_.SetDelay(0, 50 * kMs, 0);
  network_.SetDelay(1, kMs, 0);
  SendMany(network_.Open(0), 0, 1);
  SendMany(network_.Open(1), 1, 1);
  RunUntil(kSecond);
  EXPECT_EQ(arrived_, (std::vector<int>{1, 0}));
}

TEST_F(NetworkTest, AStalledWayHoldsWhatIsSentAndKeepsItsOrder) {
  const StreamId stream = network_.Open(0);
  SendMany(stream, 0, 2);
  network_.Stall(0, Way::kUp);
  network_.Stall(0, Way::kUp);
  SendMany(stream, 2, 3);
  bool down = false;
  network_.Send(stream, Way::kDown, [&down] { down = true; });
  RunUntil(kSecond);
  EXPECT_EQ(arrived_, UpTo(2));  // what was under way arrives
  EXPECT_TRUE(down);             // the other way carries
  EXPECT_EQ(network_.Held(stream, Way::kUp), 3U);
  network_.Heal(0, Way::kUp, 0);  // one of the two causes is over
  EXPECT_FALSE(network_.Carries(0, Way::kUp));
  network_.Heal(0, Way::kUp, 100 * kMs);
  SendMany(stream, 5, 2);
  RunUntil(2 * kSecond);
  EXPECT_EQ(arrived_, UpTo(7));
}

TEST_F(NetworkTest, ABreakIsHeardBehindWhatStillArrivesAndInPlaceOfWhatIsLost) {
  const StreamId kept = network_.Open(0);
  SendMany(kept, 0, 2);
  network_.Break(kept, Way::kUp, [this] { arrived_.push_back(100); });
  SendMany(kept, 2, 1);  // nobody takes it
  const StreamId lost = network_.Open(1);
  network_.SetDelay(1, 20 * kMs, 0);
  SendMany(lost, 10, 2);
  network_.Close(lost, Way::kUp);
  network_.Lose(lost, Way::kUp);
  network_.Break(lost, Way::kUp, [this] { arrived_.push_back(200); });
  RunUntil(kSecond);
  EXPECT_EQ(arrived_, (std::vector<int>{0, 1, 100, 200}));
}

TEST(Gate, WhatReachesAStoppedProcessReachesItLaterInOrder) {
  Gate gate;
  std::vector<int> done;
  gate.Stop();
  gate.Stop();
  gate.Pass([&] {
    done.push_back(1);
    gate.Pass([&] { done.push_back(3); });  // behind what waits
  });
  gate.Pass([&] { done.push_back(2); });
  gate.Go();
  EXPECT_TRUE(done.empty());
  gate.Go();
  EXPECT_EQ(done, (std::vector<int>{1, 2, 3}));
}

TEST(MachineClock, WhenReadsIsTheFirstMomentAtWhichItDoes) {
  for (const int64_t skew_ppm : {-100, -7, 0, 3, 100}) {
    for (const Instant instant : {1'000'001, 1'000'777, 90'000'000}) {
      const MachineClock clock(1'000'000'123, skew_ppm);
      const Micros when = clock.WhenReads(instant);
      EXPECT_EQ(clock.Read(when), instant);
      EXPECT_EQ(clock.Read(when - 1), instant - 1);
    }
  }
}

TEST(MachineClock, APausedMachineHasNotNoticed) {
  MachineClock clock(5 * kSecond, 0);
  const Instant before = clock.Read(kSecond);
  clock.StandStill(3 * kSecond);
  EXPECT_EQ(clock.Read(4 * kSecond), before);
}

}  // namespace
}  // namespace phalanx::simulation

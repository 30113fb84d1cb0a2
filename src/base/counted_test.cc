#include "base/counted.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace phalanx {
namespace {

TEST(Counted, AWalkCountsEachElement) {
  CountedVector<int> numbers({1, 2, 3, 4});
  int sum = 0;
  for (const int number : numbers) sum += number;
  EXPECT_EQ(sum, 10);
  EXPECT_EQ(numbers.visits(), 4U);
}

TEST(Counted, AWalkThatEndsEarlyCountsWhatItHasPassed) {
  const CountedVector<int> numbers({1, 2, 3, 4});
  EXPECT_TRUE(std::any_of(numbers.begin(), numbers.end(), [](int number) { return number == 3; }));
  EXPECT_EQ(numbers.visits(), 2U);
}

TEST(Counted, ASearchCountsTheLogarithm) {
  CountedMap<int, int> squares;
  for (int i = 0; i < 1'000; ++i) squares[i] = i * i;
  const uint64_t before = squares.visits();
  EXPECT_EQ(squares.at(31), 961);
  EXPECT_EQ(squares.visits() - before, 10U);
  EXPECT_TRUE(squares.find(1'000) == squares.end());
  EXPECT_EQ(squares.visits() - before, 20U);
}

TEST(Counted, MovingElementsLosesNoVisit) {
  CountedVector<int> first({1, 2, 3});
  CountedVector<int> second({4, 5});
  for (const int number : first) EXPECT_GT(number, 0);
  for (const int number : second) EXPECT_GT(number, 0);
  second = std::move(first);
  EXPECT_EQ(second.visits(), 5U);
  EXPECT_EQ(second.size(), 3U);
  const CountedVector<int> third(std::move(second));
  EXPECT_EQ(third.visits(), 5U);
}

TEST(Counted, AnElementKnowsItsPlace) {
  const CountedVector<int> numbers({7, 8, 9});
  EXPECT_EQ(numbers.IndexOf(numbers[2]), 2U);
}

}  // namespace
}  // namespace phalanx

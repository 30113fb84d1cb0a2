#include "elasticity/divisors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;

std::vector<uint64_t> Sorted(uint64_t number) {
  const Divisors divisors(Factorize(number));
  std::vector<uint64_t> sorted;
  for (size_t i = 0; i < divisors.size(); ++i) sorted.push_back(divisors[i]);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

TEST(Divisors, AreAllThatDivide) {
  for (uint64_t number = 1; number <= 3000; ++number) {
    std::vector<uint64_t> expected;
    for (uint64_t i = 1; i <= number; ++i) {
      if (number % i == 0) expected.push_back(i);
    }
    ASSERT_EQ(Sorted(number), expected) << number;
  }
}

TEST(Divisors, OfLargeNumbersComeFromTheirPrimes) {
  const auto factors = [](uint64_t number) {
    std::vector<uint64_t> all;
    for (const auto& [prime, exponent] : Factorize(number)) all.insert(all.end(), exponent, prime);
    return all;
  };
  EXPECT_THAT(factors(1ULL << 63), testing::Each(2));
  EXPECT_THAT(factors(9223372036854775783ULL), ElementsAre(9223372036854775783ULL));  // the largest prime below 2^63
  EXPECT_THAT(factors(3037000453ULL * 3037000493ULL), ElementsAre(3037000453ULL, 3037000493ULL));
  EXPECT_THAT(factors(2147483647ULL * 2147483647ULL), ElementsAre(2147483647ULL, 2147483647ULL));
  EXPECT_THAT(factors(1031ULL * 1033 * 1039 * 1049 * 1051), ElementsAre(1031, 1033, 1039, 1049, 1051));
  EXPECT_THAT(factors(3215031751ULL), ElementsAre(151, 751, 28351));  // passes weaker tests for primes
}

TEST(Divisors, KnowTheirPlaces) {
  const Divisors divisors(Factorize(720720));
  EXPECT_EQ(divisors.size(), 240U);
  for (size_t i = 0; i < divisors.size(); ++i) {
    EXPECT_EQ(divisors.IndexOf(divisors[i]), i);
    EXPECT_EQ(divisors[i] * divisors[divisors.size() - 1 - i], 720720U);
  }
}

TEST(Divisors, MarksGoToMultiples) {
  const Divisors divisors(Factorize(360));
  std::vector<uint8_t> marks(divisors.size());
  for (const uint64_t marked : {6, 20}) marks[divisors.IndexOf(marked)] = 1;
  divisors.MarkMultiples(&marks);
  for (size_t i = 0; i < divisors.size(); ++i) {
    const uint64_t d = divisors[i];
    EXPECT_EQ(marks[i] != 0, d % 6 == 0 || d % 20 == 0) << d;
  }
}

}  // namespace
}  // namespace phalanx::elasticity

#include "elasticity/divisors.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace phalanx::elasticity {
namespace {

constexpr uint64_t kTrialEnd = 1024;  // primes from here on are found by Pollard's method

uint64_t MultiplyModulo(uint64_t a, uint64_t b, uint64_t modulus) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(a) * b % modulus);
}

uint64_t PowerModulo(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t power = 1;
  for (base %= modulus; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) != 0) power = MultiplyModulo(power, base, modulus);
    base = MultiplyModulo(base, base, modulus);
  }
  return power;
}

// Miller and Rabin's test, with bases that are right about every number below 2^64. `number` is odd, and above them
// or prime to them.
bool IsPrime(uint64_t number) {
  const int twos = __builtin_ctzll(number - 1);
  for (const uint64_t base : {2ULL, 325ULL, 9375ULL, 28178ULL, 450775ULL, 9780504ULL, 1795265022ULL}) {
    if (base % number == 0) continue;
    uint64_t x = PowerModulo(base, (number - 1) >> twos, number);
    if (x == 1 || x == number - 1) continue;
    bool passes = false;
    for (int i = 1; i < twos && !passes; ++i) {
      x = MultiplyModulo(x, x, number);
      passes = x == number - 1;
    }
    if (!passes) return false;
  }
  return true;
}

// A factor of an odd composite number: Pollard's rho with Brent's cycle. Expected steps: the root of the smallest
// prime.
uint64_t FindFactor(uint64_t number) {
  constexpr uint64_t kBatch = 64;  // greatest common divisors are looked at so seldom
  for (uint64_t c = 1;; ++c) {
    const auto next = [&](uint64_t x) { return (MultiplyModulo(x, x, number) + c) % number; };
    uint64_t x = 2;
    uint64_t y = 2;
    uint64_t before = 2;
    uint64_t factor = 1;
    for (uint64_t lap = 1; factor == 1; lap *= 2) {
      x = y;
      for (uint64_t i = 0; i < lap; ++i) y = next(y);
      for (uint64_t done = 0; done < lap && factor == 1; done += kBatch) {
        before = y;
        uint64_t product = 1;
        for (uint64_t i = 0; i < std::min(kBatch, lap - done); ++i) {
          y = next(y);
          product = MultiplyModulo(product, x > y ? x - y : y - x, number);
        }
        factor = std::gcd(product, number);
      }
    }
    if (factor == number) {  // several factors met in one batch: one by one
      do {
        before = next(before);
        factor = std::gcd(x > before ? x - before : before - x, number);
      } while (factor == 1);
    }
    if (factor != number) return factor;
  }
}

void FindPrimes(uint64_t number, std::vector<uint64_t>* primes) {
  if (number < kTrialEnd * kTrialEnd || IsPrime(number)) {
    primes->push_back(number);
    return;
  }
  const uint64_t factor = FindFactor(number);
  FindPrimes(factor, primes);
  FindPrimes(number / factor, primes);
}

}  // namespace

void Factors::Add(uint64_t prime) {
  if (size_ == 0 || powers_[size_ - 1].prime != prime) powers_[size_++] = {prime, 0};
  ++powers_[size_ - 1].exponent;
}

size_t Factors::divisor_count() const {
  size_t count = 1;
  for (const PrimePower& factor : *this) count *= static_cast<size_t>(factor.exponent) + 1;
  return count;
}

Factors Factorize(uint64_t number) {
  Factors factors;
  for (uint64_t p = 2; p < kTrialEnd && p * p <= number; p += p == 2 ? 1 : 2) {
    for (; number % p == 0; number /= p) factors.Add(p);
  }
  if (number < kTrialEnd * kTrialEnd) {
    if (number > 1) factors.Add(number);
    return factors;
  }
  std::vector<uint64_t> primes;
  FindPrimes(number, &primes);
  std::sort(primes.begin(), primes.end());
  for (const uint64_t prime : primes) factors.Add(prime);
  return factors;
}

Divisors::Divisors(const Factors& factors) : factors_(factors) {
  values_.reserve(factors.divisor_count());
  values_.push_back(1);
  for (const auto& [prime, exponent] : factors_) {
    const size_t stride = values_.size();
    for (size_t i = 0; i < stride * static_cast<size_t>(exponent); ++i) values_.push_back(values_[i] * prime);
  }
}

size_t Divisors::IndexOf(uint64_t divisor) const {
  size_t index = 0;
  size_t stride = 1;
  for (const auto& [prime, exponent] : factors_) {
    for (; divisor % prime == 0; divisor /= prime) index += stride;
    stride *= static_cast<size_t>(exponent) + 1;
  }
  return index;
}

void Divisors::MarkMultiples(std::vector<uint8_t>* marks) const {
  size_t stride = 1;
  for (const auto& [prime, exponent] : factors_) {
    const size_t period = stride * (static_cast<size_t>(exponent) + 1);
    for (size_t begin = 0; begin < size(); begin += period) {
      for (size_t i = begin + stride; i < begin + period; ++i) (*marks)[i] |= (*marks)[i - stride];
    }
    stride = period;
  }
}

void Divisors::KeepAboveMarked(std::vector<uint8_t>* marks) const {
  std::vector<uint8_t> above(size());
  size_t stride = 1;
  for (const auto& [prime, exponent] : factors_) {
    const size_t period = stride * (static_cast<size_t>(exponent) + 1);
    for (size_t begin = 0; begin < size(); begin += period) {
      for (size_t i = begin + stride; i < begin + period; ++i) above[i] |= (*marks)[i - stride];
    }
    stride = period;
  }
  *marks = std::move(above);
}

}  // namespace phalanx::elasticity

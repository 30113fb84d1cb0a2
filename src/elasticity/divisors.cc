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

// A factor of an odd composite number, by Pollard's rho: expected steps are the root of the smallest prime. The
// greatest common divisor is taken of the product of some steps; where that hides all factors, of each step.
uint64_t FindFactor(uint64_t number) {
  for (uint64_t c = 1, batch = 64;; batch = 1) {
    const auto next = [&](uint64_t x) { return (MultiplyModulo(x, x, number) + c) % number; };
    uint64_t slow = 2;
    uint64_t fast = 2;
    uint64_t factor = 1;
    while (factor == 1) {
      uint64_t product = 1;
      for (uint64_t i = 0; i < batch; ++i) {
        slow = next(slow);
        fast = next(next(fast));
        product = MultiplyModulo(product, slow > fast ? slow - fast : fast - slow, number);
      }
      factor = std::gcd(product, number);
    }
    if (factor != number) return factor;
    if (batch == 1) ++c;
  }
}

void FindPrimes(uint64_t number, std::vector<uint64_t>* primes) {
  if (number < kTrialEnd * kTrialEnd || IsPrime(number)) {
    if (number > 1) primes->push_back(number);
    return;
  }
  const uint64_t factor = FindFactor(number);
  FindPrimes(factor, primes);
  FindPrimes(number / factor, primes);
}

}  // namespace

Factors Factorize(uint64_t number) {
  std::vector<uint64_t> primes;
  for (uint64_t p = 2; p < kTrialEnd && p * p <= number; p += p == 2 ? 1 : 2) {
    for (; number % p == 0; number /= p) primes.push_back(p);
  }
  FindPrimes(number, &primes);
  std::sort(primes.begin(), primes.end());
  Factors factors;
  for (const uint64_t prime : primes) {
    if (factors.empty() || factors.back().prime != prime) factors.push_back({prime, 0});
    ++factors.back().exponent;
  }
  return factors;
}

Divisors::Divisors(Factors factors) : factors_(std::move(factors)), values_{1} {
  for (const auto& [prime, exponent] : factors_) {
    const size_t stride = values_.size();
    for (size_t i = 0; i < stride * exponent; ++i) values_.push_back(values_[i] * prime);
  }
}

size_t Divisors::IndexOf(uint64_t divisor) const {
  size_t index = 0;
  size_t stride = 1;
  for (const auto& [prime, exponent] : factors_) {
    for (; divisor % prime == 0; divisor /= prime) index += stride;
    stride *= exponent + 1;
  }
  return index;
}

void Divisors::MarkMultiples(std::vector<uint8_t>* marks) const {
  size_t stride = 1;
  for (const auto& [prime, exponent] : factors_) {
    const size_t period = stride * (exponent + 1);
    for (size_t begin = 0; begin < size(); begin += period) {
      for (size_t i = begin + stride; i < begin + period; ++i) (*marks)[i] |= (*marks)[i - stride];
    }
    stride = period;
  }
}

}  // namespace phalanx::elasticity

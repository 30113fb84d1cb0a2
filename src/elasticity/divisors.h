// Prime factors and divisors of 64-bit numbers. Fast for any of them: no loop here is as long as the number is large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx::elasticity {

struct PrimePower {
  uint64_t prime;
  size_t exponent;
};
using Factors = std::vector<PrimePower>;  // ascending

// Of a number of 1 or more.
Factors Factorize(uint64_t number);

// All divisors of a number, numbered so that the divisor next to another by one prime is a fixed stride away, and that
// the number divided by divisor i is divisor size() - 1 - i.
class Divisors {
 public:
  explicit Divisors(Factors factors);

  size_t size() const { return values_.size(); }
  uint64_t operator[](size_t index) const { return values_[index]; }
  // Of a number that is a divisor.
  size_t IndexOf(uint64_t divisor) const;

  // Marks are one byte for each divisor. Marks all multiples of what is marked.
  void MarkMultiples(std::vector<uint8_t>* marks) const;

 private:
  Factors factors_;
  std::vector<uint64_t> values_;
};

}  // namespace phalanx::elasticity

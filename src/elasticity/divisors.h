// Prime factors and divisors of 64-bit numbers. Fast for any of them: no loop here is as long as the number is large.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx::elasticity {

struct PrimePower {
  uint64_t prime;
  int exponent;
};

// Prime factors, ascending. No 64-bit number has more of them.
class Factors {
 public:
  const PrimePower* begin() const { return powers_.data(); }
  const PrimePower* end() const { return powers_.data() + size_; }
  size_t divisor_count() const;
  // Above all that are there, or equal to the last.
  void Add(uint64_t prime);

 private:
  std::array<PrimePower, 15> powers_;
  size_t size_ = 0;
};

// Of a number of 1 or more.
Factors Factorize(uint64_t number);

// All divisors of a number, numbered so that the divisor next to another by one prime is a fixed stride away, and that
// the number divided by divisor i is divisor size() - 1 - i.
class Divisors {
 public:
  explicit Divisors(const Factors& factors);

  size_t size() const { return values_.size(); }
  uint64_t operator[](size_t index) const { return values_[index]; }
  // Of a number that is a divisor.
  size_t IndexOf(uint64_t divisor) const;

  // Marks are one byte for each divisor. Marks all multiples of what is marked.
  void MarkMultiples(std::vector<uint8_t>* marks) const;
  // Leaves marked what has, by one prime, a marked divisor below it: the multiples of what was marked at first, without
  // that itself.
  void KeepAboveMarked(std::vector<uint8_t>* marks) const;

 private:
  Factors factors_;
  std::vector<uint64_t> values_;
};

}  // namespace phalanx::elasticity

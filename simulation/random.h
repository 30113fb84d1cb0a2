// The one source of chance: a seed means the same numbers on every machine and with every compiler, which the standard
// library's distributions do not promise. xoshiro256**, seeded by splitmix64 (both are in the public domain).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace phalanx::simulation {

class Random {
 public:
  // `stream` tells generators of one seed apart, so that what one part draws does not move another's numbers.
  explicit Random(uint64_t seed, uint64_t stream = 0) {
    uint64_t x = seed * 0x9E3779B97F4A7C15ULL + stream * 0xD1B54A32D192ED03ULL;
    for (uint64_t& word : state_) word = SplitMix(x);
  }

  uint64_t Next() {
    const uint64_t result = Rotate(state_[1] * 5, 7) * 9;
    const uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = Rotate(state_[3], 45);
    return result;
  }

  // 0 <= result < bound; bound > 0. The slight bias of the remainder is of no interest here.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // low <= result <= high.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }
  bool OneIn(uint64_t n) { return Below(n) == 0; }
  int64_t OneOf(std::initializer_list<int64_t> values) { return values.begin()[Below(values.size())]; }

 private:
  static uint64_t Rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
  static uint64_t SplitMix(uint64_t& x) {
    uint64_t z = (x += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }

  std::array<uint64_t, 4> state_{};
};

}  // namespace phalanx::simulation

// FNV-1a of 64 bits (http://www.isthe.com/chongo/tech/comp/fnv): the same on every machine and in every version, so it
// may stand in files and names. Not against an adversary.
#pragma once

#include <cstdint>
#include <string_view>

namespace phalanx {

class Fnv1a {
 public:
  constexpr Fnv1a& Add(std::string_view bytes) {
    for (const char byte : bytes) AddByte(static_cast<uint8_t>(byte));
    return *this;
  }
  // Its eight bytes, the lowest first.
  constexpr Fnv1a& Add(uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) AddByte(static_cast<uint8_t>(value));
    return *this;
  }
  constexpr uint64_t value() const { return hash_; }

 private:
  constexpr void AddByte(uint8_t byte) { hash_ = (hash_ ^ byte) * 0x100000001b3; }

  uint64_t hash_ = 0xcbf29ce484222325;
};

}  // namespace phalanx

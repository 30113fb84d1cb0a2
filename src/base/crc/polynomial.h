// Polynomials over GF(2) modulo that of CRC-32, written as the CRC is: bit 31 is x^0. Pure.
#pragma once

#include <cstdint>

namespace phalanx {

constexpr uint32_t kOne = 0x80000000;

constexpr uint32_t TimesX(uint32_t value) { return (value >> 1) ^ ((value & 1) != 0 ? 0xEDB88320U : 0U); }

constexpr uint32_t Times(uint32_t a, uint32_t b) {
  uint32_t product = 0;
  for (uint32_t bit = kOne; bit != 0; bit >>= 1) {
    if ((a & bit) != 0) product ^= b;
    b = TimesX(b);
  }
  return product;
}

// x^exponent.
constexpr uint32_t PowerOfX(uint64_t exponent) {
  uint32_t result = kOne;
  for (uint32_t square = TimesX(kOne); exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = Times(result, square);
    square = Times(square, square);
  }
  return result;
}

}  // namespace phalanx

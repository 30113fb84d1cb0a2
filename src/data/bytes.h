// Numbers in files: little-endian, at any place. Sums and products that notice when they do not fit.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

namespace phalanx::data {

static_assert(std::endian::native == std::endian::little, "files are little-endian, and so are we");

template <typename T>
T Load(const void* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <typename T>
void Append(std::string& to, T value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

constexpr uint64_t Padded(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Adds what comes, and remembers whether it ever went past 2^63 - 1, which is what a file can hold.
class Sum {
 public:
  Sum& Add(uint64_t value) {
    if (__builtin_add_overflow(value_, value, &value_)) fits_ = false;
    return *this;
  }
  Sum& AddProduct(uint64_t a, uint64_t b) {
    uint64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) fits_ = false;
    return Add(product);
  }
  // Up to the next multiple of 8.
  Sum& Pad() { return Add((8 - value_ % 8) % 8); }

  bool fits() const { return fits_ && value_ <= INT64_MAX; }
  uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0;
  bool fits_ = true;
};

}  // namespace phalanx::data

// The names of the records in which torch's zip files have the data of tensors: "archive/data/<key>". Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace phalanx::checkpoint {

constexpr char kTensorPrefix[] = "archive/data/";
constexpr uint64_t kTensorPrefixBytes = sizeof kTensorPrefix - 1;

// Without an allocation.
class TensorName {
 public:
  explicit TensorName(uint64_t key) {
    std::memcpy(text_.data(), kTensorPrefix, kTensorPrefixBytes);
    std::array<char, 20> digits;
    size_t n = 0;
    for (; n == 0 || key != 0; key /= 10) digits[n++] = static_cast<char>('0' + key % 10);
    bytes_ = kTensorPrefixBytes;
    while (n > 0) text_[bytes_++] = digits[--n];
  }
  std::string_view view() const { return {text_.data(), bytes_}; }

 private:
  std::array<char, kTensorPrefixBytes + 20> text_;
  size_t bytes_ = 0;
};

inline uint64_t TensorNameBytes(uint64_t key) {
  uint64_t digits = 1;
  for (; key >= 10; key /= 10) ++digits;
  return kTensorPrefixBytes + digits;
}

}  // namespace phalanx::checkpoint

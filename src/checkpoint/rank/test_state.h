// For tests: the state of a rank that has come to a step, such that a mixture of two steps shows in every word of it.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::checkpoint {

inline const std::vector<uint64_t>& TestStateBytes() {
  static const std::vector<uint64_t> bytes = {1 << 20, 4, 300001, 0, 700 << 10, 64, 262144};
  return bytes;
}
constexpr std::string_view kTestPickle = "no pickle: nobody loads this";

inline void FillTestRecord(int64_t step, std::string* record) {
  for (size_t at = 0; at + sizeof step <= record->size(); at += sizeof step) {
    std::memcpy(record->data() + at, &step, sizeof step);
  }
  const size_t whole = record->size() / sizeof step * sizeof step;
  std::memcpy(record->data() + whole, &step, record->size() - whole);
}

}  // namespace phalanx::checkpoint

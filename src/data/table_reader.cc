#include "data/table_reader.h"

#include <algorithm>

#include "data/bytes.h"

namespace phalanx::data {
namespace {

constexpr uint64_t kChunk = 8 << 10;  // numbers

template <typename T>
void Widen(const std::vector<uint8_t>& raw, std::vector<int64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = Load<T>(raw.data() + i * sizeof(T));
}

// Signed ones.
void WidenBytes(const std::vector<uint8_t>& raw, std::vector<int64_t>& numbers) {
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = raw[i] < 0x80 ? raw[i] : raw[i] - 0x100;
}

}  // namespace

Result<std::span<const int64_t>> TableReader::Next() {
  const uint64_t n = std::min(kChunk, table_.count - done_);
  raw_.resize(n * table_.element_bytes);
  numbers_.resize(n);
  PHX_TRY_DONE(file_->Read(table_.at + done_ * table_.element_bytes, raw_.data(), raw_.size()));
  if (table_.element_bytes == 1) {
    WidenBytes(raw_, numbers_);
  } else if (table_.element_bytes == 4) {
    Widen<int32_t>(raw_, numbers_);
  } else {
    Widen<int64_t>(raw_, numbers_);
  }
  done_ += n;
  return std::span<const int64_t>(numbers_);
}

}  // namespace phalanx::data

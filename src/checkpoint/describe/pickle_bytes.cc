#include "checkpoint/describe/pickle_bytes.h"

#include <algorithm>

namespace phalanx::checkpoint {

bool PickleBytes::Begin(size_t room) {
  bytes_ = PyBytes_FromStringAndSize(nullptr, static_cast<ptrdiff_t>(std::max(room, 2 * kRoom)));
  if (bytes_ == nullptr) return false;
  begin_ = at_ = reinterpret_cast<uint8_t*>(PyBytes_AsString(bytes_));
  end_ = begin_ + PyBytes_Size(bytes_);
  return true;
}

bool PickleBytes::Grow(size_t room) {
  const size_t written = at_ - begin_;
  if (_PyBytes_Resize(&bytes_, static_cast<ptrdiff_t>(2 * (written + room))) != 0) return false;
  begin_ = reinterpret_cast<uint8_t*>(PyBytes_AsString(bytes_));
  at_ = begin_ + written;
  end_ = begin_ + PyBytes_Size(bytes_);
  return true;
}

PyObject* PickleBytes::Finish() {
  if (_PyBytes_Resize(&bytes_, at_ - begin_) != 0) return nullptr;
  return std::exchange(bytes_, nullptr);
}

void PickleBytes::PutInt(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value <= UINT8_MAX) return PutNumber(kOpBinInt1, bits, 1);
  if (value >= 0 && value <= UINT16_MAX) return PutNumber(kOpBinInt2, bits, 2);
  if (value >= INT32_MIN && value <= INT32_MAX) return PutNumber(kOpBinInt, bits, 4);
  int bytes = 5;  // as few as leave the sign in the highest bit
  while (bytes < 8 && (value >> (8 * bytes - 1)) != (value < 0 ? -1 : 0)) ++bytes;
  Put(kOpLong1);
  PutNumber(static_cast<uint8_t>(bytes), bits, bytes);
}

void PickleBytes::PutFloat(double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  PutNumber(kOpBinFloat, __builtin_bswap64(bits), 8);
}

void PickleBytes::PutGet(uint32_t memo) {
  if (memo <= UINT8_MAX) return PutNumber(kOpBinGet, memo, 1);
  PutNumber(kOpLongBinGet, memo, 4);
}

void PickleBytes::PutPut(uint32_t memo) {
  if (memo <= UINT8_MAX) return PutNumber(kOpBinPut, memo, 1);
  PutNumber(kOpLongBinPut, memo, 4);
}

void PickleBytes::PutShortText(const char* text, size_t bytes) {
  PutNumber(kOpBinUnicode, bytes, 4);
  std::memcpy(at_, text, bytes);
  at_ += bytes;
}

bool PickleBytes::Write(const void* data, size_t bytes) {
  if (!Ensure(bytes + kRoom)) return false;
  std::memcpy(at_, data, bytes);
  at_ += bytes;
  return true;
}

}  // namespace phalanx::checkpoint

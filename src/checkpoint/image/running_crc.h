// The CRC of an image, or of a part of it, without reading long records whose own CRC is known.
#pragma once

#include <cstdint>

#include "base/crc/crc32.h"

namespace phalanx::checkpoint {

constexpr uint64_t kJoinFrom = 64 << 10;  // shorter records are read once more sooner than joined by their CRC

// The CRC of everything up to here; long records are joined by the CRC they have.
class RunningCrc {
 public:
  explicit RunningCrc(const uint8_t* image, uint64_t begin = 0) : image_(image), at_(begin) {}
  void Read(uint64_t end) {
    crc32_ = Crc32(crc32_, image_ + at_, end - at_);
    at_ = end;
  }
  void Pass(uint64_t bytes, uint32_t crc32) {
    crc32_ = joiner_.Join(crc32_, crc32, bytes);
    at_ += bytes;
  }
  uint32_t value() const { return crc32_; }

 private:
  const uint8_t* image_;
  uint64_t at_;
  uint32_t crc32_ = 0;
  Crc32Joiner joiner_;
};

}  // namespace phalanx::checkpoint

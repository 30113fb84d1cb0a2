// The fixed parts of a zip file, and numbers at any place in little endian. Pure.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace phalanx::checkpoint {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are in memory");

constexpr uint32_t kLocalSignature = 0x04034B50;
constexpr uint32_t kDescriptorSignature = 0x08074B50;
constexpr uint32_t kEntrySignature = 0x02014B50;
constexpr uint32_t kEnd64Signature = 0x06064B50;
constexpr uint32_t kLocatorSignature = 0x07064B50;
constexpr uint32_t kEndSignature = 0x06054B50;

constexpr uint64_t kLocalBytes = 30;
constexpr uint64_t kEntryBytes = 46;
constexpr uint64_t kEnd64Bytes = 56;
constexpr uint64_t kLocatorBytes = 20;
constexpr uint64_t kEndBytes = 22;
constexpr uint64_t kEndingBytes = kEnd64Bytes + kLocatorBytes + kEndBytes;

constexpr uint32_t kMax32 = 0xFFFFFFFF;  // "look into the zip64 block"
constexpr uint16_t kMax16 = 0xFFFF;
constexpr uint16_t kZip64Id = 0x0001;
constexpr uint16_t kPaddingId = 0x4246;

inline uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

template <typename T>
inline T Get(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <typename T>
inline void Put(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

}  // namespace phalanx::checkpoint

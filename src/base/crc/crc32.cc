#include "base/crc/crc32.h"

#include <libdeflate.h>

#include <algorithm>
#include <cstring>

#include "base/crc/fold.h"
#include "base/crc/polynomial.h"

// A save must cost little more than its memcpy. libdeflate's CRC alone takes as long as that; where the processor
// multiplies 512 bits at once, a loop of our own that copies and folds in one pass costs next to nothing beside it.

namespace phalanx {
namespace {

constexpr uint64_t kFoldFrom = 1024;         // below, the start of the wide loop costs more than it brings
constexpr uint64_t kStreamFrom = 64 << 10;   // a store that goes past the cache does not drive others out of it
constexpr uint64_t kCachedPiece = 32 << 10;  // still in the first cache when it is read a second time
constexpr uint64_t kPeriod = 0xFFFFFFFF;     // x^(2^32 - 1) is x^0
constexpr uint64_t kLine = 64;

// The CRC is of the copy: somebody may write the source meanwhile.
uint32_t CopyInPieces(uint32_t crc, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  while (bytes > 0) {
    const uint64_t piece = std::min(bytes, kCachedPiece);
    std::memcpy(to, from, piece);
    crc = libdeflate_crc32(crc, to, piece);
    to += piece;
    from += piece;
    bytes -= piece;
  }
  return crc;
}

}  // namespace

uint32_t Crc32(uint32_t crc, const void* data, uint64_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  if (bytes == 0) return crc;
  if (bytes >= kFoldFrom && CanFold()) {
    const uint64_t whole = bytes / kFoldBytes * kFoldBytes;
    crc = ~Fold(~crc, nullptr, from, whole, FoldStores::kNone);
    from += whole;
    bytes -= whole;
  }
  return libdeflate_crc32(crc, from, bytes);
}

uint32_t CopyCrc32(uint32_t crc, void* to, const void* from, uint64_t bytes) {
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  if (bytes < kFoldFrom || !CanFold()) return CopyInPieces(crc, out, in, bytes);
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
  crc = CopyInPieces(crc, out, in, head);
  const uint64_t whole = (bytes - head) / kFoldBytes * kFoldBytes;
  const bool stream = whole >= kStreamFrom;
  crc = ~Fold(~crc, out + head, in + head, whole, stream ? FoldStores::kStreaming : FoldStores::kCached);
  if (stream) StoreFence();
  return CopyInPieces(crc, out + head + whole, in + head + whole, bytes - head - whole);
}

uint32_t Crc32Joiner::Join(uint32_t first, uint32_t second, uint64_t second_bytes) {
  if (second_bytes != bytes_) {
    bytes_ = second_bytes;
    shift_ = PowerOfX(second_bytes % kPeriod * 8);
  }
  return Times(shift_, first) ^ second;
}

}  // namespace phalanx

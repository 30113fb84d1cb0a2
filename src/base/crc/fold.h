// The inner loop of a CRC with 512-bit carry-less multiplications, for processors that have them.
#pragma once

#include <cstdint>

namespace phalanx {

constexpr uint64_t kFoldBytes = 256;  // in one turn

enum class FoldStores { kNone, kCached, kStreaming };

// Whether this processor, and its kernel, can.
bool CanFold();

// The CRC's register (without the inversions at either end) after `bytes` more, a multiple of kFoldBytes above 0.
// Copies them to `to` on the way if asked; kStreaming wants `to` aligned to 64 and a fence afterwards. Only if
// CanFold().
uint32_t Fold(uint32_t state, uint8_t* to, const uint8_t* from, uint64_t bytes, FoldStores stores);

// Orders streaming stores before the stores that follow.
void StoreFence();

}  // namespace phalanx

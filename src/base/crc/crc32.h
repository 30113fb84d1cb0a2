// CRC-32 as zip files have it (polynomial 0x04C11DB7, reflected), and the same in the pass that copies. Pure but for
// the memory given.
#pragma once

#include <cstdint>

namespace phalanx {

// Of `data`, going on from `crc`, the value of what stood before it (0: nothing did).
uint32_t Crc32(uint32_t crc, const void* data, uint64_t bytes);

// Copies, and is Crc32 of the copy, also where another thread writes the source meanwhile. Large parts may go past the
// cache; what this thread stores later is seen by others after the copy.
uint32_t CopyCrc32(uint32_t crc, void* to, const void* from, uint64_t bytes);

// Joins values of neighbours: those of a part and of what follows it give that of both. Cheap while the length of what
// follows stays the same.
class Crc32Joiner {
 public:
  uint32_t Join(uint32_t first, uint32_t second, uint64_t second_bytes);

 private:
  uint64_t bytes_ = 0;
  uint32_t shift_ = 0x80000000;  // x^(8 bytes_), here x^0
};

}  // namespace phalanx

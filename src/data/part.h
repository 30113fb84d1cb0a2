// The header of a part file, and where its tables lie (docs/formats/data-parts.md). Pure.
#pragma once

#include <array>
#include <cstdint>

#include "data/dtype.h"
#include "data/index.h"
#include "data/result.h"

namespace phalanx::data {

constexpr uint64_t kPartHeaderBytes = 4096;

struct PartHeader {
  Dtype dtype = Dtype::kInt32;
  uint64_t number = 0;
  uint64_t parts = 0;
  std::array<uint8_t, 32> fingerprint{};
  uint64_t tokens = 0;
  uint64_t sequences = 0;
  uint64_t documents = 0;
  uint64_t notes_bytes = 0;
  uint32_t tokens_crc32 = 0;
  uint32_t tables_crc32 = 0;
};

// Of what a file of `file_bytes` begins with: at least kPartHeaderBytes of it, or all. What comes back fits into those,
// and nothing of it overflows.
Result<PartHeader> ParsePartHeader(const void* begin, uint64_t begin_bytes, uint64_t file_bytes);

uint64_t TokenBytes(const PartHeader& header);
uint64_t TablesAt(const PartHeader& header);
Table Lengths(const PartHeader& header);
Table DocumentEnds(const PartHeader& header);
uint64_t NotesAt(const PartHeader& header);

}  // namespace phalanx::data

// The header of an `.idx`, in both layouts, and where its tables lie (docs/formats/indexed-dataset.md). Pure.
#pragma once

#include <cstdint>
#include <string>

#include "data/dtype.h"
#include "data/result.h"

namespace phalanx::data {

enum class Layout : uint8_t {
  kMmap,  // Megatron's
  kLazy   // gpt-neox's older one, for `lazy` and `cached`
};

constexpr uint64_t kMaxIndexHeaderBytes = 56;

// Numbers in a row in a file.
struct Table {
  uint64_t at = 0;
  uint64_t count = 0;
  uint64_t element_bytes = 8;  // 1, 4 or 8; signed
};

struct IndexHeader {
  Layout layout = Layout::kMmap;
  Dtype dtype = Dtype::kInt32;
  uint64_t sequences = 0;
  uint64_t documents = 0;
  bool has_modes = false;  // multimodal
};

// Of what a file of `file_bytes` begins with: at least kMaxIndexHeaderBytes of it, or all. What comes back fits into
// those, and nothing of it overflows.
Result<IndexHeader> ParseIndexHeader(const void* begin, uint64_t begin_bytes, uint64_t file_bytes);

// False: such an index would be larger than any file.
bool Fits(const IndexHeader& header);

// The rest is for headers that fit.
std::string IndexHeaderBytes(const IndexHeader& header);
uint64_t IndexBytes(const IndexHeader& header);

Table Lengths(const IndexHeader& header);     // tokens of each sequence
Table Offsets(const IndexHeader& header);     // where each begins: in bytes (mmap), in tokens, with the end (lazy)
Table Boundaries(const IndexHeader& header);  // one more than documents
Table Modes(const IndexHeader& header);       // none where the header has none
Table Dimensions(const IndexHeader& header);  // lazy alone: 0, 1, .. sequences

}  // namespace phalanx::data

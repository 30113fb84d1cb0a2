// What a join is made of: a part, or a dataset that is there already. To open one reads its header alone.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "data/in_file.h"
#include "data/index.h"
#include "data/part.h"
#include "data/result.h"

namespace phalanx::data {

struct Source {
  std::string tokens_path;
  std::string tables_path;
  Dtype dtype = Dtype::kInt32;
  uint64_t tokens_at = 0;
  uint64_t tokens = 0;
  uint64_t sequences = 0;
  uint64_t documents = 0;
  Table lengths;
  Table ends;                            // of documents, in sequences of this source
  Table modes;                           // none but of multimodal datasets
  std::optional<uint32_t> tokens_crc32;  // what they must have
  std::optional<PartHeader> part;
  std::optional<IndexHeader> index;

  uint64_t token_bytes() const { return tokens * BytesOf(dtype); }
};

std::string BinPath(const std::string& prefix);
std::string IndexPath(const std::string& prefix);
std::string SidecarPath(const std::string& prefix);

Result<Source> OpenPart(const std::string& path);
Result<Source> OpenDataset(const std::string& prefix);
// Of files that are open.
Result<Source> PartIn(const InFile& file);
Result<Source> DatasetIn(const InFile& index, const InFile& bin);

// Reads all tables: they must agree with each other and with the tokens, and those of a part must have their CRC. The
// tokens themselves are not read. Blocks for as long as storage takes; needs the same memory however many there are.
Result<Done> CheckTables(const Source& source);
// The same for tables that are open.
Result<Done> CheckTables(const Source& source, const InFile& tables);

// CheckTables, and the CRC of the tokens.
Result<Done> CheckPart(const Source& part);

}  // namespace phalanx::data

#include "data/verify.h"

#include "data/in_file.h"
#include "data/source.h"

namespace phalanx::data {

Result<JoinCounts> CheckDataset(const std::string& prefix) {
  PHX_TRY(const Source source, OpenDataset(prefix));
  PHX_TRY(const InFile idx, InFile::Open(source.tables_path));
  PHX_TRY(const InFile bin, InFile::Open(source.tokens_path));
  PHX_TRY_DONE(CheckTables(source, idx));
  JoinCounts counts{source.dtype, source.documents, source.sequences, source.tokens, bin.bytes(), idx.bytes(), 0, 0};
  PHX_TRY(counts.bin_crc32, bin.Crc(0, bin.bytes()));
  PHX_TRY(counts.idx_crc32, idx.Crc(0, idx.bytes()));
  return counts;
}

}  // namespace phalanx::data

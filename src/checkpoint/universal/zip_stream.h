// A zip file that torch.load reads, from its first byte to its last: each record is announced by its size, and its CRC
// may come behind its data. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "checkpoint/image/zip_parts.h"

namespace phalanx::universal {

// Whether a file or folder of that name, with '/' between its parts, lies within the folder it is made in: no part is
// empty, "." or "..", longer than 255 bytes, or has a zero in it.
bool IsInnerPath(std::string_view name);

class ZipStream {
 public:
  // What stands before the data of the next record. A record is ended before the next one begins.
  std::string Begin(std::string_view name, uint64_t bytes);
  // What stands behind the data of the record that was begun.
  std::string End(uint32_t crc32);
  // What stands behind all records, and ends the file.
  std::string Finish();

 private:
  checkpoint::ZipPlace place_;  // of the record that was begun
  std::string name_;
  uint64_t record_bytes_ = 0;
  uint64_t at_ = 0;  // behind the last record
  uint64_t entries_ = 0;
  std::string directory_;
};

}  // namespace phalanx::universal

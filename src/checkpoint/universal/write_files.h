// The files of a universal checkpoint into a new folder: docs/formats/universal.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/universal/result.h"

namespace phalanx::universal {

// Memory that nobody writes until it is written to its file: of a process, or of a mapped file.
struct Piece {
  const void* at = nullptr;
  uint64_t bytes = 0;
};

using Record = std::vector<Piece>;

struct File {
  std::string name;             // in the folder; IsInnerPath
  bool zipped = false;          // as torch.save writes it; else it is its one record as it stands
  std::string_view pickle;      // of a zipped file, which names its records "0", "1", ..
  std::vector<Record> records;  // the storages
  const char* link = nullptr;   // a file with just these bytes: it gets another name there, where links can be made
};

struct Written {
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

// Makes them, and the folders they lie in, by so many threads of which the caller's is one; all of it is on the disk
// then, names too, but for that of `folder` itself. Files that are there already are an error. Blocks for as long as
// storage takes. The first error; what was written until then stays.
Result<std::vector<Written>> WriteFiles(const std::string& folder, const std::vector<File>& files, int threads);

}  // namespace phalanx::universal

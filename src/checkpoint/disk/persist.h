// One step to disk (docs/formats/checkpoint-manifest.md): ClaimStep, then a shard for each rank, then the manifest.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"

namespace phalanx::checkpoint {

struct WriteJob {
  std::string source;  // path of the slot; there may be more in it than these bytes, which must not change meanwhile
  std::string dir;
  std::string step_name;  // its folder is made where it is missing
  std::string file;
  int64_t rank = 0;  // or kMainRank
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // of those bytes
  FileNeed needed_by = FileNeed::kOwner;
  uint64_t offset = 0;  // of the bytes in the source
  bool direct = true;   // past the page cache, where the file system can
  bool ring = true;     // by io_uring, where the kernel lets us
};

// Blocks its caller's thread for as long as the storage takes, and nobody else. DataLoss where the source is not what
// its CRC says, FailedPrecondition where the step is committed already: then, and with every other error, which names
// path, call and reason, no file of the step has changed.
StatusOr<Shard> WriteShard(const WriteJob& job);

// Last of all: from here on the step counts. Written again with the same text it is fine; AlreadyExists where the step
// has another manifest.
Status WriteManifest(const std::string& dir, const std::string& step_name, const Manifest& manifest);

}  // namespace phalanx::checkpoint

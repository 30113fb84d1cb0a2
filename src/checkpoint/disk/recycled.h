// Shards of deleted steps that are written over: a file that has its blocks is written almost twice as fast as a new
// one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {

// Whether a lease on a file says that no other program anywhere has it open: of a file system of this machine alone, by
// statfs()'s f_type. Others (Lustre, FUSE) are granted one where another node reads the file.
bool LeasesCountAllReaders(uint64_t file_system);

// A draft that is a recycled file of that size, where there is one that nobody else holds, else a new one.
StatusOr<Draft> MakeShardDraft(const std::string& dir, const std::string& step_name, const std::string& file,
                               uint64_t bytes);

// Moves shards of a step that is no step any more out of its folder: kept for the next one as long as at most one
// step's worth lies there, else removed.
Status Recycle(const std::string& dir, const std::string& step_name, const std::vector<Shard>& shards);

// Removes what is kept. Fine where nothing is.
Status RemoveRecycled(const std::string& dir);

}  // namespace phalanx::checkpoint

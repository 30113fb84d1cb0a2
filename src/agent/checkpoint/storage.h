// What storage does for a node's checkpoints: steps are found, checked, written and described. Each call reads or
// writes files and blocks until that is done; none knows of the keeper, on whose thread for storage they run.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "checkpoint/memory/memory.h"
#include "checkpoint/storage/storage.h"
#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx::agent {

// The newest committed step of a directory, those named in `but` apart, and why newer ones do not count. `doubted`: as
// of Storage::ListPast.
FoundSteps FindNewestStep(checkpoint::Storage& storage, const std::set<std::string>& but,
                          const std::set<std::string>& doubted, const std::string& job_id);

struct CheckedStep {
  std::map<int64_t, std::string> files;  // by rank
  std::string error;                     // empty: all of them are whole
  bool unreadable = false;               // some could not be read: nobody knows whether they are whole
  std::string layout;                    // of its manifest
  std::string place;                     // where it lies
};

// The shards of a step that these ranks read (ShardsOfRanks), each byte of them.
CheckedStep CheckShards(checkpoint::Storage& storage, const std::string& step, uint32_t first_rank, uint32_t ranks,
                        uint32_t world_size);

struct WrittenImages {
  std::vector<v1::Shard> shards;
  std::string error;  // empty: all of them are written
};

// Images that are held in memory, all of one save, as files of the step. Ends with the first that cannot be written.
WrittenImages WriteShards(checkpoint::Storage& storage, const std::string& step,
                          const std::vector<checkpoint::MemoryImage>& images);

}  // namespace phalanx::agent

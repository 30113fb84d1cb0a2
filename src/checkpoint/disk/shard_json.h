// A file of a step as JSON, as docs/formats/checkpoint-manifest.md has it: in manifests, in what a checkpoint host
// says, and for programs. Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "checkpoint/disk/manifest.h"

namespace phalanx::checkpoint {

// Of either of nlohmann's kinds of objects.
template <typename Json>
Json ShardJson(const Shard& shard) {
  return {{"rank", shard.rank},
          {"file", shard.file},
          {"bytes", shard.bytes},
          {"crc32", shard.crc32},
          {"needed_by", NameOf(shard.needed_by)}};
}

}  // namespace phalanx::checkpoint

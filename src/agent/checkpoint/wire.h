// What ranks say on the checkpoint socket, and what they are answered: docs/formats/checkpoint-socket.md. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "base/status.h"
#include "phalanx/v1/shards.pb.h"

namespace phalanx::agent {

// Packets are no longer.
constexpr size_t kCheckpointPacketMax = 64 * 1024;

struct OpenPacket {
  int64_t id = 0;
  std::string dir;
  CheckpointOptions options;
};
struct PreparePacket {
  int64_t id = 0;
  std::string dir;
  bool main = false;
  uint64_t bytes = 0;  // of one slot
  int slots = 0;
  uint64_t memory_budget = 0;  // for all slots of this page; 0: none
};
// A rank's name for one of its saves: the round is known.
struct SaveOfRank {
  int64_t step = 0;
  uint32_t branch = 0;
};
struct SealedPacket {
  std::string dir;
  bool main = false;
  SaveOfRank save;
  bool store = false;
  std::map<std::string, uint32_t> values;  // CRC by name, of what is to be the same on all ranks
};
struct SkippedPacket {
  std::string dir;
  SaveOfRank save;
  std::string why;
};
struct WaitPacket {
  int64_t id = 0;
  std::string dir;
  SaveOfRank save;
  bool until_stored = false;
};
struct RestorePacket {
  int64_t id = 0;
  std::string dir;
  uint32_t branch = 0;
};
struct ImagesPacket {
  int64_t id = 0;
  std::string dir;
  uint32_t branch = 0;
  ImageParts parts;
};
struct RestoredPacket {
  std::string dir;
  uint32_t branch = 0;
};
struct AbsentPacket {
  int64_t id = 0;
  std::string dir;
  SaveOfRank save;
};
// About shards of a dataset, as the master is asked; the agent knows the round and the rank.
struct ShardsPacket {
  int64_t id = 0;
  v1::ShardRequest request;
};
using RankPacket = std::variant<OpenPacket, PreparePacket, SealedPacket, SkippedPacket, WaitPacket, RestorePacket,
                                ImagesPacket, RestoredPacket, AbsentPacket, ShardsPacket>;

// The error is a sentence for the rank.
StatusOr<RankPacket> ParseRankPacket(std::string_view json);

}  // namespace phalanx::agent

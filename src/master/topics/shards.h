// Which shard of a dataset goes to which rank, decided purely. No I/O, clock, thread or randomness.
// src/master/core/shards.h feeds it and sends its replies when the journal has what they say; docs/shards.md tells the
// story.
//
// * Shards are numbered through all passes over a dataset, and given in that order. What is known of one is whether it
//   was never given (it is `next` or above), is held by a rank, waits to be given again, or, where it is neither, is
//   done. So what is kept grows with what ranks hold, whatever the size of the dataset.
// * A request is carried out once, however often it is said.
// * When a round ends, what its ranks hold waits, and is given before all that was never given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "phalanx/v1/journal.pb.h"
#include "phalanx/v1/shards.pb.h"

namespace phalanx::master {

constexpr size_t kMaxDatasets = 256;
// Of one dataset: that one rank holds, and all ranks together. What is not done has to fit into a reply.
constexpr size_t kMaxShardsOfRank = 64;
constexpr size_t kMaxShardsOut = 8'192;
// Numbers stay exact in JSON, and far from overflow.
constexpr uint64_t kMaxRecords = uint64_t{1} << 48;
constexpr uint64_t kMaxShards = uint64_t{1} << 52;

struct ShardHolder {
  uint32_t rank = 0;
  uint64_t request = 0;  // by which it was given
};

struct Dataset {
  v1::DatasetSpec spec;
  uint64_t ledger = 0;
  uint64_t next = 0;
  std::map<uint64_t, ShardHolder> given;
  std::set<uint64_t> waiting;                                    // given first
  std::map<std::pair<uint32_t, uint64_t>, uint64_t> of_request;  // the same as `given`, by rank and request
  uint64_t restored = 0;                                         // what was, as a number; 0: nothing, in this round
  std::map<uint32_t, uint64_t> restored_by;                      // rank: its last request for that
  bool from_state = false;                                       // a state was restored, whatever nodes knew before

  bool IsDone(uint64_t shard) const { return shard < next && !given.contains(shard) && !waiting.contains(shard); }
};

struct ShardState {
  uint64_t epoch = 0;  // of the round whose ranks hold what is given
  std::map<std::string, Dataset> datasets;
};

// Of all passes; kMaxShards where there is no end.
uint64_t ShardsIn(const v1::DatasetSpec& spec);
// Why there can be no such dataset; empty: there can.
std::string DatasetFault(const v1::DatasetSpec& spec);
v1::DatasetState StateOf(const Dataset& dataset);

struct ShardOutcome {
  v1::ShardReply reply;
  bool changed = false;   // the journal is to have it before the reply is sent
  std::string note_kind;  // a row of the event record; empty: none
  std::string note;
};

// Of a rank of the live round of that epoch, which `request` names. `ledger`: the name of a dataset that begins now.
ShardOutcome OnShardRequest(ShardState& state, const v1::ShardRequest& request, uint32_t rank, uint64_t ledger);

// The rank has ended while its round goes on: others may have what it holds. True where it held anything.
bool OnShardRankEnded(ShardState& state, uint64_t epoch, uint32_t rank);

// What outlives the master.
void SaveShards(const ShardState& state, v1::Snapshot::Shards& wire);
// `saved` is distrusted: DataLoss where it is no state of a job.
StatusOr<ShardState> RestoreShards(const v1::Snapshot::Shards& saved);

}  // namespace phalanx::master

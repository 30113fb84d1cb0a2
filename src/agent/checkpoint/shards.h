// What a node's ranks ask of the master about shards of datasets, on its way there and back: it is told again to
// whoever is the master then, until it is answered. Pure; the keeper has their sockets. docs/shards.md tells the story.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "phalanx/v1/shards.pb.h"

namespace phalanx::agent {

// That one rank waits for at a time.
constexpr size_t kShardRequestsMax = 64;

class ShardRelay {
 public:
  struct Asker {
    int local_rank = 0;
    int64_t packet = 0;  // by which it asked
  };

  // The ranks of the round before are gone.
  void OnRound(uint64_t epoch);
  void OnRankGone(int local_rank);
  // What the master is to be told. A rank that asks again by another packet is answered by that one.
  StatusOr<v1::ShardRequest> OnAsked(int local_rank, int64_t packet, const v1::ShardRequest& request);
  // A master has just welcomed this node: what it is to be told.
  std::vector<v1::ShardRequest> OnAttached();
  // No answer of the master is awaited any more, until OnAttached: who has waited for one. Who asks is given an error.
  std::vector<Asker> OnMasterSilent(const std::string& why);
  // Who waits for that; nothing: nobody does any more.
  std::optional<Asker> OnReply(const v1::ShardReply& reply);

 private:
  using Key = std::tuple<int, std::string, uint64_t>;  // local rank, dataset, the rank's number
  struct Waiting {
    int64_t packet = 0;
    v1::ShardRequest request;
  };

  uint64_t epoch_ = 0;
  std::map<Key, Waiting> waiting_;
  std::string silence_;                      // why no answer of the master is awaited; empty: it is
  std::map<std::string, uint64_t> ledgers_;  // by dataset, as told last; they outlive rounds
};

// What the rank is answered (docs/formats/checkpoint-socket.md).
std::string ShardAnswer(int64_t packet, const v1::ShardReply& reply);

}  // namespace phalanx::agent

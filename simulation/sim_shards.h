// What a node's ranks take of a dataset, in the simulated world: they ask, hold two shards at most, and report them
// done, through the production relay of their agent (src/agent/checkpoint/shards.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "agent/checkpoint/shards.h"
#include "simulation/training.h"

namespace phalanx::simulation {

class SimShards {
 public:
  // `ask`: the master, of this node's ranks; it may not hear.
  SimShards(Judge& judge, std::function<void(v1::ShardRequest)> ask) : judge_(judge), ask_(std::move(ask)) {}
  SimShards(const SimShards&) = delete;
  SimShards& operator=(const SimShards&) = delete;

  void OnRound(uint64_t epoch);
  void OnRankEnded(const Process& process);
  void OnAttached();
  void OnMasterSilent(const std::string& why) { relay_.OnMasterSilent(why); }
  void OnReply(const v1::ShardReply& reply);
  // The rank has made a step: it takes the next shard, or reports one done, where it does not wait for an answer.
  void Work(const Process& process);

 private:
  struct Rank {
    Process process;
    bool opened = false;
    std::vector<uint64_t> held;
    std::optional<v1::ShardRequest> asked;
    uint64_t requests = 0;
  };

  static void Fill(const Rank& rank, v1::ShardRequest& request);

  Judge& judge_;
  const std::function<void(v1::ShardRequest)> ask_;
  agent::ShardRelay relay_;
  std::map<int, Rank> ranks_;  // by local rank
};

}  // namespace phalanx::simulation

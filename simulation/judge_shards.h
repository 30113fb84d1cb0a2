// What must hold of shards, measured by what ranks have asked and heard: each is done once, none is lost, and no two
// ranks of a round hold the same.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <tuple>

#include "master/core/core.h"
#include "simulation/training.h"

namespace phalanx::simulation {

class ShardJudge {
 public:
  explicit ShardJudge(Judge& judge) : judge_(judge) {}

  void OnAsked(const v1::ShardRequest& request);
  void OnAnswered(const WorkerProcess& rank, const v1::ShardRequest& asked, const v1::ShardReply& reply);
  void OnRankEnded(const WorkerProcess& rank);
  // What the master says is done, some rank has reported.
  void CheckDone(const master::JobState& state);

 private:
  struct Report {
    uint64_t epoch = 0;
    uint32_t rank = 0;
    uint64_t request = 0;
    bool operator==(const Report&) const = default;
  };

  void OnGiven(const WorkerProcess& rank, uint64_t shard);
  void OnDone(const WorkerProcess& rank, const Report& report, uint64_t shard);

  Judge& judge_;
  std::set<uint64_t> reported_;                                // shards, whether that was heard or not
  std::map<uint64_t, Report> done_;                            // by shard: as the rank was answered
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> holders_;  // by shard: epoch and rank
};

}  // namespace phalanx::simulation

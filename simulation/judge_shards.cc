#include "simulation/judge_shards.h"

#include <fmt/format.h>

#include "simulation/judge.h"

namespace phalanx::simulation {

void ShardJudge::OnAsked(const v1::ShardRequest& request) {
  for (const uint64_t shard : request.done().shards()) reported_.insert(shard);
}

void ShardJudge::OnAnswered(const WorkerProcess& rank, const v1::ShardRequest& asked, const v1::ShardReply& reply) {
  if (!judge_.remembered()) return;  // which shards are done went with what the master before knew
  if (!reply.refused().empty()) {
    return judge_.Violated("shards-served",
                           fmt::format("rank {} of epoch {} hears: {}", rank.rank, rank.epoch, reply.refused()));
  }
  if (reply.has_shard()) OnGiven(rank, reply.shard());
  for (const uint64_t shard : asked.done().shards()) OnDone(rank, {rank.epoch, rank.rank, asked.request()}, shard);
}

void ShardJudge::OnGiven(const WorkerProcess& rank, uint64_t shard) {
  const auto done = done_.find(shard);
  if (done != done_.end() && done->second.epoch <= rank.epoch) {
    judge_.Violated("shards-done-once",
                    fmt::format("shard {} was done in epoch {}, and is given to rank {} of epoch {}", shard,
                                done->second.epoch, rank.rank, rank.epoch));
  }
  const auto [holder, is_free] = holders_.try_emplace(shard, rank.epoch, rank.rank);
  if (!is_free && holder->second.first == rank.epoch && holder->second.second != rank.rank) {
    judge_.Violated("shards-held-once", fmt::format("ranks {} and {} of epoch {} hold shard {}", holder->second.second,
                                                    rank.rank, rank.epoch, shard));
  }
  holder->second = {rank.epoch, rank.rank};
}

void ShardJudge::OnDone(const WorkerProcess& rank, const Report& report, uint64_t shard) {
  const auto [done, is_first] = done_.try_emplace(shard, report);
  if (!is_first && !(done->second == report)) {
    judge_.Violated("shards-done-once", fmt::format("shard {} was done in epoch {}, and again by rank {} of epoch {}",
                                                    shard, done->second.epoch, rank.rank, rank.epoch));
  }
  holders_.erase(shard);
}

void ShardJudge::OnRankEnded(const WorkerProcess& rank) {
  std::erase_if(holders_, [&](const auto& held) { return held.second == std::pair(rank.epoch, rank.rank); });
}

void ShardJudge::CheckDone(const master::JobState& state) {
  const auto found = state.shards.datasets.find("data");
  if (found == state.shards.datasets.end() || !judge_.remembered()) return;
  for (uint64_t shard = 0; shard < found->second.next; ++shard) {
    if (!found->second.IsDone(shard) || reported_.contains(shard)) continue;
    return judge_.Violated("shards-not-lost", fmt::format("shard {} counts as done, and no rank has said so", shard));
  }
}

}  // namespace phalanx::simulation

#include "simulation/sim_shards.h"

#include <algorithm>
#include <utility>

#include "simulation/judge.h"

namespace phalanx::simulation {
namespace {

constexpr uint64_t kRecords = 50;
constexpr size_t kHeldAtMost = 2;

}  // namespace

void SimShards::OnRound(uint64_t epoch) {
  relay_.OnRound(epoch);
  ranks_.clear();
}

void SimShards::OnRankEnded(const Process& process) {
  const auto rank = ranks_.find(process->local_rank);
  if (rank == ranks_.end() || rank->second.process != process) return;
  relay_.OnRankGone(process->local_rank);
  ranks_.erase(rank);
}

void SimShards::OnAttached() {
  for (v1::ShardRequest& request : relay_.OnAttached()) ask_(std::move(request));
}

void SimShards::Fill(const Rank& rank, v1::ShardRequest& request) {
  if (!rank.opened) {
    request.mutable_open()->set_size(kRecords);
    request.mutable_open()->set_shard_size(1);
  } else if (rank.held.size() >= kHeldAtMost) {
    request.mutable_done()->add_shards(rank.held.front());
  } else {
    request.mutable_take();
  }
}

void SimShards::Work(const Process& process) {
  Rank& rank = ranks_[process->local_rank];
  if (rank.process != process) rank = {process, false, {}, std::nullopt, 0};
  if (rank.asked) return;
  v1::ShardRequest request;
  request.set_dataset("data");
  request.set_request(++rank.requests);
  Fill(rank, request);
  const StatusOr<v1::ShardRequest> told = relay_.OnAsked(process->local_rank, 0, request);
  // Its script raises, and asks no more in this life.
  if (told.status().code() == absl::StatusCode::kUnavailable) rank.asked = request;
  if (rank.asked) return;
  if (!told.ok()) return judge_.Violated("shards-asked", Message(told.status()));
  rank.asked = *told;
  judge_.shards().OnAsked(*told);
  ask_(*told);
}

void SimShards::OnReply(const v1::ShardReply& reply) {
  const std::optional<agent::ShardRelay::Asker> asker = relay_.OnReply(reply);
  const auto known = asker ? ranks_.find(asker->local_rank) : ranks_.end();
  if (known == ranks_.end() || known->second.process->dying || known->second.process->ended) return;
  Rank& rank = known->second;
  const v1::ShardRequest asked = *std::exchange(rank.asked, std::nullopt);
  judge_.shards().OnAnswered(*rank.process, asked, reply);
  rank.opened = true;
  if (reply.has_shard()) rank.held.push_back(reply.shard());
  if (asked.has_done()) rank.held.erase(rank.held.begin());
}

}  // namespace phalanx::simulation

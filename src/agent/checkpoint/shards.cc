#include "agent/checkpoint/shards.h"

#include <fmt/format.h>

#include <climits>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/checkpoint/wire.h"

namespace phalanx::agent {

void ShardRelay::OnRound(uint64_t epoch) {
  epoch_ = epoch;
  waiting_.clear();
}

void ShardRelay::OnRankGone(int local_rank) {
  std::erase_if(waiting_, [local_rank](const auto& each) { return std::get<0>(each.first) == local_rank; });
}

StatusOr<v1::ShardRequest> ShardRelay::OnAsked(int local_rank, int64_t packet, const v1::ShardRequest& asked) {
  const Key key{local_rank, asked.dataset(), asked.request()};
  const auto first = waiting_.lower_bound({local_rank, "", 0});
  const auto behind = waiting_.lower_bound({local_rank + 1, "", 0});
  if (!waiting_.contains(key) && std::distance(first, behind) >= static_cast<ptrdiff_t>(kShardRequestsMax)) {
    return absl::ResourceExhaustedError(fmt::format("this rank waits for {} answers already", kShardRequestsMax));
  }
  if (!silence_.empty()) return absl::UnavailableError(silence_);
  Waiting& waiting = waiting_[key];
  waiting.packet = packet;
  waiting.request = asked;
  waiting.request.set_epoch(epoch_);
  waiting.request.set_local_rank(static_cast<uint32_t>(local_rank));
  const auto ledger = ledgers_.find(asked.dataset());
  if (ledger != ledgers_.end()) waiting.request.set_ledger(ledger->second);
  return waiting.request;
}

std::vector<v1::ShardRequest> ShardRelay::OnAttached() {
  silence_.clear();
  std::vector<v1::ShardRequest> requests;
  requests.reserve(waiting_.size());
  for (const auto& [key, waiting] : waiting_) requests.push_back(waiting.request);
  return requests;
}

std::vector<ShardRelay::Asker> ShardRelay::OnMasterSilent(const std::string& why) {
  silence_ = why;
  std::vector<Asker> askers;
  askers.reserve(waiting_.size());
  for (const auto& [key, waiting] : waiting_) askers.push_back({std::get<0>(key), waiting.packet});
  waiting_.clear();
  return askers;
}

std::optional<ShardRelay::Asker> ShardRelay::OnReply(const v1::ShardReply& reply) {
  if (reply.epoch() != epoch_ || reply.local_rank() > INT_MAX) return std::nullopt;
  const int local_rank = static_cast<int>(reply.local_rank());
  const auto waiting = waiting_.find({local_rank, reply.dataset(), reply.request()});
  if (waiting == waiting_.end()) return std::nullopt;
  if (reply.refused().empty() && reply.ledger() != 0) ledgers_[reply.dataset()] = reply.ledger();
  const Asker asker{local_rank, waiting->second.packet};
  waiting_.erase(waiting);
  return asker;
}

std::string ShardAnswer(int64_t packet, const v1::ShardReply& reply) {
  nlohmann::json answer = {{"id", packet}};
  if (!reply.refused().empty()) {
    answer["error"] = reply.refused();
  } else if (reply.has_state()) {
    const v1::DatasetState& state = reply.state();
    answer["next"] = state.next();
    answer["undone_gaps"] = std::vector<uint64_t>(state.undone_gaps().begin(), state.undone_gaps().end());
  } else {
    answer["shard"] = reply.has_shard() ? nlohmann::json(reply.shard()) : nlohmann::json();
  }
  std::string text = answer.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() <= kCheckpointPacketMax) return text;
  return nlohmann::json{{"id", packet}, {"error", "ranks hold too many shards for its state to be told"}}.dump();
}

}  // namespace phalanx::agent

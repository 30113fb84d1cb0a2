// The part of the keeper that hands on what its ranks ask about shards of datasets.
#include <optional>
#include <utility>

#include "agent/checkpoint/keeper.h"

namespace phalanx::agent {

void CheckpointKeeper::On(int local_rank, const ShardsPacket& packet) {
  StatusOr<v1::ShardRequest> request = shards_.OnAsked(local_rank, packet.id, packet.request);
  if (!request.ok()) return AnswerError(local_rank, packet.id, Message(request.status()));
  links_.ask_shards(*std::move(request));
}

void CheckpointKeeper::OnShardReply(const v1::ShardReply& reply) {
  const std::optional<ShardRelay::Asker> asker = shards_.OnReply(reply);
  if (asker) Answer(asker->local_rank, ShardAnswer(asker->packet, reply));
}

void CheckpointKeeper::AskForShardsAgain() {
  for (v1::ShardRequest& request : shards_.OnAttached()) links_.ask_shards(std::move(request));
}

void CheckpointKeeper::GiveUpShards(const std::string& why) {
  for (const ShardRelay::Asker& asker : shards_.OnMasterSilent(why)) AnswerError(asker.local_rank, asker.packet, why);
}

}  // namespace phalanx::agent

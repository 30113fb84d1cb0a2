#include "master/core/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/fnv.h"

namespace phalanx::master {
namespace {

// Replies wait for each other so long, so that the journal is written once for many. A larger job's is more to write.
constexpr int64_t kReplyEveryMs = 2;
constexpr char kAnswered[] = "a rank asks about shards of a dataset";

// Two masters of a job have the same only where they are the same: where one has lost its journal, the other's dataset
// is none of its own.
uint64_t LedgerOf(const JobState& job, const std::string& dataset) {
  const std::string beginning = fmt::format("{}:{}:{}:{}", job.master_id, job.incarnation, job.highest_epoch, dataset);
  return std::max<uint64_t>(Fnv1a().Add(beginning).value(), 1);
}

int64_t ReplyEveryMs(const JobState& job) {
  const size_t members = job.round ? job.round->slots.size() : 0;
  return kReplyEveryMs + static_cast<int64_t>(members) / kMembersPerRememberMs;
}

// Of a rank of that epoch on the node of that stream; null: the live round has no such node.
const Slot* SlotOf(const Turn& turn, uint64_t session, uint64_t epoch) {
  const Node& node = turn.job.nodes.at(session);
  if (!turn.IsLive(epoch) || node.group_rank < 0) return nullptr;
  return &std::as_const(turn.job.round->slots)[static_cast<size_t>(node.group_rank)];
}

void ReplySoon(Turn& turn, uint64_t session, v1::ShardReply reply, bool changed) {
  JobState& job = turn.job;
  auto message = std::make_shared<v1::MasterMessage>();
  *message->mutable_shard_reply() = std::move(reply);
  // What changes nothing may still tell of a change that the journal has not got.
  if (!changed && job.shard_replies.empty()) return turn.Send(session, std::move(message), kAnswered);
  if (job.shard_replies.empty()) {
    job.shard_replies_at = std::max(turn.now, job.shard_replies_before + ReplyEveryMs(job));
  }
  job.shard_replies.emplace_back(session, std::move(message));
}

}  // namespace

void On(Turn& turn, uint64_t session, const v1::ShardRequest& request) {
  JobState& job = turn.job;
  const Slot* const slot = SlotOf(turn, session, request.epoch());
  // Whoever asked in a round that is over is gone, or is about to be.
  if (slot == nullptr || request.local_rank() >= slot->local_world_size) return;
  const uint32_t rank = slot->rank_base + request.local_rank();
  ShardOutcome outcome = OnShardRequest(job.shards, request, rank, LedgerOf(job, request.dataset()));
  if (!outcome.note.empty()) turn.Note(outcome.note_kind, slot->node, outcome.note, rank);
  ReplySoon(turn, session, std::move(outcome.reply), outcome.changed);
}

void ReturnShards(Turn& turn, uint64_t session, const v1::WorkerExited& exited) {
  const Slot* const slot = SlotOf(turn, session, exited.epoch());
  if (slot == nullptr || exited.local_rank() >= slot->local_world_size) return;
  const bool held = OnShardRankEnded(turn.job.shards, exited.epoch(), slot->rank_base + exited.local_rank());
  // A master that did not know would keep them from others until the round ends, no longer.
  if (held) turn.RememberSoon();
}

void SettleShards(Turn& turn) {
  JobState& job = turn.job;
  if (job.shard_replies.empty() || turn.now < job.shard_replies_at) return;
  // Once a shard is given, or counts as done, no later master may say otherwise.
  turn.RememberFirst(Remember::When::kBefore);
  for (auto& [session, message] : std::exchange(job.shard_replies, {})) {
    const auto node = job.nodes.find(session);
    const bool waits = node != job.nodes.end() && node->second.group_rank >= 0;  // else it has gone meanwhile
    if (waits && turn.IsLive(message->shard_reply().epoch())) turn.Send(session, std::move(message), kAnswered);
  }
  job.shard_replies_before = turn.now;
  job.shard_replies_at = kNever;
}

Instant ShardsDue(const JobState& job) { return job.shard_replies.empty() ? kNever : job.shard_replies_at; }

}  // namespace phalanx::master

#include "master/core/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "master/core/door.h"
#include "master/core/stalls.h"

namespace phalanx::master {
namespace {

// A reply about more must not outgrow a message.
constexpr int kNodesToldInFull = 1'000;

void AddCheckpoints(const std::string& name, const CheckpointDir& dir, Instant now, v1::StatusReply& reply) {
  v1::CheckpointStatus& wire = *reply.add_checkpoints();
  wire.set_dir(name);
  wire.set_committed_step(dir.committed ? dir.committed->step : -1);
  wire.set_stored_step(dir.stored ? dir.stored->step : -1);
  wire.set_storing_step(dir.store ? dir.store->save.step : -1);
  wire.set_storing_ms(dir.store ? now - dir.store->begun_at : -1);
}

// A node that has not answered yet may have told of them long ago: they are older by that.
void AddRanks(const Node& node, Instant now, v1::NodeStatus& wire) {
  for (const v1::RankStatus& told : node.ranks) {
    v1::RankStatus& rank = *wire.add_ranks();
    rank = told;
    const int64_t since_ms = now - node.ranks_told_at;
    if (told.quiet_ms() >= 0) rank.set_quiet_ms(told.quiet_ms() + since_ms);  // else it is not known
    if (told.age_ms() >= 0) rank.set_age_ms(told.age_ms() + since_ms);
  }
}

}  // namespace

v1::StatusReply StatusOf(const JobState& state, Instant now, bool ranks) {
  v1::StatusReply reply;
  reply.set_job_id(state.job_id);
  reply.set_phase(PhaseText(state.phase));
  const Round* round = state.round ? &*state.round : state.last_round ? &*state.last_round : nullptr;
  if (round != nullptr) {
    reply.set_epoch(round->epoch);
    reply.set_restart_count(round->restart_count);
  }
  if (state.round) {
    reply.set_world_size(state.round->world_size);
    reply.set_saving_ms(state.round->saving_ms);
  }
  reply.set_restarts_left(RestartsLeft(state.budget, now));
  if (state.spec) {
    reply.set_min_nodes(state.spec->min_nodes());
    reply.set_max_nodes(state.spec->max_nodes());
  }
  reply.set_reason(state.reason);
  const bool stalled = state.phase == Phase::kRunning && state.round && state.round->stall.told;
  if (stalled) {
    reply.set_reason(fmt::format("{}; {}", state.reason, StallText(state, now)));
    reply.set_stalled_ms(now - state.round->stall.since);
  }
  if (state.outcome) reply.set_exit_code(state.outcome->exit_code);
  for (const auto& [session, node] : state.nodes) {
    v1::NodeStatus& wire = *reply.add_nodes();
    wire.set_node_id(node.hello.node_id());
    wire.set_hostname(node.hello.hostname());
    wire.set_address(node.hello.address());
    wire.set_state(NodeStateText(state, node));
    wire.set_group_rank(node.group_rank);
    wire.set_local_world_size(node.hello.local_world_size());
    wire.set_silent_ms(now - node.heard_at);
    wire.set_min_step(node.min_step);
    wire.set_max_step(node.max_step);
    if (node.group_rank >= 0 && state.round) {
      wire.set_rank_base(state.round->slots[static_cast<size_t>(node.group_rank)].rank_base);
      if (ranks && node.ranks_epoch == state.round->epoch) AddRanks(node, now, wire);
    }
    if (!node.left_out.empty()) wire.set_waits_because(node.left_out);
    if (wire.state() == "spare") wire.set_waits_because(state.left_over);
  }
  reply.set_refused_store_clients(state.store_refused);
  reply.set_last_refused_store_client(state.last_store_refused);
  for (v1::LeftOut& left_out : LeftOutNow(state.health, now)) *reply.add_left_out() = std::move(left_out);
  for (const auto& [name, dir] : state.checkpoints.dirs) AddCheckpoints(name, dir, now, reply);
  return reply;
}

v1::CheckSummary CheckOf(const JobState& state, Instant now) {
  const bool runs = state.health.run.has_value();
  v1::CheckSummary check = runs ? state.health.run->summary : state.health.last;
  if (runs) check.set_took_ms(now - state.health.run->begun_at);
  if (check.nodes_size() <= kNodesToldInFull) return check;
  for (v1::CheckedNode& node : *check.mutable_nodes()) {
    if (node.verdict() == v1::CheckedNode::GOOD) node.clear_results();
  }
  v1::CheckSummary failed;
  for (const v1::CheckedPair& pair : check.pairs()) {
    if (!pair.passed()) *failed.add_pairs() = pair;
  }
  check.mutable_pairs()->Swap(failed.mutable_pairs());
  return check;
}

std::string DetailJson(const Record& record) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const auto& [key, value] : record.detail) {
    std::visit([&object, &key = key](const auto& v) { object[key] = v; }, value);
  }
  // Last words are bytes of anybody's; what is no UTF-8 is replaced.
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace phalanx::master

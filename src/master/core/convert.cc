#include "master/core/convert.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "master/core/door.h"

namespace phalanx::master {
namespace {

// Longer than any job; keeps sums of times far from overflow.
constexpr int64_t kMaxSpanMs = int64_t{10} * 365 * 24 * 3'600'000;

constexpr size_t kMaxReasonBytes = 512;

// The first `max` bytes at most, without half a character at the end.
std::string Prefix(const std::string& text, size_t max) {
  if (text.size() <= max) return text;
  while (max > 0 && (static_cast<unsigned char>(text[max]) & 0xC0) == 0x80) --max;
  return text.substr(0, max);
}

int64_t Span(int64_t ms) { return std::clamp<int64_t>(ms, 0, kMaxSpanMs); }

// Numbers that no job can come to are bounded, as all from outside.
constexpr int64_t kMaxStep = int64_t{1} << 48;
constexpr uint32_t kMaxRounds = uint32_t{1} << 30;

LiveRound LiveRoundOf(const v1::StartRound& wire) {
  LiveRound live;
  live.epoch = std::min(wire.epoch(), kMaxEpoch);
  live.group_rank = wire.group_rank();
  live.group_world_size = wire.group_world_size();
  live.rank_base = wire.rank_base();
  live.world_size = wire.world_size();
  live.restart_count = std::min(wire.restart_count(), kMaxRounds);
  live.restarts_used = std::min(wire.restarts_used(), kMaxRounds);
  live.lives_without_step = std::min(wire.lives_without_step(), kMaxRounds);
  if (wire.has_highest_step() && wire.highest_step() >= 0) {
    live.highest_step = std::min(wire.highest_step(), kMaxStep);
  }
  live.reason = Prefix(wire.reason(), kMaxReasonBytes);
  return live;
}

Progress ProgressOf(const v1::Progress& wire) {
  Progress progress;
  if (wire.has_step() && wire.step() >= 0) progress.step = std::min(wire.step(), kMaxStep);
  if (wire.has_from_step() && wire.from_step() >= 0) progress.from_step = std::min(wire.from_step(), kMaxStep);
  progress.saving_ms = Span(wire.saving_ms());
  if (wire.has_caught_up_ms_ago()) progress.caught_up_ms_ago = Span(wire.caught_up_ms_ago());
  return progress;
}

WorkerExited ExitedOf(const v1::WorkerExited& wire) {
  WorkerExited event;
  event.epoch = wire.epoch();
  event.progress = ProgressOf(wire.progress());
  event.for_rescale = wire.for_rescale() && wire.exit_code() == 0 && wire.signal() == 0;
  event.exit.local_rank = wire.local_rank();
  event.exit.pid = wire.pid();
  event.exit.exit_code = wire.exit_code();
  event.exit.signal = wire.signal();
  event.exit.script_started = wire.script_started();
  event.exit.steps = wire.steps();
  event.exit.unix_ms = wire.unix_ms();
  // A longer text is not what an agent sends; what is kept of it is the end, where the exception stands.
  if (wire.error_json().size() <= kMaxErrorJsonBytes) event.exit.error_json = wire.error_json();
  const std::string& words = wire.last_words();
  event.exit.last_words = words.substr(words.size() - std::min(words.size(), kMaxLastWordsBytes));
  event.exit.peak_resident_bytes = std::max<int64_t>(0, wire.peak_resident_bytes());
  // A longer text is not what an agent sends, and a cut could fall within a character.
  if (wire.killed_by().size() <= kMaxEndTextBytes) event.exit.killed_by = wire.killed_by();
  if (wire.end_note().size() <= kMaxEndTextBytes) event.exit.end_note = wire.end_note();
  return event;
}

// What an agent tells of checkpoints, bounded; nothing where no agent of ours would say so.
constexpr size_t kMaxPathBytes = 4'096;
constexpr int kMaxHeldSaves = 1'024;

bool IsSane(const v1::SaveId& save) { return save.epoch() <= kMaxEpoch && save.step() >= 0 && save.step() <= kMaxStep; }

bool IsPath(const std::string& dir) {
  return dir.starts_with('/') && dir.size() <= kMaxPathBytes && dir.find('\0') == std::string::npos;
}

// Of a file or folder inside a checkpoint directory.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

bool IsSane(const v1::CheckpointsHeld& held) {
  return held.saves_size() <= kMaxHeldSaves &&
         std::all_of(held.saves().begin(), held.saves().end(), [](const v1::HeldSave& save) {
           return IsPath(save.dir()) && IsSane(save.save()) &&
                  save.ranks_size() <= static_cast<int>(kMaxLocalWorldSize);
         });
}

bool IsSane(const v1::ShardsWritten& written) {
  return IsSane(written.save()) && written.shards_size() <= static_cast<int>(kMaxLocalWorldSize) + 1 &&
         std::all_of(written.shards().begin(), written.shards().end(),
                     [](const v1::Shard& shard) { return IsName(shard.file()) || shard.file() == ".metadata"; });
}

bool IsSane(const v1::CheckpointReport& report) {
  if (report.has_held()) return IsSane(report.held());
  if (!IsPath(report.dir())) return false;
  switch (report.body_case()) {
    case v1::CheckpointReport::kSealed:
      return IsSane(report.sealed().save());
    case v1::CheckpointReport::kSkipped:
      return IsSane(report.skipped().save());
    case v1::CheckpointReport::kFound:
      return report.found().step() == -1 ||
             (report.found().step() >= 0 && report.found().step() <= kMaxStep && IsName(report.found().name()));
    case v1::CheckpointReport::kChecked:
      return IsName(report.checked().name());
    case v1::CheckpointReport::kStorePrepared: {
      const v1::StorePrepared& prepared = report.store_prepared();
      return IsSane(prepared.save()) && (!prepared.error().empty() || IsName(prepared.name()));
    }
    case v1::CheckpointReport::kShardsWritten:
      return IsSane(report.shards_written());
    case v1::CheckpointReport::kManifestWritten:
      return IsSane(report.manifest_written().save());
    default:
      return true;
  }
}

std::optional<CheckpointTold> CheckpointToldOf(const v1::CheckpointReport& wire) {
  if (!IsSane(wire)) return std::nullopt;
  CheckpointTold event{{}, wire};
  v1::CheckpointReport& report = event.report;
  for (std::string* text :
       {report.has_skipped() ? report.mutable_skipped()->mutable_why() : nullptr,
        report.has_found() ? report.mutable_found()->mutable_why() : nullptr,
        report.has_checked() ? report.mutable_checked()->mutable_error() : nullptr,
        report.has_store_prepared() ? report.mutable_store_prepared()->mutable_error() : nullptr,
        report.has_shards_written() ? report.mutable_shards_written()->mutable_error() : nullptr,
        report.has_manifest_written() ? report.mutable_manifest_written()->mutable_error() : nullptr}) {
    if (text != nullptr) *text = Prefix(*text, kMaxReasonBytes);
  }
  return event;
}

template <typename T>
T From(uint64_t session, const v1::AgentMessage& message, T event) {
  event.session = session;
  event.next_store_port = message.next_store_port() <= UINT16_MAX ? message.next_store_port() : 0;
  return event;
}

void AddCheckpoints(const std::string& name, const CheckpointDir& dir, Instant now, v1::StatusReply& reply) {
  v1::CheckpointStatus& wire = *reply.add_checkpoints();
  wire.set_dir(name);
  wire.set_committed_step(dir.committed ? dir.committed->step : -1);
  wire.set_stored_step(dir.stored ? dir.stored->step : -1);
  wire.set_storing_step(dir.store ? dir.store->save.step : -1);
  wire.set_storing_ms(dir.store ? now - dir.store->begun_at : -1);
}

}  // namespace

JobSpec SpecOf(const v1::JobSpec& wire) {
  JobSpec spec;
  spec.min_nodes = wire.min_nodes();
  spec.max_nodes = wire.max_nodes();
  if (wire.has_max_restarts()) spec.max_restarts = wire.max_restarts();
  if (wire.restart_window_ms() > 0) spec.restart_window_ms = Span(wire.restart_window_ms());
  if (wire.join_timeout_ms() > 0) spec.join_timeout_ms = Span(wire.join_timeout_ms());
  spec.last_call_ms = Span(wire.last_call_ms());
  spec.node_unit = std::max(1u, wire.node_unit());
  spec.rescale_grace_ms = Span(wire.rescale_grace_ms());
  spec.elastic_config = wire.elastic_config();
  spec.last_call_fixed = wire.last_call_fixed();
  return spec;
}

v1::JobSpec MessageOf(const JobSpec& spec) {
  v1::JobSpec wire;
  wire.set_min_nodes(spec.min_nodes);
  wire.set_max_nodes(spec.max_nodes);
  if (spec.max_restarts) wire.set_max_restarts(*spec.max_restarts);
  wire.set_restart_window_ms(spec.restart_window_ms);
  wire.set_join_timeout_ms(spec.join_timeout_ms);
  wire.set_last_call_ms(spec.last_call_ms);
  wire.set_node_unit(spec.node_unit);
  wire.set_rescale_grace_ms(spec.rescale_grace_ms);
  wire.set_elastic_config(spec.elastic_config);
  wire.set_last_call_fixed(spec.last_call_fixed);
  return wire;
}

Failure FailureOf(const v1::Failure& wire, const std::string& node) {
  Failure failure;
  failure.rank = wire.rank();
  failure.group_rank = wire.group_rank();
  failure.node = node;
  failure.hostname = wire.hostname();
  failure.address = wire.address();
  failure.exit = ExitedOf(wire.exited()).exit;
  failure.collateral = IsCollateral(failure.exit);
  return failure;
}

v1::Failure MessageOf(const Failure& failure) {
  v1::Failure wire;
  wire.set_rank(failure.rank);
  wire.set_local_rank(failure.exit.local_rank);
  wire.set_group_rank(failure.group_rank);
  wire.set_hostname(failure.hostname);
  wire.set_address(failure.address);
  v1::WorkerExited& exited = *wire.mutable_exited();
  exited.set_local_rank(failure.exit.local_rank);
  exited.set_pid(failure.exit.pid);
  exited.set_exit_code(failure.exit.exit_code);
  exited.set_signal(failure.exit.signal);
  exited.set_script_started(failure.exit.script_started);
  exited.set_steps(failure.exit.steps);
  exited.set_unix_ms(failure.exit.unix_ms);
  exited.set_error_json(failure.exit.error_json);
  exited.set_last_words(failure.exit.last_words);
  exited.set_peak_resident_bytes(failure.exit.peak_resident_bytes);
  exited.set_killed_by(failure.exit.killed_by);
  exited.set_end_note(failure.exit.end_note);
  return wire;
}

Event EventOf(uint64_t session, const v1::AgentMessage& message) {
  switch (message.body_case()) {
    case v1::AgentMessage::kBeat: {
      Beat event;
      event.epoch = message.beat().epoch();
      event.min_step = message.beat().min_step();
      event.max_step = message.beat().max_step();
      event.progress = ProgressOf(message.beat().progress());
      return From(session, message, event);
    }
    case v1::AgentMessage::kWorkerExited:
      return From(session, message, ExitedOf(message.worker_exited()));
    case v1::AgentMessage::kFirstStep: {
      FirstStep event;
      event.epoch = message.first_step().epoch();
      event.step = message.first_step().step();
      event.progress = ProgressOf(message.first_step().progress());
      return From(session, message, event);
    }
    case v1::AgentMessage::kLeaving: {
      Leaving event;
      event.why = Prefix(message.leaving().reason(), kMaxReasonBytes);
      event.signal = std::clamp(message.leaving().signal(), 0, 64);
      event.waits = message.leaving().waits();
      return From(session, message, event);
    }
    case v1::AgentMessage::kSafePoint: {
      SafePoint event;
      event.epoch = message.safe_point().epoch();
      event.asked = std::min(message.safe_point().asked(), kMaxLocalWorldSize);
      event.reached = message.safe_point().reached();
      return From(session, message, event);
    }
    case v1::AgentMessage::kReady:
      return From(session, message, Ready{});
    case v1::AgentMessage::kCheckpoint: {
      std::optional<CheckpointTold> event = CheckpointToldOf(message.checkpoint());
      if (!event) return From(session, message, Heard{});
      return From(session, message, *std::move(event));
    }
    case v1::AgentMessage::kHello:  // a second one says nothing new
    case v1::AgentMessage::BODY_NOT_SET:
      return From(session, message, Heard{});
  }
  return From(session, message, Heard{});
}

AgentAttached AttachedOf(uint64_t session, const v1::AgentMessage& message, const std::string& peer_address,
                         bool token_ok) {
  const v1::Hello& hello = message.hello();
  AgentAttached event = From(session, message, AgentAttached{});
  NodeInfo& info = event.info;
  info.protocol_version = hello.protocol_version();
  info.software_version = Prefix(hello.software_version(), kMaxNameBytes);
  info.job_id = hello.job_id();
  info.token_ok = token_ok;
  info.node_id = hello.node_id();
  info.hostname = hello.hostname();
  info.address = hello.address();
  // One more than allowed, so that the door sees it.
  const int count = std::min<int>(hello.interface_addresses_size(), static_cast<int>(kMaxInterfaceAddresses) + 1);
  info.interface_addresses.assign(hello.interface_addresses().begin(), hello.interface_addresses().begin() + count);
  info.peer_address = peer_address;
  info.wanted_rank = hello.node_rank_wanted();
  info.local_world_size = hello.local_world_size();
  info.role = hello.role();
  info.spec = SpecOf(hello.spec());
  info.warming = hello.warming();
  info.seen_epoch = std::min(hello.seen_epoch(), kMaxEpoch);
  if (hello.has_live_round()) info.live = LiveRoundOf(hello.live_round());
  if (hello.has_last_round()) info.last = LiveRoundOf(hello.last_round());
  return event;
}

v1::StatusReply StatusOf(const JobState& state, Instant now) {
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
    reply.set_min_nodes(state.spec->min_nodes);
    reply.set_max_nodes(state.spec->max_nodes);
  }
  reply.set_reason(state.reason);
  if (state.outcome) reply.set_exit_code(state.outcome->exit_code);
  for (const auto& [session, node] : state.nodes) {
    v1::NodeStatus& wire = *reply.add_nodes();
    wire.set_node_id(node.info.node_id);
    wire.set_hostname(node.info.hostname);
    wire.set_address(node.info.address);
    wire.set_state(NodeStateText(state, node));
    wire.set_group_rank(node.group_rank);
    wire.set_local_world_size(node.info.local_world_size);
    wire.set_silent_ms(now - node.last_heard);
    wire.set_min_step(node.min_step);
    wire.set_max_step(node.max_step);
    wire.set_waits_because(node.told_spare);
  }
  for (const auto& [name, dir] : state.checkpoints.dirs) AddCheckpoints(name, dir, now, reply);
  return reply;
}

std::string PeerAddress(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  if (colon == std::string::npos) return "";
  std::string address;
  if (peer.starts_with("ipv4:")) address = peer.substr(5, colon - std::min<size_t>(colon, 5));
  if (peer.starts_with("ipv6:")) {
    // Brackets and the scope's percent sign are escaped.
    const size_t begin = peer.starts_with("ipv6:%5B") ? 8 : peer.starts_with("ipv6:[") ? 6 : 5;
    const size_t end = std::min({peer.find("%5D"), peer.find(']'), peer.find("%25"), colon});
    if (end > begin) address = peer.substr(begin, end - begin);
    if (address.starts_with("::ffff:") && address.find('.') != std::string::npos) address = address.substr(7);
  }
  return IsIpAddress(address) ? address : "";
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

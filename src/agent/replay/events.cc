#include "agent/replay/events.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "agent/replay/life_events.h"
#include "agent/replay/saving_events.h"

namespace phalanx::agent {
namespace {

// As --nproc-per-node has it.
constexpr uint32_t kMaxLocalWorldSize = 4'096;
constexpr int kMaxSignal = 64;

// --- to the log ---------------------------------------------------------------------------------------------------

void Fill(v1::AgentEvent& wire, const Prepared& event) {
  wire.mutable_prepared()->set_local_world_size(static_cast<uint32_t>(event.local_world_size));
  wire.mutable_prepared()->set_spares(static_cast<uint32_t>(event.spares));
}

void Fill(v1::AgentEvent& wire, const Begin& event) {
  wire.mutable_begin()->set_master_address(event.master_address);
  wire.mutable_begin()->set_seen_epoch(event.seen_epoch);
  wire.mutable_begin()->set_hosts_master(event.hosts_master);
}

void Fill(v1::AgentEvent& wire, const LinkUp& event) { wire.mutable_link_up()->set_master_ip(event.master_ip); }

void Fill(v1::AgentEvent& wire, const CandidateReady& event) {
  wire.mutable_candidate_ready()->set_address(event.address);
}

void Fill(v1::AgentEvent& wire, const LinkDown& event) {
  wire.mutable_link_down()->set_why(event.why);
  wire.mutable_link_down()->set_hopeless(event.hopeless);
  wire.mutable_link_down()->set_silent(event.silent);
}

void Fill(v1::AgentEvent& wire, const FromMaster& event) { *wire.mutable_from_master() = event.message; }

void Fill(v1::AgentEvent& wire, const Warm& /*event*/) { wire.mutable_warm(); }

// Which worker an event is about.
template <typename Message, typename Event>
Message& FillWorker(Message& message, const Event& event) {
  message.set_local_rank(static_cast<uint32_t>(event.local_rank));
  message.set_epoch(event.epoch);
  return message;
}

void Fill(v1::AgentEvent& wire, const WorkerStarted& event) {
  FillWorker(*wire.mutable_worker_started(), event).set_pid(event.pid);
}

void Fill(v1::AgentEvent& wire, const WorkerStartFailed& event) {
  auto& failed = FillWorker(*wire.mutable_worker_start_failed(), event);
  failed.set_why(event.why);
  failed.set_unix_ms(event.unix_ms);
}

void Fill(v1::AgentEvent& wire, const WorkerStepped& event) {
  auto& stepped = FillWorker(*wire.mutable_worker_stepped(), event);
  stepped.set_step(event.step);
  stepped.set_warm(event.warm);
  *stepped.mutable_progress() = event.progress;
}

void Fill(v1::AgentEvent& wire, const WorkerEnded& event) { *wire.mutable_worker_ended() = event.exited; }

void Fill(v1::AgentEvent& wire, const GroupSignalled& event) {
  FillWorker(*wire.mutable_group_signalled(), event).set_withstands(event.withstands);
}

void Fill(v1::AgentEvent& wire, const GroupGone& event) { FillWorker(*wire.mutable_group_gone(), event); }

void Fill(v1::AgentEvent& wire, const StopSignal& event) {
  wire.mutable_stop_signal()->set_signal(event.signal);
  wire.mutable_stop_signal()->set_wants_safe_point(event.wants_safe_point);
}

void Fill(v1::AgentEvent& wire, const SafePointAsked& event) {
  wire.mutable_safe_point_asked()->set_epoch(event.epoch);
  for (const int rank : event.local_ranks) {
    wire.mutable_safe_point_asked()->add_local_ranks(static_cast<uint32_t>(rank));
  }
}

void Fill(v1::AgentEvent& wire, const WorkerSafe& event) { FillWorker(*wire.mutable_worker_safe(), event); }

void Fill(v1::AgentEvent& wire, const StoreRefusedClient& event) {
  wire.mutable_store_refused_client()->set_epoch(event.epoch);
  wire.mutable_store_refused_client()->set_sentence(event.sentence);
}

void Fill(v1::AgentEvent& wire, const PassSignal& event) { wire.mutable_pass_signal()->set_signal(event.signal); }

void Fill(v1::AgentEvent& wire, const MasterChildFailed& event) {
  wire.mutable_master_child_failed()->set_why(event.why);
}

void Fill(v1::AgentEvent& wire, const MasterChildDied& event) { wire.mutable_master_child_died()->set_why(event.why); }

void Fill(v1::AgentEvent& wire, const Tick& /*event*/) { wire.mutable_tick(); }

// --- and back -----------------------------------------------------------------------------------------------------

Status Wrong(const std::string& what) {
  return absl::DataLossError(fmt::format("the log contradicts itself: {}", what));
}

template <typename OneEvent>
StatusOr<AnyEvent> AnyOf(StatusOr<OneEvent> event) {
  if (!event.ok()) return event.status();
  return StatusOr<AnyEvent>(absl::in_place, *std::move(event));
}

StatusOr<int> RankOf(uint32_t local_rank) {
  if (local_rank < kMaxLocalWorldSize) return static_cast<int>(local_rank);
  return Wrong(fmt::format("local rank {}", local_rank));
}

StatusOr<int> SignalOf(int32_t signal) {
  if (signal > 0 && signal <= kMaxSignal) return signal;
  return Wrong(fmt::format("signal {}", signal));
}

StatusOr<Event> From(const v1::AgentEvent::Prepared& wire) {
  if (wire.local_world_size() == 0 || wire.local_world_size() > kMaxLocalWorldSize ||
      wire.spares() > kMaxLocalWorldSize) {
    return Wrong(fmt::format("{} workers, {} spares", wire.local_world_size(), wire.spares()));
  }
  return Prepared{static_cast<int>(wire.local_world_size()), static_cast<int>(wire.spares())};
}

StatusOr<Event> From(const v1::AgentEvent::WorkerStarted& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return WorkerStarted{rank, wire.epoch(), wire.pid()};
}

StatusOr<Event> From(const v1::AgentEvent::WorkerStartFailed& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return WorkerStartFailed{rank, wire.epoch(), wire.why(), wire.unix_ms()};
}

StatusOr<Event> From(const v1::AgentEvent::WorkerStepped& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return WorkerStepped{rank, wire.epoch(), wire.step(), wire.warm(), wire.progress()};
}

StatusOr<Event> From(const v1::WorkerExited& wire) {
  PHX_RETURN_IF_ERROR(RankOf(wire.local_rank()).status());
  return WorkerEnded{wire};
}

StatusOr<Event> From(const v1::AgentEvent::GroupSignalled& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return GroupSignalled{rank, wire.epoch(), wire.withstands()};
}

StatusOr<Event> From(const v1::AgentEvent::GroupGone& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return GroupGone{rank, wire.epoch()};
}

StatusOr<Event> From(const v1::AgentEvent::StopSignal& wire) {
  PHX_ASSIGN_OR_RETURN(const int signal, SignalOf(wire.signal()));
  return StopSignal{signal, wire.wants_safe_point()};
}

StatusOr<Event> From(const v1::AgentEvent::SafePointAsked& wire) {
  SafePointAsked event{wire.epoch(), {}};
  for (const uint32_t local_rank : wire.local_ranks()) {
    PHX_ASSIGN_OR_RETURN(const int rank, RankOf(local_rank));
    event.local_ranks.insert(rank);
  }
  return event;
}

StatusOr<Event> From(const v1::AgentEvent::WorkerSafe& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return WorkerSafe{rank, wire.epoch()};
}

StatusOr<Event> From(const v1::AgentEvent::PassSignal& wire) {
  PHX_ASSIGN_OR_RETURN(const int signal, SignalOf(wire.signal()));
  return PassSignal{signal};
}

StatusOr<Event> CoreEventOf(const v1::AgentEvent& wire) {
  switch (wire.body_case()) {
    case v1::AgentEvent::kPrepared:
      return From(wire.prepared());
    case v1::AgentEvent::kBegin:
      return Begin{wire.begin().master_address(), wire.begin().seen_epoch(), wire.begin().hosts_master()};
    case v1::AgentEvent::kLinkUp:
      return LinkUp{wire.link_up().master_ip()};
    case v1::AgentEvent::kLinkDown:
      return LinkDown{wire.link_down().why(), wire.link_down().hopeless(), wire.link_down().silent()};
    case v1::AgentEvent::kFromMaster:
      return FromMaster{wire.from_master()};
    case v1::AgentEvent::kWarm:
      return Warm{};
    case v1::AgentEvent::kWorkerStarted:
      return From(wire.worker_started());
    case v1::AgentEvent::kWorkerStartFailed:
      return From(wire.worker_start_failed());
    case v1::AgentEvent::kWorkerStepped:
      return From(wire.worker_stepped());
    case v1::AgentEvent::kWorkerEnded:
      return From(wire.worker_ended());
    case v1::AgentEvent::kGroupSignalled:
      return From(wire.group_signalled());
    case v1::AgentEvent::kGroupGone:
      return From(wire.group_gone());
    case v1::AgentEvent::kStopSignal:
      return From(wire.stop_signal());
    case v1::AgentEvent::kSafePointAsked:
      return From(wire.safe_point_asked());
    case v1::AgentEvent::kWorkerSafe:
      return From(wire.worker_safe());
    case v1::AgentEvent::kStoreRefusedClient:
      return StoreRefusedClient{wire.store_refused_client().epoch(), wire.store_refused_client().sentence()};
    case v1::AgentEvent::kPassSignal:
      return From(wire.pass_signal());
    case v1::AgentEvent::kMasterChildFailed:
      return MasterChildFailed{wire.master_child_failed().why()};
    case v1::AgentEvent::kMasterChildDied:
      return MasterChildDied{wire.master_child_died().why()};
    case v1::AgentEvent::kCandidateReady:
      return CandidateReady{wire.candidate_ready().address()};
    case v1::AgentEvent::kTick:
      return Tick{};
    case v1::AgentEvent::kJoining:
    case v1::AgentEvent::kLeaving:
    case v1::AgentEvent::kSaving:
    case v1::AgentEvent::BODY_NOT_SET:
      break;
  }
  return Wrong("an event that this version does not know");
}

}  // namespace

v1::AgentEvent MessageOf(const AnyEvent& event) {
  v1::AgentEvent wire;
  if (const auto* of_core = std::get_if<Event>(&event)) {
    std::visit([&wire](const auto& e) { Fill(wire, e); }, *of_core);
  }
  if (const auto* of_joining = std::get_if<joining::Event>(&event)) *wire.mutable_joining() = MessageOf(*of_joining);
  if (const auto* of_leaving = std::get_if<leaving::Event>(&event)) *wire.mutable_leaving() = MessageOf(*of_leaving);
  if (const auto* of_saving = std::get_if<saving::Event>(&event)) *wire.mutable_saving() = MessageOf(*of_saving);
  return wire;
}

StatusOr<AnyEvent> EventOf(const v1::AgentEvent& wire) {
  if (wire.has_joining()) return AnyOf(JoiningEventOf(wire.joining()));
  if (wire.has_leaving()) return AnyOf(LeavingEventOf(wire.leaving()));
  if (wire.has_saving()) return AnyOf(SavingEventOf(wire.saving()));
  return AnyOf(CoreEventOf(wire));
}

}  // namespace phalanx::agent

#include "agent/replay/life_events.h"

#include <fmt/format.h>

#include <variant>

namespace phalanx::agent {
namespace {

// Longer than any agent waits; keeps sums of times far from overflow.
constexpr int64_t kMaxBeatMs = 3'600'000;
constexpr int64_t kMaxSinceMs = int64_t{1} << 53;

void Fill(v1::JoiningEvent& wire, const joining::Begun& event) { wire.mutable_begun()->set_since_ms(event.since); }

void Fill(v1::JoiningEvent& wire, const joining::Resolved& event) {
  wire.mutable_resolved()->set_here(event.hosting.here);
  wire.mutable_resolved()->set_bind_address(event.hosting.bind_address);
  wire.mutable_resolved()->set_dial_host(event.hosting.dial_host);
}

void Fill(v1::JoiningEvent& wire, const joining::NotResolved& event) {
  wire.mutable_not_resolved()->set_why(event.why);
}

void Fill(v1::JoiningEvent& wire, const joining::MasterReady& event) {
  wire.mutable_master_ready()->set_port(event.port);
}

void Fill(v1::JoiningEvent& wire, const joining::MasterNotReady& event) {
  wire.mutable_master_not_ready()->set_address_in_use(event.address_in_use);
  wire.mutable_master_not_ready()->set_sentence(event.sentence);
}

void Fill(v1::JoiningEvent& wire, const joining::GivenUp& /*event*/) { wire.mutable_given_up(); }

void Fill(v1::JoiningEvent& wire, const joining::Tick& /*event*/) { wire.mutable_tick(); }

void Fill(v1::LeavingEvent& wire, const leaving::Begun& event) {
  v1::LeavingEvent::Begun& begun = *wire.mutable_begun();
  begun.set_exit_code(event.exit_code);
  begun.set_asked(event.asked);
  begun.set_attached(event.attached);
  begun.set_finished(event.finished);
  begun.set_has_workers(event.has_workers);
  begun.set_has_stream(event.has_stream);
  begun.set_has_master(event.has_master);
  begun.set_beat_interval_ms(event.beat_interval_ms);
}

void Fill(v1::LeavingEvent& wire, const leaving::StorageSettled& event) {
  wire.mutable_storage_settled()->set_storing(event.storing);
  wire.mutable_storage_settled()->set_what(event.what);
  wire.mutable_storage_settled()->set_lending(event.lending);
}

void Fill(v1::LeavingEvent& wire, const leaving::StorageIdle& /*event*/) { wire.mutable_storage_idle(); }

void Fill(v1::LeavingEvent& wire, const leaving::AskedAgain& /*event*/) { wire.mutable_asked_again(); }

void Fill(v1::LeavingEvent& wire, const leaving::StreamBroken& event) {
  wire.mutable_stream_broken()->set_storing(event.storing);
}

void Fill(v1::LeavingEvent& wire, const leaving::StreamClosed& /*event*/) { wire.mutable_stream_closed(); }

void Fill(v1::LeavingEvent& wire, const leaving::MasterEnded& event) {
  wire.mutable_master_ended()->set_killed(event.killed);
}

void Fill(v1::LeavingEvent& wire, const leaving::MasterAnswered& /*event*/) { wire.mutable_master_answered(); }

void Fill(v1::LeavingEvent& wire, const leaving::Tick& event) { wire.mutable_tick()->set_storing(event.storing); }

Status Wrong(const char* what) { return absl::DataLossError(fmt::format("the log contradicts itself: {}", what)); }

StatusOr<joining::Event> From(const v1::JoiningEvent::Begun& wire) {
  if (wire.since_ms() < 0 || wire.since_ms() > kMaxSinceMs) return Wrong("when it began to join");
  return joining::Begun{wire.since_ms()};
}

StatusOr<joining::Event> From(const v1::JoiningEvent::MasterReady& wire) {
  if (wire.port() > UINT16_MAX) return Wrong("the port of a master");
  return joining::MasterReady{static_cast<uint16_t>(wire.port())};
}

StatusOr<leaving::Event> From(const v1::LeavingEvent::Begun& wire) {
  if (wire.beat_interval_ms() <= 0 || wire.beat_interval_ms() > kMaxBeatMs) return Wrong("the interval of beats");
  leaving::Begun event;
  event.exit_code = wire.exit_code();
  event.asked = wire.asked();
  event.attached = wire.attached();
  event.finished = wire.finished();
  event.has_workers = wire.has_workers();
  event.has_stream = wire.has_stream();
  event.has_master = wire.has_master();
  event.beat_interval_ms = wire.beat_interval_ms();
  return event;
}

}  // namespace

v1::JoiningEvent MessageOf(const joining::Event& event) {
  v1::JoiningEvent wire;
  std::visit([&wire](const auto& e) { Fill(wire, e); }, event);
  return wire;
}

v1::LeavingEvent MessageOf(const leaving::Event& event) {
  v1::LeavingEvent wire;
  std::visit([&wire](const auto& e) { Fill(wire, e); }, event);
  return wire;
}

StatusOr<joining::Event> JoiningEventOf(const v1::JoiningEvent& wire) {
  switch (wire.body_case()) {
    case v1::JoiningEvent::kBegun:
      return From(wire.begun());
    case v1::JoiningEvent::kResolved:
      return joining::Resolved{{wire.resolved().here(), wire.resolved().bind_address(), wire.resolved().dial_host()}};
    case v1::JoiningEvent::kNotResolved:
      return joining::NotResolved{wire.not_resolved().why()};
    case v1::JoiningEvent::kMasterReady:
      return From(wire.master_ready());
    case v1::JoiningEvent::kMasterNotReady:
      return joining::MasterNotReady{wire.master_not_ready().address_in_use(), wire.master_not_ready().sentence()};
    case v1::JoiningEvent::kGivenUp:
      return joining::GivenUp{};
    case v1::JoiningEvent::kTick:
      return joining::Tick{};
    case v1::JoiningEvent::BODY_NOT_SET:
      break;
  }
  return Wrong("an event that this version does not know");
}

StatusOr<leaving::Event> LeavingEventOf(const v1::LeavingEvent& wire) {
  switch (wire.body_case()) {
    case v1::LeavingEvent::kBegun:
      return From(wire.begun());
    case v1::LeavingEvent::kStorageSettled:
      return leaving::StorageSettled{wire.storage_settled().storing(), wire.storage_settled().what(),
                                     wire.storage_settled().lending()};
    case v1::LeavingEvent::kStorageIdle:
      return leaving::StorageIdle{};
    case v1::LeavingEvent::kAskedAgain:
      return leaving::AskedAgain{};
    case v1::LeavingEvent::kStreamBroken:
      return leaving::StreamBroken{wire.stream_broken().storing()};
    case v1::LeavingEvent::kStreamClosed:
      return leaving::StreamClosed{};
    case v1::LeavingEvent::kMasterEnded:
      return leaving::MasterEnded{wire.master_ended().killed()};
    case v1::LeavingEvent::kMasterAnswered:
      return leaving::MasterAnswered{};
    case v1::LeavingEvent::kTick:
      return leaving::Tick{wire.tick().storing()};
    case v1::LeavingEvent::BODY_NOT_SET:
      break;
  }
  return Wrong("an event that this version does not know");
}

}  // namespace phalanx::agent

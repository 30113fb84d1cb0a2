#include "simulation/sim_master.h"

#include <algorithm>
#include <utility>

#include "master/core/admit.h"
#include "master/core/messages.h"
#include "master/core/platform.h"
#include "master/journal/snapshot.h"
#include "simulation/judge.h"
#include "simulation/sim_journal.h"
#include "simulation/story.h"
#include "simulation/telling.h"
#include "wire/limits.h"

namespace phalanx::simulation {
SimMaster::SimMaster(const Parts& parts, const MachineClock& clock, MasterSetup setup)
    : parts_(parts), clock_(clock), setup_(std::move(setup)) {
  attendance_.empty_since = Now();
  state_.job_id = setup_.job_id;
  if (setup_.spec) state_.SetSpec(*setup_.spec);
  if (!setup_.resume) parts_.journal.Remove();
  if (setup_.past) state_ = *setup_.past;
  state_.master_id = "simulated";
  if (setup_.resume) parts_.judge.OnNewMaster(state_);
  parts_.story.Say(parts_.queue.now(), "master", "starts{}",
                   setup_.past     ? " from its journal"
                   : setup_.resume ? " and finds no journal of use"
                                   : "");
  if (state_.arrivals > 0) {
    const std::vector<master::Decision> decisions = master::Resume(state_, Now());
    TellMasterDecisions(parts_.story, parts_.queue.now(), *this, decisions);
    CarryOut(decisions);
  }
  Settle();
}

// --- streams ------------------------------------------------------------------------------------------------------

void SimMaster::OnAccepted(StreamId stream, AgentEnd* agent) {
  const uint64_t id = next_session_++;
  Session& session = sessions_[id];
  session.stream = stream;
  session.agent = agent;
  session.heard_at = Now();
  session_of_[stream] = id;
  ++attendance_.open_streams;
  deadlines_.Begin(id, Now());
  Settle();
}

void SimMaster::OnMessage(StreamId stream, v1::AgentMessage message) {
  const auto known = session_of_.find(stream);
  if (ended_ || known == session_of_.end()) return;
  const uint64_t id = known->second;
  Session& session = sessions_.at(id);
  if (session.read_over || session.ending || message.sequence() <= session.last_sequence) return;
  session.last_sequence = message.sequence();
  session.heard_at = Now();
  if (session.greeted) {
    Feed(master::EventOf(id, std::move(message)));
  } else {
    session.greeted = true;
    if (const std::string fault = master::FirstMessageFault(message); !fault.empty()) {
      Do({id, std::make_shared<const v1::MasterMessage>(master::RefusedFor(fault))}, "");
    } else {
      const std::string address = message.hello().address();
      Feed(master::AttachedOf(id, std::move(message), address));
      if (state_.nodes.contains(id)) attendance_.any_agent = true;
    }
  }
  Settle();
}

void SimMaster::OnReadEnd(StreamId stream) {
  const auto known = session_of_.find(stream);
  if (ended_ || known == session_of_.end()) return;
  EndRead(known->second);
  Settle();
}

void SimMaster::OnPing(StreamId stream, Task pong) {
  if (!ended_) parts_.network.Send(stream, Way::kDown, std::move(pong));
}

void SimMaster::Kill() {
  if (ended_) return;
  killed_ = true;
  End("it was killed");
}

int SimMaster::MachineOf(uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? -1 : found->second.agent->machine();
}

Instant SimMaster::HeardAt(uint64_t session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? kNever : found->second.heard_at;
}

SimMaster::Session* SimMaster::Find(uint64_t session) {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? nullptr : &found->second;
}

// --- time ---------------------------------------------------------------------------------------------------------

void SimMaster::Settle() {
  if (ended_) return;
  const Instant ends_at = master::EndsAt(attendance_, state_, setup_.linger_ms);
  if (Now() >= ends_at) return End(state_.outcome ? "the job is over" : "its last agent has gone");
  const Instant deadline = deadlines_.Next([this](uint64_t session) { return Find(session) != nullptr; });
  const Instant wake = std::min({master::NextDeadline(state_), deadline, ends_at});
  if (wake == kNever || (alarm_at_ != kNever && alarm_at_ <= wake)) return;
  alarm_at_ = wake;
  const uint64_t alarm = ++alarm_;
  parts_.queue.At(clock_.WhenReads(wake), [this, alarm] {
    // Its turn is behind what has come by now, beats above all.
    gate_.Pass([this, alarm] {
      parts_.queue.After(0, [this, alarm] {
        gate_.Pass([this, alarm] {
          if (!ended_ && alarm == alarm_) Tick();
        });
      });
    });
  });
}

void SimMaster::Tick() {
  alarm_at_ = kNever;
  const Instant now = Now();
  for (const uint64_t id : deadlines_.TakeDue(now)) {
    const Session* const session = Find(id);
    if (session != nullptr && master::HasFailed(session->greeted, session->ending)) Cancel(id);
  }
  idle_ticks_ = now == ticked_at_ ? idle_ticks_ + 1 : 0;
  ticked_at_ = now;
  parts_.judge.OnMasterTicks(idle_ticks_);
  if (master::NextDeadline(state_) <= now) Feed(master::Tick{});
  Settle();
}

void SimMaster::End(const std::string& why) {
  ended_ = true;
  parts_.story.Say(parts_.queue.now(), "master", "ends: {}", why);
  for (auto& [id, session] : sessions_) {
    parts_.network.Send(session.stream, Way::kDown,
                        [agent = session.agent, stream = session.stream] { agent->OnDown(stream, "Socket closed"); });
    parts_.network.Close(session.stream, Way::kDown);
    parts_.network.Close(session.stream, Way::kUp);
  }
  sessions_.clear();
  session_of_.clear();
  parts_.on_end();
}

void SimMaster::HearPlatform(const v1::PlatformMessage& message) {
  if (ended_ || state_.candidacy || state_.moved_to) return;
  Feed(master::SaidByPlatform(message));
  Settle();
}

void SimMaster::Look(bool ranks) {
  if (ended_) return;
  Feed(master::LookedAt{ranks});
  Settle();
}

// --- carrying out -------------------------------------------------------------------------------------------------

void SimMaster::Feed(const master::Event& event) {
  const Instant now = Now();
  const MasterBefore before = parts_.judge.BeforeMasterStep(state_);
  const std::vector<master::Decision> decisions = master::Step(state_, event, now);
  TellMasterStep(parts_.story, parts_.queue.now(), *this, event, decisions);
  parts_.judge.OnMasterStep(*this, before, event, decisions, now);
  CarryOut(decisions);
}

void SimMaster::CarryOut(const std::vector<master::Decision>& decisions) {
  for (const master::Decision& decision : decisions) {
    std::visit([this, &decision](const auto& action) { Do(action, decision.reason); }, decision.action);
  }
}

void SimMaster::Send(uint64_t session, std::shared_ptr<const v1::MasterMessage> message) {
  Session* const to = Find(session);
  if (to == nullptr || to->ending || to->cancelled || to->read_over) {
    return parts_.judge.OnToldTooLate(session, *message);
  }
  if (parts_.network.Held(to->stream, Way::kDown) >= wire::kMaxQueued) return Cancel(session);
  parts_.network.Send(to->stream, Way::kDown, [agent = to->agent, stream = to->stream, message = std::move(message)] {
    agent->OnMessage(stream, message);
  });
}

// Nothing more is sent; the stream ends when the agent has half-closed it, or is cancelled when it is overdue.
void SimMaster::EndSession(uint64_t id) {
  Session* const session = Find(id);
  if (session == nullptr || session->ending) return;
  session->ending = true;
  deadlines_.Begin(id, Now());
}

// RST_STREAM: what has not left yet is not sent.
void SimMaster::Cancel(uint64_t id) {
  Session* const session = Find(id);
  if (session == nullptr || std::exchange(session->cancelled, true)) return;
  parts_.network.Send(session->stream, Way::kDown,
                      [agent = session->agent, stream = session->stream] { agent->OnDown(stream, "CANCELLED"); });
  parts_.network.Close(session->stream, Way::kDown);
  parts_.network.Close(session->stream, Way::kUp);
  parts_.network.Lose(session->stream, Way::kUp);
  parts_.queue.After(0, [this, id] {
    gate_.Pass([this, id] {
      EndRead(id);
      Settle();
    });
  });
}

// The stream is over when nothing more can be read and nothing waits to be written.
void SimMaster::EndRead(uint64_t id) {
  Session* const session = Find(id);
  if (ended_ || session == nullptr || std::exchange(session->read_over, true)) return;
  Feed(master::AgentDetached{id, "its stream broke"});
  Over(id);
}

void SimMaster::Over(uint64_t id) {
  const auto session = sessions_.find(id);
  if (session == sessions_.end()) return;
  const StreamId stream = session->second.stream;
  if (!session->second.cancelled) {
    // The server's answer to a half-close.
    parts_.network.Send(stream, Way::kDown, [agent = session->second.agent, stream] {
      agent->OnDown(stream, "the master ended the stream");
    });
    parts_.network.Close(stream, Way::kDown);
  }
  session_of_.erase(stream);
  sessions_.erase(session);
  if (--attendance_.open_streams == 0) attendance_.empty_since = Now();
}

void SimMaster::Do(const master::Send& action, const std::string&) {
  Send(action.session, action.message);
  if (master::EndsStream(*action.message)) EndSession(action.session);
}

void SimMaster::Do(const master::Drop& action, const std::string&) { Cancel(action.session); }

void SimMaster::Do(const master::Record&, const std::string&) {}  // the story tells of it

void SimMaster::Do(const master::Probe&, const std::string&) {}

void SimMaster::Do(const master::Remember& action, const std::string&) {
  parts_.journal.Put(master::SaveState(state_, Now()));
  if (action.when != master::Remember::When::kBehind) parts_.journal.Flush();
}

}  // namespace phalanx::simulation

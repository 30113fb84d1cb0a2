// The master's process: the production core (src/master/core/core.h), and a shell that does with each event and
// decision what src/master/serve/server.cc and src/wire/session.cc do. Messages are the real protobuf messages, through
// src/master/core/admit.h.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "master/core/core.h"
#include "master/serve/shell_decisions.h"
#include "phalanx/v1/agent.pb.h"
#include "simulation/machine.h"
#include "simulation/network.h"
#include "simulation/scenario.h"

namespace phalanx::simulation {

class Judge;
class SimJournal;
class SimMaster;
class Story;

// The agent's end of a stream.
class AgentEnd {
 public:
  virtual ~AgentEnd() = default;
  virtual void OnMessage(StreamId stream, const std::shared_ptr<const v1::MasterMessage>& message) = 0;
  // The stream is over.
  virtual void OnDown(StreamId stream, const std::string& why) = 0;
  virtual int machine() const = 0;
};

struct MasterSetup {
  std::string job_id;
  std::optional<v1::JobSpec> spec;   // absent: the first node's counts
  std::optional<int64_t> linger_ms;  // present: embedded
  // --resume: the job as the journal tells of it, where that is readable.
  bool resume = false;
  std::optional<master::JobState> past;
};

class SimMaster {
 public:
  struct Parts {
    EventQueue& queue;
    Network& network;
    Story& story;
    Judge& judge;
    SimJournal& journal;
    std::function<void()> on_end;  // of its process
  };

  SimMaster(const Parts& parts, const MachineClock& clock, MasterSetup setup);
  SimMaster(const SimMaster&) = delete;
  SimMaster& operator=(const SimMaster&) = delete;

  // --- from streams; each only while it listens ---
  void OnAccepted(StreamId stream, AgentEnd* agent);
  void OnMessage(StreamId stream, v1::AgentMessage message);
  void OnReadEnd(StreamId stream);  // half-closed or broken

  // HTTP/2's, answered by the process.
  void OnPing(StreamId stream, Task pong);

  void HearPlatform(const v1::PlatformMessage& message);

  // `phalanx status`.
  void Look(bool ranks);

  // kill -9. What it has written still arrives.
  void Kill();

  bool listening() const { return !ended_; }
  bool killed() const { return killed_; }
  Gate& gate() { return gate_; }
  MachineClock& clock() { return clock_; }
  const master::JobState& state() const { return state_; }
  // The machine of a session that is open; -1: there is none.
  int MachineOf(uint64_t session) const;
  // When the shell last got a message of an open session, by its own clock.
  Instant HeardAt(uint64_t session) const;
  // Calls `look(session, heard_at)` for each open session, in their order.
  template <typename Look>
  void EachHeard(const Look& look) const {
    for (const auto& [id, session] : sessions_) look(id, session.heard_at);
  }

 private:
  struct Session {
    StreamId stream = 0;
    AgentEnd* agent = nullptr;
    uint64_t last_sequence = 0;
    Instant heard_at = 0;
    bool greeted = false;
    bool ending = false;
    bool cancelled = false;
    bool read_over = false;
  };

  Instant Now() const { return clock_.Read(parts_.queue.now()); }
  void Feed(const master::Event& event);
  void CarryOut(const std::vector<master::Decision>& decisions);
  void Tick();
  void Settle();  // after anything has happened: is it over, and when is the next alarm
  void End(const std::string& why);

  Session* Find(uint64_t session);
  void Send(uint64_t session, std::shared_ptr<const v1::MasterMessage> message);
  void EndSession(uint64_t session);
  void Cancel(uint64_t session);
  void EndRead(uint64_t session);
  void Over(uint64_t session);

  void Do(const master::Send& action, const std::string& reason);
  void Do(const master::Drop& action, const std::string& reason);
  void Do(const master::Record& action, const std::string& reason);
  void Do(const master::Remember& action, const std::string& reason);
  void Do(const master::Probe& action, const std::string& reason);

  const Parts parts_;
  MachineClock clock_;
  const MasterSetup setup_;
  Gate gate_;
  master::JobState state_;
  bool ended_ = false;
  bool killed_ = false;

  std::map<uint64_t, Session> sessions_;
  std::map<StreamId, uint64_t> session_of_;
  uint64_t next_session_ = 1;
  master::StreamDeadlines deadlines_;
  master::Attendance attendance_;
  Instant ticked_at_ = kNever;
  int idle_ticks_ = 0;  // in a row, between which no time has passed
  Instant alarm_at_ = kNever;
  uint64_t alarm_ = 0;  // numbers alarms; an older one is not served
};

}  // namespace phalanx::simulation

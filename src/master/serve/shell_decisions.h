// What the master's shell decides beside the core: when it ends, which streams have had their time, how a stream must
// begin, who hears that the disk fails, which job a journal may be taken up for. Pure; src/master/serve/server.h
// carries it out.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "master/core/core.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// A stream that has not said Hello within this, or does not end within this, is cancelled.
constexpr int kHandshakeMs = 10'000;
// A master that lingers, and whose first agent never came, ends after this.
constexpr int64_t kFirstAgentMs = 60'000;

// Who is with the master.
struct Attendance {
  size_t open_streams = 0;
  bool any_agent = false;   // one has been let in, now or earlier
  Instant empty_since = 0;  // where no stream is open: since when
};

// When a master has nothing more to do: its job is over and nobody is with it, or it has lingered (`linger_ms`, absent:
// it waits on) behind its last agent. kNever: not while nothing happens.
Instant EndsAt(const Attendance& attendance, const JobState& job, std::optional<int64_t> linger_ms);

// Streams whose patience runs: those that are to say Hello, and those that are to end.
class StreamDeadlines {
 public:
  // `now` never decreases.
  void Begin(uint64_t session, Instant now) { waiting_.push_back({now + kHandshakeMs, session}); }
  // When the next one is due; kNever: none. Forgets those before it for which `is_open` is false.
  Instant Next(const std::function<bool(uint64_t)>& is_open);
  // Those that are due, and waits for them no longer.
  std::vector<uint64_t> TakeDue(Instant now);

 private:
  std::deque<std::pair<Instant, uint64_t>> waiting_;  // in order of time
};

// Whether a stream whose patience is over is cancelled.
constexpr bool HasFailed(bool greeted, bool ending) { return !greeted || ending; }

// Why a stream that begins with this message is refused; empty: it is not.
std::string FirstMessageFault(const v1::AgentMessage& message);

// The stream of the node on whose console the master's own troubles are told; 0: nobody is there.
uint64_t ListenerOf(const JobState& job);

// How long an answer to `phalanx status` may be given again. It tells of every node, and making it takes the master's
// one sequence a quarter of a microsecond for each, half of one where nothing is in caches (bench/status.py): 2.5 to 5
// ms for 10,000. Made anew at most once in a millisecond for each 20 nodes, it takes a hundredth of the sequence,
// whoever asks and how often. A job of fewer than 20 nodes is told as it is.
constexpr int64_t kStatusNodesPerMs = 20;
constexpr int64_t StatusKeptMs(size_t nodes) { return static_cast<int64_t>(nodes) / kStatusNodesPerMs; }

// Questions of commands that are answered at the same time: one of 1,024 rows may hold some megabytes until it is read.
constexpr int kMaxQuestions = 64;
// Why a question is not answered while so many are, itself included; empty: it is.
std::string WhyNoAnswer(int questions);

// Whether the job of a journal may be taken up by a master that was started with the flags `asked`. InvalidArgument
// names the flag that differs.
Status MayTakeUp(const v1::JobSpec& was, const v1::JobSpec& asked);

}  // namespace phalanx::master

// How a node finds its job's master, decided purely: same state, event and time give the same decisions. It asks for
// the endpoint's addresses until they are known, starts the master where that is this node's part, and says when the
// node can join. src/agent/node/joining.cc carries the actions out, in order, and brings the events.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace phalanx::agent::joining {

// Between two questions for an endpoint that nobody knows: in a cluster that still starts up, names come late.
constexpr int64_t kResolveAgainMs = 1'000;
// A master that this node starts says within that where it listens.
constexpr int64_t kMasterStartMs = 60'000;
// A master that this node starts lives on for this behind its last agent, so that nodes come back to it. One of a job
// on one node ends with its node: nobody else could come.
constexpr int64_t kMasterLingerMs = 10'000;
constexpr int64_t MasterLingerMs(uint32_t max_nodes) { return max_nodes == 1 ? 0 : kMasterLingerMs; }

struct Options {
  bool standalone = false;      // the job has no other node: its master is here
  bool has_own_master = false;  // PHALANX_MASTER_ADDR names the master: nobody starts one
  std::string endpoint_host;
  uint16_t endpoint_port = 0;  // 0: any free one
  int64_t join_timeout_ms = 600'000;
};

// --- events -------------------------------------------------------------------------------------------------------

// Who starts the master, by the endpoint's addresses (DecideHosting, src/agent/node/embedded_master.h).
struct Hosting {
  bool here = false;
  std::string bind_address;
  std::string dial_host;
};

struct Begun {        // workers and places of this node are known
  Instant since = 0;  // the time to find the master began
};
struct Resolved {
  Hosting hosting;
};
struct NotResolved {
  std::string why;
};
struct MasterReady {
  uint16_t port = 0;
};
struct MasterNotReady {
  bool address_in_use = false;
  std::string sentence;
};
struct GivenUp {};  // the node goes
struct Tick {};

using Event = std::variant<Begun, Resolved, NotResolved, MasterReady, MasterNotReady, GivenUp, Tick>;

// --- actions ------------------------------------------------------------------------------------------------------

struct Resolve {};  // the endpoint's name; Resolved or NotResolved follows
struct StartMaster {
  std::string bind_address;
  uint16_t port = 0;
};
struct Join {  // the stream is opened there
  std::string host;
  uint16_t port = 0;
};
struct Say {
  std::string text;
};
struct Fail {  // the node cannot join
  std::string why;
};
struct TellMasterDied {  // one that was started again: agent/core/core.h knows what that means
  std::string why;
};

using Action = std::variant<Resolve, StartMaster, Join, Say, Fail, TellMasterDied>;

struct Decision {
  Action action;
  std::string reason;
};

// --- state --------------------------------------------------------------------------------------------------------

enum class Phase { kBefore, kFinding, kStarting, kOver };

struct State {
  Options options;
  Phase phase = Phase::kBefore;
  bool joined = false;
  bool told = false;  // that the endpoint is not known
  Instant resolve_until = 0;
  Instant resolve_at = kNever;
  std::string dial_host;  // of the master that is being started
  Instant start_by = kNever;
};

std::vector<Decision> Step(State& state, const Event& event, Instant now);

// When the shell must send Tick; kNever where nothing is due.
Instant NextDeadline(const State& state);

}  // namespace phalanx::agent::joining

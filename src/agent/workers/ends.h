// What a node decides about the end of one worker: at which sign of it the end is told, and whether the kernel's
// account of memory has a part in what is told. Pure: processes have been looked at before.
// src/agent/workers/workers.cc does so, and carries out what is decided here, in order.
//
// The kernel begins with a death long before it is done: 25 ms with torch mapped, seconds with a large memory. All that
// time the peers of the rank wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace phalanx::agent::ends {

struct Cause {
  int exit_code = 0;  // counts where signal is 0
  int signal = 0;
};

// --- events -------------------------------------------------------------------------------------------------------

struct KilledByUs {};          // SIGKILL is sent to its group
struct Dying {                 // its main thread ends, or executes another program
  std::optional<Cause> cause;  // as the kernel shows it by now; nothing: it runs, or cannot be seen
};
struct KillsCounted {  // follows CountKills
  int64_t kills = 0;   // by the out-of-memory killer, in this round
};
struct Reaped {
  Cause cause;
};

using Event = std::variant<KilledByUs, Dying, KillsCounted, Reaped>;

// --- actions ------------------------------------------------------------------------------------------------------

struct CountKills {};  // KillsCounted follows, at once
// Once in a worker's life. `asks_memory`: the out-of-memory killer may have had a part in it.
struct TellEnd {
  bool asks_memory = false;
};
struct LookAfterGroup {};  // what it has left behind is waited for

using Action = std::variant<CountKills, TellEnd, LookAfterGroup>;

struct Decision {
  Action action;
  std::string reason;
};

// --- state --------------------------------------------------------------------------------------------------------

struct State {
  bool killed_by_us = false;
  bool told = false;
  bool over = false;  // reaped
};

std::vector<Decision> Step(State& state, const Event& event);

// Whether its end, should there be one, is still to be told and was not our doing: another's may be mistaken for it.
bool IsOpen(const State& state);

}  // namespace phalanx::agent::ends

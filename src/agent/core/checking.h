// What a node does when it is to be checked (CheckOrder of proto/phalanx/v1/health.proto), decided purely: it hands the
// order to a helper program, opens the store where two nodes meet, and tells its master what came of it.
// src/agent/node/checking.cc carries the actions out, in order, and brings the events.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "phalanx/v1/health.pb.h"

namespace phalanx::agent::checking {

// The helper ends what it was told to check at its limit, and says so within this; else it is ended itself.
constexpr int64_t kHelperAnswerMs = 5'000;
// It may take so long to begin without losing of an order's time. Both together are less than a master waits.
constexpr int64_t kHelperStartMs = 8'000;
// Of these, so much is for a program that imports torch by itself. Where an order waits for a zygote it does so for the
// rest, or for half of the order's own time where that is more, but not for all that a large script imports.
constexpr int64_t kOwnImportsMs = 2'000;
constexpr int64_t kMostZygoteMs = 30'000;
// Lines that name a result; more come from a program that floods.
constexpr int kMostResults = 64;

// --- events -------------------------------------------------------------------------------------------------------

struct Wanted {};  // the job checks its nodes: the helper may import what it needs meanwhile
struct Ordered {
  v1::CheckOrder order;
};
struct HelperReady {};
struct HelperEnded {  // also where it could not be started
  std::string why;
};
struct CheckBegun {  // by the helper, for that order
  uint64_t id = 0;
  std::string check;
};
struct CheckTold {
  uint64_t id = 0;
  v1::CheckResult result;
};
struct CheckDone {
  uint64_t id = 0;
  std::string ended;  // why it did not come to its end by itself; empty: it did
};
struct Unasked {};  // another stream begins: who gave the order counts this node as gone
struct Over {};     // the node trains, or leaves: nothing more is checked for now
struct Tick {};

using Event =
    std::variant<Wanted, Ordered, HelperReady, HelperEnded, CheckBegun, CheckTold, CheckDone, Unasked, Over, Tick>;

// --- actions ------------------------------------------------------------------------------------------------------

// Forked by the zygote, where there is one, as soon as it has done its imports; else a process of its own. HelperReady
// or HelperEnded follows.
struct StartHelper {};
struct HurryHelper {};  // where the zygote has not forked it yet: a process of its own
struct EndHelper {};    // with all that it has started; nothing follows
struct OpenStore {      // on the port that the master knows
  uint32_t port = 0;
  std::vector<std::string> member_addresses;
};
struct CloseStore {};
struct Give {  // to the helper; what runs there for an earlier order ends
  uint64_t id = 0;
  v1::CheckOrder order;
};
struct Report {
  v1::CheckReport report;
};

using Action = std::variant<StartHelper, HurryHelper, EndHelper, OpenStore, CloseStore, Give, Report>;

struct Decision {
  Action action;
  std::string reason;
};

// --- state --------------------------------------------------------------------------------------------------------

enum class Helper { kNone, kStarting, kReady };

struct State {
  Helper helper = Helper::kNone;
  uint64_t id = 0;       // of the last order that was given to it
  bool ordered = false;  // `order` has no answer yet
  Instant ordered_at = 0;
  v1::CheckOrder order;
  bool store_open = false;
  std::string check;  // that runs
  v1::CheckReport report;
  Instant due = kNever;
  Instant hurry_at = kNever;  // the zygote is waited for until then
};

std::vector<Decision> Step(State& state, const Event& event, Instant now);

// When the shell must send Tick; kNever where nothing is due.
Instant NextDeadline(const State& state);

}  // namespace phalanx::agent::checking

// Which nodes of a job may train, decided purely by checks of them: what is checked, with whom, and who is left out. No
// I/O, clock, thread or randomness. src/master/core/checks.h feeds it and sends what it orders; docs/node-health.md
// tells the story.
//
// * A check has parts. In the first each node is checked alone; in the next ones in pairs
// (src/master/rules/suspects.h),
//   until each culprit is named; in the last, where that is asked for, all good ones together.
// * Whoever is left out is so for a time, twice as long each further time, and is checked again when that is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "master/rules/stragglers.h"
#include "master/rules/suspects.h"
#include "phalanx/v1/health.pb.h"

namespace phalanx::master {

constexpr int64_t kDefaultCheckLimitMs = 60'000;
constexpr int64_t kDefaultLeftOutMs = 600'000;
// A node that is left out again and again is asked no more often than this.
constexpr int64_t kMostLeftOutMs = 4 * 3'600'000;
// An agent ends what it was told to check at its limit, and says so within this.
constexpr int64_t kCheckAnswerMs = 15'000;
// An answer to an order is waited for so long.
inline int64_t AnswerWithinMs(const v1::CheckSpec& spec) { return spec.limit_ms() + kCheckAnswerMs; }
// Of so many nodes at most what each has measured goes into the record.
constexpr size_t kMostRecorded = 256;
// The last check is remembered by the next master, of at most so many bytes: some 100 nodes' values.
constexpr size_t kMostKeptBytes = 128 * 1'024;
// Machines that are remembered as left out. The one whose time ends first is forgotten for a further one.
constexpr size_t kMaxLeftOut = 4'096;

struct HealthMember {
  uint64_t session = 0;
  std::string name;
  std::string hostname;
  std::string address;
};

// What has been ordered of a part, and not come back.
struct CheckGroup {
  std::vector<size_t> nodes;  // by group rank, of CheckRun::nodes
  std::vector<size_t> owed;   // of those
  bool is_void = false;       // one of them has gone: it says nothing
  std::string failed;         // what has, first
  std::vector<v1::CheckValue> values;
};

struct CheckRun {
  uint64_t id = 0;
  Instant begun_at = 0;
  v1::CheckSpec spec;
  size_t keep = 0;         // so many nodes stay, however slow they are
  bool newcomers = false;  // others train meanwhile
  std::vector<HealthMember> nodes;
  std::map<uint64_t, size_t> by_session;
  Suspects suspects = Suspects(0);
  std::vector<Measured> measured;         // by node
  std::vector<std::string> own_fault;     // by node; empty: it has failed in nothing alone
  std::vector<std::string> last_failure;  // by node, in a pair
  uint32_t part = 0;
  v1::CheckOrder::Kind kind = v1::CheckOrder::ALONE;
  std::vector<CheckGroup> groups;
  std::map<size_t, size_t> group_of;  // by node
  size_t open = 0;                    // groups that owe something
  bool all_checked = false;
  Instant due = kNever;
  v1::CheckSummary summary;
};

struct LeftOutMachine {
  std::string node;
  std::string reason;
  Instant until = 0;
  uint32_t times = 0;
  bool needs_others = false;  // a check of it alone does not see whether it is mended
};
// Host name and address. Of several agents of one machine, one that fails is reason enough.
using Machine = std::pair<std::string, std::string>;

struct HealthState {
  uint64_t runs = 0;
  std::optional<CheckRun> run;
  // Also of those whose time is over, until a check finds them good.
  std::map<Machine, LeftOutMachine> left_out;
  v1::CheckSummary last;  // run 0: there was none
  // The journal has it: every snapshot writes it anew, so one of very many nodes is in the record alone.
  bool last_is_kept = false;
};

// What is to be sent, and what has come of it.
struct HealthOrders {
  struct Group {
    std::vector<uint64_t> sessions;  // by group rank
    std::vector<std::string> names;
  };
  v1::CheckOrder order;  // the same for all
  std::vector<Group> groups;
  bool over = false;        // HealthState::last has the verdict
  bool gone = false;        // ... and a node went while it was checked
  bool all_failed = false;  // ... and all good ones together have failed
  // Sessions that were checked: why each is left out; empty: it may train.
  std::vector<std::pair<uint64_t, std::string>> verdicts;
  // Of few nodes: what each has measured, by name.
  std::vector<std::pair<std::string, std::string>> measured;
};

// `nodes` are to be checked; `keep` of them stay, however slow they are. `newcomers`: others train meanwhile. No check
// is under way.
HealthOrders BeginCheck(HealthState& health, const v1::CheckSpec& spec, std::vector<HealthMember> nodes, size_t keep,
                        bool newcomers, Instant now);
HealthOrders OnCheckReport(HealthState& health, uint64_t session, const v1::CheckReport& report, Instant now);
HealthOrders OnCheckSessionLost(HealthState& health, uint64_t session, Instant now);
HealthOrders OnHealthTick(HealthState& health, Instant now);
// That node comes to its order only now: it has the whole time for it. Nothing where it owes no answer.
void WaitAnew(HealthState& health, uint64_t session, Instant now);
// What was ordered counts no more.
void AbandonCheck(HealthState& health);

// That machine may not train for a time: `first_ms`, twice as long each further time. `needs_others`: as LeftOutMachine
// has it.
void LeaveOut(HealthState& health, const HealthMember& member, const std::string& why, bool needs_others,
              int64_t first_ms, Instant now);
// Why that machine may not train now; null: it may.
const LeftOutMachine* WhyLeftOut(const HealthState& health, const Machine& machine, Instant now);
// When the check under way needs a tick.
Instant NextHealthDeadline(const HealthState& health);

// Those that are left out now and have that name, host name or address.
std::vector<Machine> LeftOutMachines(const HealthState& health, const std::string& name, Instant now);
// What a new master must know, and people are told.
std::vector<v1::LeftOut> LeftOutNow(const HealthState& health, Instant now);
// Of an earlier master's word. Checks are numbered on from it.
void RestoreLastCheck(HealthState& health, v1::CheckSummary told);
// Of an earlier master's word.
void RestoreLeftOut(HealthState& health, const v1::LeftOut& told, Instant now);

}  // namespace phalanx::master

// What a node decides about the lives of its workers: how one begins, when its process group is gone, and which
// processes are strays of one. Pure: processes have been looked at before. src/agent/workers/workers.cc does so, and
// carries out what is decided here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/flags/config.h"

namespace phalanx::agent {

// --- beginnings ---------------------------------------------------------------------------------------------------

struct WarmStart {
  bool possible = false;
  std::string warning;  // for the user; empty: nobody has to know
};

// Why Phalanx's Python files were not found for a launch that asks for a warm start.
std::string WhyNoBootstrap(const LaunchConfig& config);

// Whether spares can be had for this launch. `has_bootstrap`: Phalanx's Python files were found.
WarmStart WarmStartOf(const LaunchConfig& config, bool has_bootstrap);

enum class Beginning {
  kRefused,      // processes of the last life on that local rank still run
  kFromSpare,    // warm, and at once
  kAwaitsSpare,  // warm, when the next spare has been forked
  kCold,
};

// `spare_may_come`: a zygote works or imports.
Beginning BeginningOf(bool last_life_runs, bool spare_waits, bool spare_may_come);

// --- process groups -----------------------------------------------------------------------------------------------

struct SeenProcess {
  int64_t pid = 0;
  int64_t parent = 0;
  int64_t group = 0;
  bool dead = false;  // a zombie, or less: it holds neither memory nor devices
};

std::vector<int64_t> LiveMembers(const std::vector<SeenProcess>& processes, int64_t group);

// What is known of a worker's process group.
struct GroupLook {
  bool worker_ended = false;
  bool exists = true;                  // the kernel knows a process of it, perhaps a zombie
  std::optional<size_t> live_members;  // nothing: nobody has counted them, which costs a look at all processes
};

enum class GroupNow { kThere, kGone, kNotKnown };

// A new life must wait until nothing of the group runs. Zombies may stay for ever where their parent does not ask for
// them, and are not waited for. kNotKnown: live members are to be counted.
GroupNow GroupOf(const GroupLook& look);

// --- strays -------------------------------------------------------------------------------------------------------

// What must be asked of the system for one process. It costs a file, and is asked only where the answer counts.
using AboutProcess = std::function<bool(int64_t pid)>;

// Those of this agent's own children that have left the group of their worker: they live, belong to none of `groups`,
// carry this node's mark and are no part of the pool (the zygotes and spares).
std::vector<int64_t> StraysAmong(const std::vector<SeenProcess>& children, const std::set<int64_t>& groups,
                                 const AboutProcess& is_of_pool, const AboutProcess& has_mark);

// The strays and all that is below them, which would be the next strays.
std::vector<int64_t> WithDescendants(const std::vector<int64_t>& strays, const std::vector<SeenProcess>& processes);

}  // namespace phalanx::agent

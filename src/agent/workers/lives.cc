#include "agent/workers/lives.h"

#include <algorithm>
#include <map>

namespace phalanx::agent {

// --- beginnings ---------------------------------------------------------------------------------------------------

std::string WhyNoBootstrap(const LaunchConfig& config) {
  if (config.interpreter_given) {
    return "PYTHON_EXEC names another interpreter, which has Phalanx's Python files only where PHALANX_BOOTSTRAP_DIR "
           "names them";
  }
  return "Phalanx's Python files are not beside this program; PHALANX_BOOTSTRAP_DIR names them";
}

WarmStart WarmStartOf(const LaunchConfig& config, bool has_bootstrap) {
  if (!config.warm || config.kind == ScriptKind::kProgram) return {};
  if (has_bootstrap) return {true, ""};
  return {false, "warm start is off: " + WhyNoBootstrap(config)};
}

Beginning BeginningOf(bool last_life_runs, bool spare_waits, bool spare_may_come) {
  if (last_life_runs) return Beginning::kRefused;
  if (spare_waits) return Beginning::kFromSpare;
  return spare_may_come ? Beginning::kAwaitsSpare : Beginning::kCold;
}

// --- process groups -----------------------------------------------------------------------------------------------

std::vector<int64_t> LiveMembers(const std::vector<SeenProcess>& processes, int64_t group) {
  std::vector<int64_t> members;
  for (const SeenProcess& process : processes) {
    if (process.group == group && !process.dead) members.push_back(process.pid);
  }
  return members;
}

GroupNow GroupOf(const GroupLook& look) {
  if (!look.worker_ended) return GroupNow::kThere;
  if (!look.exists || look.live_members == size_t{0}) return GroupNow::kGone;
  return look.live_members ? GroupNow::kThere : GroupNow::kNotKnown;
}

// --- strays -------------------------------------------------------------------------------------------------------

std::vector<int64_t> StraysAmong(const std::vector<SeenProcess>& children, const std::set<int64_t>& groups,
                                 const AboutProcess& is_of_pool, const AboutProcess& has_mark) {
  std::vector<int64_t> strays;
  for (const SeenProcess& child : children) {
    if (child.dead || groups.contains(child.group)) continue;
    if (!is_of_pool(child.pid) && has_mark(child.pid)) strays.push_back(child.pid);
  }
  return strays;
}

std::vector<int64_t> WithDescendants(const std::vector<int64_t>& strays, const std::vector<SeenProcess>& processes) {
  std::multimap<int64_t, int64_t> children;
  for (const SeenProcess& process : processes) children.emplace(process.parent, process.pid);
  std::vector<int64_t> all, left = strays;
  std::set<int64_t> seen;
  while (!left.empty()) {
    const int64_t pid = left.back();
    left.pop_back();
    if (!seen.insert(pid).second) continue;
    all.push_back(pid);
    const auto [first, last] = children.equal_range(pid);
    for (auto child = first; child != last; ++child) left.push_back(child->second);
  }
  return all;
}

}  // namespace phalanx::agent

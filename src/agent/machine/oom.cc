#include "agent/machine/oom.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/process/memory.h"
#include "base/process/process.h"

namespace phalanx::agent {
namespace {

using ReadFile = std::function<std::string(const std::string&)>;
using ListFolder = std::function<std::vector<std::string>(const std::string&)>;

constexpr size_t kFileBytesMax = 64 << 10;
// Groups below our own that are looked at: workers may have been moved into some, not into hundreds.
constexpr size_t kGroupsBelowMax = 64;
// Version 1 writes "no limit" as the largest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;
// The kernel takes memory for a group in batches, and refuses the one that would go beyond the limit.
constexpr int64_t kReachedWithin = 1 << 20;

// Nothing where the group is not there, or keeps no account of memory.
std::optional<OomGroup> ReadGroup(const std::string& folder, bool v1, GroupPlace place, const ReadFile& read) {
  const std::string events = read(folder + (v1 ? "/memory.oom_control" : "/memory.events"));
  const std::optional<int64_t> kills = NumberBehind(events, "oom_kill ");
  if (!kills) return std::nullopt;  // also a version 1 of before Linux 4.13, which does not count
  OomGroup group;
  group.folder = folder;
  group.place = place;
  group.kills = *kills;
  if (!v1) {
    group.shortages = NumberBehind(events, "oom ").value_or(0);
    const auto limit = NumberBehind(read(folder + "/memory.max"), "");
    if (limit) group.limit_bytes = limit;
    return group;
  }
  // Version 1 has a second limit, of memory and swap together.
  for (const char* name : {"memory", "memory.memsw"}) {
    const auto limit = NumberBehind(read(fmt::format("{}/{}.limit_in_bytes", folder, name)), "");
    const auto peak = NumberBehind(read(fmt::format("{}/{}.max_usage_in_bytes", folder, name)), "");
    if (!limit || *limit >= kNoLimit) continue;
    group.limit_bytes = std::min(*limit, group.limit_bytes.value_or(*limit));
    group.limit_reached = group.limit_reached || (peak && *peak + kReachedWithin >= *limit);
  }
  return group;
}

// Breadth first, put before what is there already: a shortage is looked for from below.
void AddGroupsBelow(OomCounters& counters, const std::string& own, const ReadFile& read, const ListFolder& list) {
  std::vector<OomGroup> below;
  std::vector<std::string> folders{own};
  for (size_t i = 0; i < folders.size() && folders.size() <= kGroupsBelowMax; ++i) {
    const std::string folder = folders[i];
    for (const std::string& name : list(folder)) {
      if (folders.size() > kGroupsBelowMax) break;
      folders.push_back(fmt::format("{}/{}", folder, name));
      auto group = ReadGroup(folders.back(), counters.v1, GroupPlace::kBelow, read);
      if (group) below.push_back(*std::move(group));
    }
  }
  std::reverse(below.begin(), below.end());
  counters.groups.insert(counters.groups.begin(), below.begin(), below.end());
}

// Whether the nearest group with an account is another than that of this process. Where the path is the host's, its own
// folder is not there, and what can be seen of the tree begins with its own group. Version 1 has accounts everywhere.
bool OwnHasNoAccount(const MemoryHierarchy& hierarchy, const std::string& nearest, const ReadFile& read) {
  const std::string& own = hierarchy.folders.front();
  return !hierarchy.v1 && nearest != own && !read(own + "/cgroup.type").empty();
}

std::vector<OomGroup> GroupsUpwards(const MemoryHierarchy& hierarchy, const ReadFile& read) {
  std::vector<OomGroup> groups;
  for (const std::string& folder : hierarchy.folders) {
    GroupPlace place = GroupPlace::kAbove;
    if (groups.empty()) place = OwnHasNoAccount(hierarchy, folder, read) ? GroupPlace::kAround : GroupPlace::kOwn;
    if (auto group = ReadGroup(folder, hierarchy.v1, place, read)) groups.push_back(*std::move(group));
  }
  return groups;
}

const OomGroup* FindGroup(const OomCounters& counters, const std::string& folder) {
  const auto it = std::find_if(counters.groups.begin(), counters.groups.end(),
                               [&](const OomGroup& group) { return group.folder == folder; });
  return it == counters.groups.end() ? nullptr : &*it;
}

// A group that was made meanwhile began at 0.
int64_t Rise(const OomCounters& before, const OomGroup& now, int64_t OomGroup::*count) {
  const OomGroup* const then = FindGroup(before, now.folder);
  return std::max<int64_t>(0, now.*count - (then == nullptr ? 0 : then->*count));
}

// The lowest group whose limit was the reason; none where it was one that cannot be seen, or the machine.
const OomGroup* ShortGroup(const OomCounters& before, const OomCounters& now) {
  const auto it = std::find_if(now.groups.begin(), now.groups.end(), [&](const OomGroup& group) {
    return group.limit_bytes && (group.limit_reached || Rise(before, group, &OomGroup::shortages) > 0);
  });
  return it == now.groups.end() ? nullptr : &*it;
}

std::string KillerText(const OomGroup* group, int64_t peak_resident_bytes) {
  const std::string peak =
      peak_resident_bytes > 0 ? fmt::format("peak {} resident", MemoryText(peak_resident_bytes)) : "";
  if (group == nullptr) return "the out-of-memory killer" + (peak.empty() ? "" : fmt::format(" ({})", peak));
  const bool above = group->place == GroupPlace::kAbove;
  return fmt::format("the out-of-memory killer of {} ({}{}{} limit is {})",
                     above ? "a cgroup above its own" : "its cgroup", peak, peak.empty() ? "" : ", ",
                     above ? "that cgroup's" : "the cgroup's", MemoryText(*group->limit_bytes));
}

bool HasPlace(const OomCounters& counters, GroupPlace place) {
  return std::any_of(counters.groups.begin(), counters.groups.end(),
                     [&](const OomGroup& group) { return group.place == place; });
}

std::string KillsText(const OomCounters& now, int64_t kills) {
  const char* const whose = now.groups.empty()                   ? "this machine"
                            : HasPlace(now, GroupPlace::kAround) ? "a cgroup above this node's"
                                                                 : "this node's cgroup";
  return fmt::format("the out-of-memory killer has ended {} process{} of {} during this round", kills,
                     kills == 1 ? "" : "es", whose);
}

std::vector<std::string> FoldersIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    std::error_code unknown;
    if (entry->is_directory(unknown)) names.push_back(entry->path().filename().string());
  }
  return names;
}

}  // namespace

OomCounters ReadOomCounters(const ReadFile& read, const ListFolder& list) {
  OomCounters counters;
  counters.machine_kills = NumberBehind(read("/proc/vmstat"), "oom_kill ").value_or(0);
  // Version 1 where it accounts memory: a machine with both keeps the account in one of them.
  for (const MemoryHierarchy& hierarchy : MemoryHierarchies(read("/proc/self/cgroup"))) {
    std::vector<OomGroup> groups = GroupsUpwards(hierarchy, read);
    if (groups.empty()) continue;
    counters.v1 = hierarchy.v1;
    counters.groups = std::move(groups);
    // Nothing below our own group has an account where it has none itself; what lies beside it is others'.
    if (HasPlace(counters, GroupPlace::kAround)) break;
    const std::string own = counters.groups.front().folder;
    // Below the root of version 1 may lie the whole machine. The root of version 2 has no account unless it is only a
    // container's.
    if (!hierarchy.v1 || own != hierarchy.folders.back()) AddGroupsBelow(counters, own, read, list);
    break;
  }
  return counters;
}

OomCounters ReadOomCounters() {
  return ReadOomCounters([](const std::string& path) { return ReadFilePrefix(path, kFileBytesMax); }, FoldersIn);
}

// Of processes in our own group (or the nearest around it) and below. Version 2 counts them all there, version 1 each
// where it was.
int64_t KillsSince(const OomCounters& before, const OomCounters& now) {
  if (now.groups.empty()) return std::max<int64_t>(0, now.machine_kills - before.machine_kills);
  int64_t kills = 0;
  for (const OomGroup& group : now.groups) {
    const bool nearest = group.place == GroupPlace::kOwn || group.place == GroupPlace::kAround;
    if (nearest || (group.place == GroupPlace::kBelow && now.v1)) kills += Rise(before, group, &OomGroup::kills);
  }
  return kills;
}

OomAnswer JudgeEnd(OomRound& round, const OomCounters& now, const OomQuestion& question) {
  const int64_t kills = KillsSince(round.before, now);
  const int64_t open = std::max<int64_t>(0, kills - round.told);
  OomAnswer answer;
  if (!question.killed) {
    // What is left when the ranks are counted off: processes of a data loader, say.
    if (open > question.others_killed) answer.note = KillsText(now, open - question.others_killed);
    return answer;
  }
  if (open == 0) return answer;
  if (!HasPlace(now, GroupPlace::kOwn)) {  // a counter of others' processes as well: it may have been any of them
    answer.note = fmt::format("{}: it may have been this one", KillsText(now, kills));
  } else if (open > question.others_killed) {
    ++round.told;
    answer.killed_by = KillerText(ShortGroup(round.before, now), question.peak_resident_bytes);
  } else {
    answer.note = fmt::format("{}, and {} ranks died of SIGKILL: this may be one of those it ended",
                              KillsText(now, open), question.others_killed + 1);
  }
  return answer;
}

std::string MemoryText(int64_t bytes) {
  constexpr int64_t kMib = 1 << 20;
  const bool large = bytes >= 1024 * kMib;
  const int64_t unit = large ? 1024 * kMib : kMib;
  const int64_t tenths = bytes / unit * 10 + bytes % unit * 10 / unit;
  const std::string digits =
      tenths % 10 == 0 ? fmt::format("{}", tenths / 10) : fmt::format("{}.{}", tenths / 10, tenths % 10);
  return fmt::format("{} {}", digits, large ? "GiB" : "MiB");
}

}  // namespace phalanx::agent

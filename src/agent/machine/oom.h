// Whether the kernel's out-of-memory killer ended a worker. The kernel tells nobody: it sends SIGKILL, as anyone could,
// and counts. So the counters are read when a round begins and when one of its workers has failed, and never in
// between; what can be said is what both readings prove.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace phalanx::agent {

// How a memory cgroup lies to that of this process. kAround: the nearest above it that has an account where its own has
// none; others may live there too.
enum class GroupPlace { kBelow, kOwn, kAround, kAbove };

struct OomGroup {
  std::string folder;
  GroupPlace place = GroupPlace::kOwn;
  int64_t kills = 0;      // processes ended, by whatever shortage; v2: in groups below as well
  int64_t shortages = 0;  // v2: times that its limit was the reason, here or below
  // v1, which counts no reasons: its use has once been as high as its limit.
  bool limit_reached = false;
  std::optional<int64_t> limit_bytes;
};

struct OomCounters {
  bool v1 = false;
  std::vector<OomGroup> groups;  // below, own or around, above; empty where no memory cgroup can be read
  int64_t machine_kills = 0;     // of all processes of the machine, also those this container cannot see
};

// The counters of this process's memory cgroups (v1 or v2, also in a container of its own namespace) and of the
// machine.
OomCounters ReadOomCounters();

// The same from given files: `read` brings a file's text, empty where there is none; `list` the names of a folder's
// folders. Pure.
OomCounters ReadOomCounters(const std::function<std::string(const std::string& path)>& read,
                            const std::function<std::vector<std::string>(const std::string& folder)>& list);

// What is known of a round.
struct OomRound {
  OomCounters before;
  int64_t told = 0;  // ends that have been put down to the killer
};

// The end of one worker that we did not kill ourselves.
struct OomQuestion {
  bool killed = false;    // by SIGKILL; else it failed in another way
  int others_killed = 0;  // further workers that SIGKILL has ended and nobody has been told of
  int64_t peak_resident_bytes = 0;
};

// Empty texts: nothing is known. For "rank 3 was killed by <killed_by>", and for a bracket behind a sentence.
struct OomAnswer {
  std::string killed_by;
  std::string note;
};

// Processes that the killer has ended between the two readings.
int64_t KillsSince(const OomCounters& before, const OomCounters& now);

// Pure, but for the count in `round`.
OomAnswer JudgeEnd(OomRound& round, const OomCounters& now, const OomQuestion& question);

// "31.8 GiB", "512 MiB". Pure.
std::string MemoryText(int64_t bytes);

}  // namespace phalanx::agent

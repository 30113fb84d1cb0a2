// What a seed stands for: a job, its machines, how its script behaves, and what goes wrong when. Plain data, so that
// faults can be taken away while all else stays the same.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "phalanx/v1/checkpoint.pb.h"
#include "simulation/event_queue.h"
#include "simulation/fault.h"

namespace phalanx::simulation {

// What the user's script does with SIGTERM.
enum class OnTerm { kDies, kSaves, kIgnores };
// ... and with a rescale that is announced: nothing; or it saves at the step that it is told and waits, or ends.
enum class OnRescale { kNothing, kWaits, kEnds };

// What the script's Checkpointers do, and what memory and storage take for it.
struct Saving {
  SaveForm form;
  int slots = 3;
  int64_t store_every = 1;  // each so many saves go to storage, too; 0: none does
  bool at_breakpoint = false;
  int keep_last = 0;
  int64_t keep_every = 0;
  bool archives = false;      // what is on storage is copied to an archive
  int64_t archive_every = 0;  // steps that it divides; 0: the newest
  bool waits_at_end = false;  // for storage, before a rank ends
  Micros copy = 10 * kMs;     // of an image, at most
  Micros scan = 5 * kMs;      // of a node's memory, when a round begins
  Micros write = 20 * kMs;    // of a shard, at most; and of whatever else storage is asked for
};

struct Script {
  bool steps = true;       // false: it serves, say, and no optimizer ever steps
  bool tells_step = true;  // by phalanx.step: then the number goes on after a restart
  int64_t total_steps = 100;
  int64_t checkpoint_every = 10;
  Micros step = 100 * kMs;
  Micros first_step = 20 * kMs;
  Micros warm_start = 50 * kMs;  // from the start of a process to its place in the group
  Micros imports = 2 * kSecond;  // more, where it starts cold; and the zygote's
  OnTerm on_term = OnTerm::kDies;
  OnRescale on_rescale = OnRescale::kNothing;
  Micros save = 200 * kMs;         // OnTerm::kSaves: from the signal to the end; and at a safe point
  bool peers_hang = false;         // ranks whose peer died hang instead of failing
  Micros patience = 10 * kSecond;  // ... until then
  bool leaves_children = false;    // in its group, when it ends
  std::optional<Saving> saving;    // absent: it keeps its own checkpoints, at once and on any machine
  bool takes_shards = false;       // of a dataset, with each step
};

// What a check of a node finds (JobSpec.check).
enum class Health {
  kGood,
  kFailsAlone,
  kFailsBesideOthers,
};

struct Arrival {
  Micros at = 0;
  Micros named_at = 0;  // the job's endpoint is known there from then on; kNeverNamed: never
  uint32_t local_world_size = 1;
  int32_t wanted_rank = -1;
  int64_t clock_offset_us = 0;
  int64_t clock_skew_ppm = 0;
  Micros delay = 200;  // of its path to the master
  Micros jitter = 100;
  Health health = Health::kGood;
  Micros well_at = 0;            // it is good from then on
  Micros slow_from = INT64_MAX;  // its ranks work twice as long in each step from then on
};

constexpr Micros kNeverNamed = INT64_MAX;

struct Scenario {
  uint64_t seed = 0;
  v1::JobSpec spec;
  bool embedded = true;  // the master is a child of the first machine's agent
  bool warm = true;      // zygote and spares
  bool watches_ranks = false;
  Script script;
  int64_t stop_timeout_ms = 5'000;
  int64_t restart_grace_ms = 500;
  std::vector<Arrival> machines;
  std::vector<Fault> faults;  // in no particular order

  // When all is quiet: nothing goes wrong any more, and who was to come has come.
  Micros QuietAt() const;
  // Faults that wait for a moment count from it, so it has to come before this.
  static constexpr Micros kLatestTriggered = 60 * kSecond;
};

// `max_machines` bounds the size; `machines` sets it, of a job that needs all of them but a fiftieth. 0: as drawn.
struct ScenarioLimits {
  uint32_t max_machines = 400;
  uint32_t machines = 0;
};

Scenario ScenarioOf(uint64_t seed, const ScenarioLimits& limits);

// A few lines for people: the job, the machines, the script.
std::vector<std::string> Describe(const Scenario& scenario);

}  // namespace phalanx::simulation

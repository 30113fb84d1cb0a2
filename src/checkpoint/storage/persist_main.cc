// phalanx-checkpoint-persist: for tests and benchmarks. Writes steps as an agent and a master do together, each slot
// file the shard of one rank: shards, manifest, trackers, retention. Tells one JSON object for each step; ends with 1
// and the reason at the first error.

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/clock.h"
#include "base/crc/crc32.h"
#include "checkpoint/disk/persist.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/files/files.h"
#include "checkpoint/storage/posix.h"
#include "checkpoint/storage/publish.h"

namespace phalanx::checkpoint {
namespace {

struct Flags {
  std::string dir;
  int64_t step = 0;
  int64_t steps = 1;  // so many, ten apart
  uint64_t epoch = 1;
  std::vector<std::string> slots;
  std::vector<std::string> trackers = {"latest", "dlrover_latest.txt"};
  Retention retention;
  bool no_direct = false;
  bool no_ring = false;
};

// What the control page would tell of a slot.
StatusOr<WriteJob> JobFor(const std::string& slot) {
  PHX_ASSIGN_OR_RETURN(const std::string text, ReadFile(slot, SIZE_MAX));
  WriteJob job;
  job.source = slot;
  job.bytes = text.size();
  job.crc32 = Crc32(0, text.data(), text.size());
  return job;
}

// Returns the nanoseconds that the shards took.
StatusOr<int64_t> WriteShards(const Flags& flags, const std::string& name, std::vector<WriteJob> jobs,
                              Manifest& manifest) {
  const int64_t began_ns = MonotonicNs();
  for (size_t rank = 0; rank < jobs.size(); ++rank) {
    WriteJob& job = jobs[rank];
    job.dir = flags.dir;
    job.step_name = name;
    job.rank = static_cast<int64_t>(rank);
    job.file = ShardName(kTorchLayout, job.rank);
    job.direct = !flags.no_direct;
    job.ring = !flags.no_ring;
    PHX_ASSIGN_OR_RETURN(const Shard shard, WriteShard(job));
    manifest.shards.push_back(shard);
  }
  return MonotonicNs() - began_ns;
}

Status WriteStep(const Flags& flags, int64_t step, const std::vector<WriteJob>& jobs) {
  PHX_ASSIGN_OR_RETURN(const std::string name, ClaimStep(flags.dir, step, flags.epoch));
  Manifest manifest;
  manifest.step = step;
  manifest.epoch = flags.epoch;
  manifest.world_size = static_cast<uint32_t>(jobs.size());
  manifest.kind = KindOf(kFullForm);
  manifest.layout = kTorchLayout;
  manifest.job_id = "persist";
  PosixStorage storage(flags.dir);
  PHX_ASSIGN_OR_RETURN(const int64_t write_ns, WriteShards(flags, name, jobs, manifest));
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> warnings,
                       PublishStep(storage, {name, manifest, flags.trackers, flags.retention}));
  if (!warnings.empty()) return absl::UnavailableError(warnings.front());
  fmt::print("{{\"name\": \"{}\", \"write_ns\": {}}}\n", name, write_ns);
  return std::fflush(stdout) == 0 ? absl::OkStatus() : CallFailed("stdout", "write", errno);
}

Status Run(const Flags& flags) {
  std::vector<WriteJob> jobs;
  for (const std::string& slot : flags.slots) {
    PHX_ASSIGN_OR_RETURN(WriteJob job, JobFor(slot));
    jobs.push_back(std::move(job));
  }
  for (int64_t i = 0; i < flags.steps; ++i) PHX_RETURN_IF_ERROR(WriteStep(flags, flags.step + 10 * i, jobs));
  return absl::OkStatus();
}

}  // namespace
}  // namespace phalanx::checkpoint

int main(int argc, char** argv) {
  phalanx::checkpoint::Flags flags;
  CLI::App app("Writes steps to disk, for tests and benchmarks.", "phalanx-checkpoint-persist");
  app.add_option("--dir", flags.dir)->required();
  app.add_option("--step", flags.step)->required();
  app.add_option("--steps", flags.steps);
  app.add_option("--epoch", flags.epoch);
  app.add_option("--slot", flags.slots)->required();
  app.add_option("--tracker", flags.trackers);
  app.add_option("--keep-last", flags.retention.keep_last);
  app.add_option("--keep-every", flags.retention.keep_every);
  app.add_flag("--no-direct", flags.no_direct);
  app.add_flag("--no-ring", flags.no_ring);
  CLI11_PARSE(app, argc, argv);
  const phalanx::Status status = phalanx::checkpoint::Run(flags);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", phalanx::Message(status));
  return 1;
}

// The job's checkpoint directory on storage that all machines reach: the steps in it, and how storage does at present.
// Each call is what src/checkpoint/disk does with files, at one moment; how long that takes is its caller's matter.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/save_key.h"
#include "base/status.h"
#include "checkpoint/disk/retention.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/rank/control.h"
#include "simulation/event_queue.h"

namespace phalanx::simulation {

// The one directory of a simulated job.
constexpr const char* kCheckpointDir = "/data/run";
constexpr const char* kJobId = "job";

// What a folder of the directory holds.
struct StoredStep {
  std::map<int64_t, checkpoint::SlotImage> shards;  // what their bytes are, by rank
  std::optional<checkpoint::Manifest> manifest;
};

class SimStorage {
 public:
  // --- what src/checkpoint/disk does ---
  StatusOr<std::string> Claim(const SaveKey& save);
  Status WriteShard(const std::string& name, int64_t rank, const checkpoint::SlotImage& image);
  Status WriteManifest(const std::string& name, const checkpoint::Manifest& manifest);
  // Newest first.
  std::vector<checkpoint::FoundStep> Find() const;
  std::vector<std::string> StepsToDelete(const checkpoint::Retention& retention) const;
  void Delete(const std::string& name);
  // Null: there is no such folder.
  const StoredStep* Look(const std::string& name) const;

  // --- faults ---
  // From now on every write fails, until as many Mend.
  void Break() { ++broken_; }
  void Mend() { --broken_; }
  // No call comes back, until as many Wake.
  void Hang() { ++hanging_; }
  void Wake();
  void SlowDown(Micros by) { slower_by_ += by; }
  Micros slower_by() const { return slower_by_; }
  // Runs `task` when storage answers: at once, or when it wakes.
  void WhenAwake(Task task);

 private:
  using Key = std::pair<int64_t, uint64_t>;  // step and number
  Status WhetherWritable() const;
  StoredStep* StepOf(const std::string& name);

  std::map<Key, StoredStep> steps_;
  int broken_ = 0;
  int hanging_ = 0;
  Micros slower_by_ = 0;
  std::vector<Task> waiting_;
};

}  // namespace phalanx::simulation

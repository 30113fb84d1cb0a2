// The steps of a checkpoint directory (docs/formats/checkpoint-manifest.md): which there are, which count, making and
// deleting one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"

namespace phalanx::checkpoint {

// Lies in a step's folder until its manifest does: all files there are ours, whatever their names.
constexpr const char* kUnfinishedName = ".unfinished";
// What was the manifest of a step that is being deleted.
constexpr const char* kDeletedName = ".deleted.json";

// "1200" is step 1200, number 0; "1200.4" the same step, taken again. Pure.
struct StepName {
  int64_t step = 0;
  uint64_t number = 0;
};
std::optional<StepName> ParseStepName(std::string_view name);
std::string StepNameText(const StepName& name);
// InvalidArgument where it is none. Pure.
Status CheckStepName(std::string_view name);
// The name that a save takes in a directory that holds these. Pure.
StepName FreeStepName(int64_t step, uint64_t epoch, const std::vector<std::string>& names);

// Makes the folder of a step in which nobody has written yet, and returns its name: the step, or with a number where
// that is taken. Of several that ask at once each gets its own, so one node asks for all.
StatusOr<std::string> ClaimStep(const std::string& dir, int64_t step, uint64_t epoch);

enum class StepState {
  kCommitted,
  kUncommitted,  // no manifest
  kDamaged,      // the manifest is none, or a shard is not there in its size
  kUnreadable,   // nobody knows: the file system does not say
};

struct FoundStep {
  std::string name;
  int64_t step = 0;
  uint64_t number = 0;
  uint64_t epoch = 0;                // of the manifest; 0 without one
  uint64_t sequence = 0;             // of the manifest; without one that of the newest step with a lower number
  std::optional<uint64_t> timeline;  // of the manifest, where one can be read
  StepState state = StepState::kUncommitted;
  std::optional<Manifest> manifest;  // of those that count, and of no others
  std::string why;                   // it does not count; empty where it does
};

// Of a folder that was just made.
Status MarkUnfinished(const std::string& folder);

// By their sequence, those of one by step and number. What has no manifest takes its place by its number. Pure.
void OrderNewestFirst(std::vector<FoundStep>& steps);

// Newest first (OrderNewestFirst). Shards are there in their sizes; their CRCs are not
// looked at. Folders that hold none of our files are left out. An empty list where the directory is empty, NotFound
// where there is none.
StatusOr<std::vector<FoundStep>> FindSteps(const std::string& dir);

// One of them. Nothing where there is none of that name.
std::optional<FoundStep> FindStep(const std::string& dir, const std::string& name);

// One step by its folder, wherever that lies and whatever it is called.
FoundStep LookAtStep(const std::string& folder);

// The order and the timeline of a step that is stored behind these. `goes_on_from`: the name of the newest stored step
// that it has in its past, "" where it has none; nothing where that is not known, and where it is not among these: the
// numbers of the steps alone tell then. Pure.
struct NextPlace {
  uint64_t sequence = 1;
  uint64_t timeline = 0;
  std::optional<uint64_t> goes_on_from;  // the sequence of that step; 0: of none
};
NextPlace NextPlaceOf(int64_t step, const std::optional<std::string>& goes_on_from,
                      const std::vector<FoundStep>& newest_first);

// The newest that counts; null where none does.
const FoundStep* NewestCommitted(const std::vector<FoundStep>& newest_first);

// The manifest first, so that no half of a step ever counts, then its shards; those go to where the next step finds
// them (checkpoint/disk/recycled.h). Files that are not ours stay, and the folder with them. Fine where it is gone
// already.
Status DeleteStep(const std::string& dir, const std::string& name);

}  // namespace phalanx::checkpoint

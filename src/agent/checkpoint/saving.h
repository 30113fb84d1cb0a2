// What a node's checkpoints are told, as events, and one step of theirs. The keeper brings each event to
// agent/checkpoint/checkpoints.h by it, and so does a replay log, where each has a place. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "base/save_key.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent::saving {

// --- events: each is the call of NodeCheckpoints that its comment names -------------------------------------------

struct RoundBegun {  // OnRound
  uint64_t epoch = 0;
  uint32_t group_rank = 0;
};
struct Scanned {  // OnScanned
  uint64_t epoch = 0;
  std::vector<HeldPage> pages;
  std::optional<v1::ImageSource> source = std::nullopt;
};
struct Attached {};  // OnAttached
struct Ordered {     // OnOrder
  v1::CheckpointOrder order;
};
struct Opened {  // OnOpen
  int local_rank = 0;
  std::string dir;
  CheckpointOptions options;
};
struct Sealed {  // OnSealed
  int local_rank = 0;
  std::string dir;
  bool main = false;
  int64_t step = 0;
  bool store = false;
  uint32_t branch = 0;
  std::map<std::string, uint32_t> values = {};
};
struct Skipped {  // OnSkipped
  int local_rank = 0;
  std::string dir;
  int64_t step = 0;
  std::string why;
  uint32_t branch = 0;
};
struct WaitAsked {  // OnWait
  int local_rank = 0;
  int64_t request = 0;
  std::string dir;
  int64_t step = 0;
  bool until_stored = false;
  uint32_t branch = 0;
};
struct RestoreAsked {  // OnRestore
  int local_rank = 0;
  int64_t request = 0;
  std::string dir;
  uint32_t branch = 0;
};
struct ImagesAsked {  // OnImagesAsked
  int local_rank = 0;
  int64_t request = 0;
  std::string dir;
  uint32_t branch = 0;
  ImageParts parts;
};
struct RestoreDone {  // OnRestoreDone
  int local_rank = 0;
  std::string dir;
  uint32_t branch = 0;
};
struct MasterSilent {  // OnMasterSilent
  std::string why;
};
struct RankGone {  // OnRankGone
  int local_rank = 0;
};
struct JobEnded {};   // OnJobEnded
struct Leaving {};    // OnLeaving
struct TidyAsked {};  // OnTidy
struct Ended {        // OnEnd
  std::vector<HeldPage> in_memory;
  bool failed = false;
};
struct Found {  // OnFound
  uint64_t epoch = 0;
  std::string dir;
  FoundSteps steps;
};
struct Checked {  // OnChecked
  uint64_t epoch = 0;
  std::string dir;
  std::string name;
  std::string error;
  bool unreadable = false;
};
struct FolderMade {  // OnFolderMade
  std::string dir;
  SaveKey save;
  std::string name;
  std::string error;
};
struct ImagesWritten {  // OnImagesWritten
  std::string dir;
  SaveKey save;
  std::string name;  // of the step's folder
  std::vector<v1::Shard> shards;
  std::string error;
};
struct StepClosed {  // OnStepClosed
  std::string dir;
  SaveKey save;
  std::string error;
};
struct Tidied {  // OnTidied
  std::string dir;
  std::string error;
};
struct Archived {  // OnArchived
  std::string dir;
  std::vector<int64_t> steps;
  std::string error;
};

struct Fetched {  // OnFetched
  uint64_t epoch = 0;
  std::string dir;
  uint32_t branch = 0;
  uint64_t request = 0;
  std::string error;
};

using Event = std::variant<RoundBegun, Scanned, Attached, Ordered, Opened, Sealed, Skipped, WaitAsked, RestoreAsked,
                           RankGone, JobEnded, Leaving, TidyAsked, Ended, Found, Checked, FolderMade, ImagesWritten,
                           StepClosed, Tidied, Archived, Fetched, ImagesAsked, RestoreDone, MasterSilent>;

// --- the step -----------------------------------------------------------------------------------------------------

struct Decided {
  std::string refused;  // of Opened: a sentence for the rank; empty: it is not
  std::vector<CheckpointAction> actions;
};

Decided Step(NodeCheckpoints& checkpoints, const Event& event);

}  // namespace phalanx::agent::saving

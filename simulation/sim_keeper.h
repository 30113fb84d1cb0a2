// The hands of an agent's NodeCheckpoints in the simulated world: what src/agent/checkpoint/keeper.cc and storage.cc do
// with each of its actions, on a machine's shared memory and on simulated storage. It decides nothing: what is held,
// selected, committed and written over is the production code's (agent/checkpoint, checkpoint/memory/pages.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "agent/checkpoint/selection.h"
#include "checkpoint/memory/pages.h"
#include "simulation/machine.h"
#include "simulation/scenario.h"
#include "simulation/sim_storage.h"
#include "simulation/training.h"

namespace phalanx::simulation {

// What a rank is told that asks what to restore.
struct RestoreAnswer {
  v1::CheckpointOrder order;
  agent::ImagesToRestore images;
  std::vector<checkpoint::SlotImage> fetched;  // files of its own, not of a slot
  std::string refused;                         // why it is given an error instead; empty: it is not
};

// What one is told that asks for images of other nodes.
struct ImagesAnswer {
  std::vector<checkpoint::SlotImage> images;
  std::string refused;  // why it is not given all of them
};

class SimKeeper {
 public:
  struct Parts {
    EventQueue& queue;
    Story& story;
    Judge& judge;
    const Saving& saving;
    SimStorage& storage;
    SimStorage& archive;
    Machine& machine;
    const std::vector<std::unique_ptr<Machine>>& machines;  // all of them
    int local_world_size = 1;
    std::function<void(v1::CheckpointReport)> tell;  // the master
  };
  explicit SimKeeper(const Parts& parts);
  SimKeeper(const SimKeeper&) = delete;
  SimKeeper& operator=(const SimKeeper&) = delete;

  // The calls of CheckpointKeeper of the same names.
  uint64_t TakeUp();
  void NewRank(const Process& process);
  void OnRankEnded(const Process& process);
  void OnRound(const v1::StartRound& round);
  void OnAttached();
  void OnOrder(const v1::CheckpointOrder& order);
  void OnMasterSilent(const std::string& why);
  void OnJobEnded();
  void OnLeaving();
  void Tidy();
  bool Storing() const { return core_.Storing(); }
  std::string StoringText() const { return core_.StoringText(); }
  bool Lending() const { return core_.Lending(); }
  void WhenUnneeded(Task callback) { when_unneeded_ = std::move(callback); }
  void End(bool failed);
  // The agent's process is no more, and its threads with it.
  void Die() {
    alive_ = false;
    parts_.machine.lends_at = 0;
  }

  // --- what ranks say on their sockets; answers come later, unless the rank or the agent has gone ---
  // Its pages are mapped when it is answered.
  void Open(const Process& process, Task answered);
  // Makes the slots of its page, where there are none.
  void Prepare(const Process& process, bool main);
  void Sealed(const Process& process, bool main, int64_t step, bool store);
  void Skipped(const Process& process, int64_t step, const std::string& why);
  void Wait(const Process& process, int64_t step, bool until_stored,
            std::function<void(const std::string& state)> over);
  void Restore(const Process& process, std::function<void(const RestoreAnswer&)> decided);
  void RestoreDone(const Process& process);
  void AskImages(const Process& process, const std::vector<uint32_t>& ranks,
                 std::function<void(const ImagesAnswer&)> answered);

 private:
  // Files that were read from other machines' memory.
  struct Fetched {
    SaveKey save;
    std::map<int32_t, checkpoint::SlotImage> images;
  };
  struct Request {
    Process process;
    std::function<void(const std::string& state)> over;
    std::function<void(const RestoreAnswer&)> decided;
    std::function<void(const ImagesAnswer&)> images;
  };
  // What the storage thread is to do: `step` so often, each behind a while, until it returns false.
  struct StorageJob {
    size_t steps = 1;
    std::function<bool(size_t)> step;
    Task done;  // on the agent's loop
  };

  bool Hears(const Process& process) const;
  // Something of this agent's happens in a while; nothing does when it is no more.
  template <typename Callable>
  void Later(Micros delay, Callable task) {
    parts_.queue.After(delay, [this, task = std::move(task)]() mutable {
      parts_.machine.gate.Pass([this, task = std::move(task)]() mutable {
        if (!alive_) return;
        task();
        Run();
      });
    });
  }
  void Run();
  void Do(const agent::TellMaster& action);
  void Do(const agent::ScanMemory& action);
  void Do(const agent::MarkCommitted& action);
  void Do(const agent::MarkDropped& action);
  void Do(const agent::HoldSave& action);
  void Do(const agent::ReleaseSave& action);
  void Do(const agent::AnswerWait& action);
  void Do(const agent::AnswerRestore& action);
  void Do(const agent::AnswerImages& action);
  void Do(const agent::FindSteps& action);
  void Do(const agent::CheckStep& action);
  void Do(const agent::FetchImages& action);
  void Do(const agent::ForgetAhead& action);
  void Do(const agent::MakeStepFolder& action);
  void Do(const agent::WriteImages& action);
  void Do(const agent::CloseStep& action);
  void Do(const agent::ArchiveSteps& action);
  void Do(const agent::TidyUp& action);
  void Do(const agent::RemoveMemory& action);
  void Do(const agent::LeaveMemory& action);
  void Do(const agent::SayCheckpoint& action);

  void Fetch(const agent::FetchImages& action, int tries);
  bool SomeLenderLives(const v1::ImageElsewhere& elsewhere) const;
  std::optional<v1::ImageSource> Lend();
  // Of that save on another machine, now; nothing where it cannot be read.
  std::optional<checkpoint::SlotImage> Read(const v1::ImageElsewhere& elsewhere, const SaveKey& save) const;
  agent::FetchedImages FilesOf(const SaveKey& save) const;
  void BeginEpoch(uint64_t epoch);
  void OpenPage(const std::string& name);
  std::string PageName(const Process& process, bool main) const;
  void LookAtDirectories();
  void OnDirectoriesLookedAt();
  void Scan();
  void ReplaceSlots();
  // The next step that is due in the archive is copied; `go_on` hears what came of it, nothing where none was due, and
  // says whether there is a next. Then `over`.
  void CopyNext(std::function<bool(const StatusOr<std::optional<int64_t>>&)> go_on, Task over);
  StatusOr<std::optional<int64_t>> Copied(const std::string& name);
  bool IsStillNeeded(const std::string& name) const;
  void OnStorage(StorageJob job);
  void WorkOnStorage(size_t step);
  Micros Takes();

  bool master_is_silent_ = false;
  const Parts parts_;
  agent::NodeCheckpoints core_;
  checkpoint::NodePages pages_;
  std::map<SaveKey, std::vector<checkpoint::MemoryImage>> held_;  // by HoldSave
  std::set<std::string> read_all_of_;                             // directories, in the epoch of the last scan
  std::vector<agent::ReadImage> read_;                            // the same
  bool alive_ = true;
  bool running_ = false;
  std::map<int, Process> ranks_;  // whose sockets are open, by local rank
  std::map<int64_t, Request> requests_;
  int64_t next_request_ = 1;
  std::map<std::string, agent::CheckedFolder> checked_;
  Fetched fetched_;
  uint64_t forgotten_epoch_ = 0;                 // of the last ForgetAhead
  std::vector<checkpoint::FoundStep> archived_;  // as this agent has seen it last
  std::string copied_from_;                      // the step that it is copying to the archive
  uint32_t rank_base_ = 0;
  uint32_t world_size_ = 0;
  uint64_t epoch_ = 0;
  uint64_t scan_epoch_ = 0;
  bool taken_up_ = false;  // memory whose directories are to be looked at
  bool looking_at_directories_ = false;
  std::vector<std::pair<Process, Task>> opening_;
  Task when_unneeded_;
  std::deque<StorageJob> storage_jobs_;  // the first is being done
};

}  // namespace phalanx::simulation

// What must hold of checkpoints, as docs/life-of-a-save.md and docs/checkpoint.md promise it. Measured by what ranks
// have sealed, what lies in machines' memory, and what lies on storage; never by what master and agents believe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "checkpoint/memory/pages.h"
#include "master/core/core.h"
#include "simulation/fault.h"
#include "simulation/machine.h"
#include "simulation/scenario.h"
#include "simulation/sim_storage.h"
#include "simulation/training.h"

namespace phalanx::simulation {

class Judge;
class SimMaster;

class SaveJudge {
 public:
  struct Parts {
    const EventQueue& queue;
    Judge& judge;
    const Scenario& scenario;
    const std::vector<std::unique_ptr<Machine>>& machines;
    const SimStorage& storage;
    const SimStorage& archive;
  };
  explicit SaveJudge(const Parts& parts) : parts_(parts) {}

  // --- the master ---
  // `before`: the epoch of the round that was live until this step; 0: none was.
  void OnMasterStep(const SimMaster& master, uint64_t before, const std::vector<master::Decision>& decisions);
  void OnNewMaster(const master::JobState& state);
  void OnRoundBegun(uint64_t epoch, uint32_t world_size, size_t nodes) {
    round_begun_at_ = parts_.queue.now();
    size_of_[epoch] = {world_size, nodes};
  }
  void OnTrainingStep(uint64_t epoch) { stepped_.insert(epoch); }

  // --- ranks ---
  void OnCopyBegins(const WorkerProcess& process, const SharedPage& page, int slot, const SaveKey& save);
  void OnSealed(const WorkerProcess& process, const checkpoint::SlotImage& image, bool main);
  // These images are mapped for as long as the process lives.
  void OnRestored(const Process& process, const std::vector<checkpoint::MemoryImage>& images);
  // It was told to restore something, from this folder where that is not empty, and could not.
  void OnNotRestored(const WorkerProcess& process, const std::string& folder, const std::string& why);

  // --- storage ---
  // The node of group rank 0 has looked at what it holds, `but` those folders.
  void OnLookedAtStorage(uint64_t epoch, const std::set<std::string>& but);
  void OnShardWritten(const Machine& machine, const std::string& name, const checkpoint::MemoryImage& image);
  void OnStepCounts(const std::string& name);
  void OnStepDeleted(const std::string& name);

  void OnFolderMade() { Pass(Moment::kFolder); }
  uint64_t Count(Moment moment) const { return passed_[static_cast<size_t>(moment)]; }
  uint64_t CountAll() const { return all_passed_; }

 private:
  void JudgeArchived(const std::string& name);
  struct RoundSize {
    uint32_t world_size = 0;
    size_t nodes = 0;
  };
  // What ranks of one timeline have sealed of a save.
  struct Sealed {
    uint32_t world_size = 0;
    std::set<uint32_t> ranks;
    std::set<int> main;  // machines
  };
  // What one machine's memory holds of a save.
  struct Holding {
    std::set<uint32_t> ranks;
    bool main = false;
    bool committed = false;
    uint32_t world_size = 0;
  };
  using Holdings = std::map<SaveKey, Holding>;

  void Pass(Moment moment) {
    ++passed_[static_cast<size_t>(moment)];
    ++all_passed_;
  }
  const SaveForm& form() const { return parts_.scenario.script.saving->form; }
  void CheckCommitted(const SimMaster& master, uint64_t before, const SaveKey& save);
  void CheckSealed(const RoundSize& round, const SaveKey& save);
  void CheckRestore(const SimMaster& master, const v1::CheckpointOrder& order);
  // The newest save that can be restored from the memory of all members; nothing where one of them has changed since
  // the round began: the master may not know.
  bool MembersStand(const SimMaster& master) const;
  // The node on that stream has not changed since the round began.
  bool Stands(const SimMaster& master, uint64_t session) const;
  // Of the members, and of the nodes that were asked to lend to them and are here still.
  std::vector<Holdings> MemoriesOf(const SimMaster& master) const;
  std::optional<SaveKey> NewestInMemory(const SimMaster& master) const;
  bool CanRestore(const SimMaster& master, const SaveKey& save, const std::vector<Holdings>& memories) const;
  static Holdings HoldingsOf(const Machine& machine);
  std::optional<SaveKey> StoredKey(const std::string& folder) const;
  // So many rounds have restored it and made no step that it may be passed over.
  bool MayBePassedOver(const SaveKey& save) const;

  const Parts parts_;
  std::map<SaveKey, std::map<uint64_t, Sealed>> sealed_;  // by timeline
  std::set<SaveKey> committed_;                           // by any master
  std::optional<SaveKey> known_;                          // to this master, as the newest
  std::map<uint64_t, std::string> decided_;               // what is restored, by epoch
  uint64_t lent_to_ = 0;                                  // the epoch that nodes were asked last to lend to...
  std::set<uint64_t> lenders_;                            // ... and the sessions of those
  std::multimap<SaveKey, uint64_t> resumed_;              // epochs that have restored it
  std::set<uint64_t> stepped_;                            // epochs
  struct Looked {
    uint64_t epoch = 0;
    int64_t step = -1;
    SaveKey save;
    std::string name;
    std::set<std::string> but;
  };
  std::optional<Looked> looked_;
  std::set<std::string> counts_;  // folders that were complete when their manifest was written
  // Who has mapped what: slots by page and number of their file.
  std::map<std::tuple<const SharedPage*, int, uint64_t>, std::vector<std::weak_ptr<WorkerProcess>>> mapped_;
  Micros round_begun_at_ = 0;
  std::map<uint64_t, RoundSize> size_of_;  // by epoch
  std::array<uint64_t, kMoments> passed_{};
  uint64_t all_passed_ = 0;                // the sum
  SaveKey copied_;                         // the newest that a rank has begun to copy
  std::map<std::string, size_t> written_;  // shards, by folder
  std::set<std::string> deleted_;          // folders
};

}  // namespace phalanx::simulation

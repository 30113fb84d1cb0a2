// What the Checkpointers of a script do in its ranks (python/phalanx/checkpoint, src/checkpoint/rank): they open the
// directory, load, copy into slots of the node's memory, seal, and wait. Slots are chosen and sealed by the production
// code (checkpoint/rank/control.h).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>

#include "simulation/sim_keeper.h"

namespace phalanx::simulation {

// What a rank has read back: the same for all ranks of a round.
struct Restored {
  v1::RestoreDecided::Source source = v1::RestoreDecided::NOTHING;
  SaveKey save;
  std::string name;       // of the folder on storage
  uint64_t timeline = 0;  // of the ranks that saved it
  auto operator<=>(const Restored&) const = default;
};

class RankSaves {
 public:
  struct Parts {
    EventQueue& queue;
    Story& story;
    Judge& judge;
    SimStorage& storage;
    const Saving& saving;
    uint64_t seed;
  };
  explicit RankSaves(const Parts& parts) : parts_(parts), random_(parts.seed, 6) {}

  // load(). `on_read` is called once, if the rank lives so long; `fail` with what it raises instead.
  void Load(const Process& process, SimKeeper& keeper, std::function<void(const Restored&)> on_read,
            std::function<void(const std::string&)> fail);
  // save(). Returns how long its copies take, at most: an optimizer's next step waits for them.
  Micros Save(const Process& process, SimKeeper& keeper, int64_t step, bool store);
  // SaveHandle.wait(), for the last save that was to go to storage. `done` is called when it is over, at once where
  // there is none.
  void AwaitStored(const Process& process, SimKeeper& keeper, std::function<void()> done);

 private:
  struct Copy {
    Process process;
    SimKeeper* keeper = nullptr;
    std::shared_ptr<SharedPage> page;
    bool main = false;
    bool store = false;
    int slot = 0;
    uint64_t generation = 0;
    checkpoint::SlotImage image;
  };

  // What it needs of a sharded state and its node does not hold: its share of the ranks that have saved it.
  std::vector<uint32_t> WantedOf(const Process& process, const RestoreAnswer& answer) const;
  void Read(const Process& process, const RestoreAnswer& answer, const std::function<void(const Restored&)>& done,
            const std::function<void(const std::string&)>& fail) const;
  std::string ReadMemory(const Process& process, const RestoreAnswer& answer, Restored& restored) const;
  std::string ReadStorage(const Process& process, const RestoreAnswer& answer, Restored& restored) const;
  Micros BeginCopy(Copy copy);
  void Seal(const Copy& copy) const;

  const Parts parts_;
  Random random_;
};

}  // namespace phalanx::simulation

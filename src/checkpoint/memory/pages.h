// The control pages of a node, as its agent sees them: which images there are, which are committed, dropped or held,
// and which slots need a fresh file. Pure: pages are bytes that somebody else has mapped, files are named and not
// touched. checkpoint/memory/memory.h maps and makes them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/save_key.h"
#include "base/status.h"
#include "checkpoint/rank/control.h"

namespace phalanx::checkpoint {

// A file to be made for one slot.
struct SlotFile {
  int slot = 0;
  uint64_t number = 0;  // that tells it from the slot's files before it
  std::string path;
  uint64_t bytes = 0;
};

// What Plan wants: files are made elsewhere, then it is installed.
struct SlotPlan {
  std::string dir;
  std::string page;
  uint64_t bytes = 0;           // of a slot
  int slots = 0;                // there are then
  std::vector<SlotFile> files;  // to be made
  std::string why;              // fewer slots than asked
};

// What a rank asks for: `slots` slots of `bytes` each, within `budget` bytes (0: none).
struct SlotsWanted {
  uint64_t bytes = 0;
  int slots = 0;
  uint64_t budget = 0;
};

// An image in memory, as its control page has it.
struct MemoryImage {
  std::string dir;
  std::string page;  // a local rank's number, or that of a shared one
  std::string path;
  int slot = 0;
  uint64_t generation = 0;
  SlotImage image;
  bool committed = false;
};

class NodePages {
 public:
  // `bytes` are kControlBytes, mapped for as long as the page is here; they become a page without slots where they are
  // none. `folder`: where the files of its slots lie. What an agent before this one held is released.
  void Add(const std::string& dir, const std::string& name, const std::string& folder, uint8_t* bytes);
  void Forget(const std::string& dir) { dirs_.erase(dir); }
  void Forget(const std::string& dir, const std::string& name);
  // A rank of the live round has opened that page.
  void MarkOpened(const std::string& dir, const std::string& name);
  // Pages of the directory whose memory may go once this save is committed: of ranks, or of a kind of saves, that the
  // live round has not. Nothing where the save is of an older round; a page that somebody reads stays.
  std::vector<std::string> Unneeded(const std::string& dir, const SaveKey& save) const;
  bool Has(const std::string& dir, const std::string& name) const { return Find(dir, name) != nullptr; }
  // The files that the slots of a page name. Nothing where there is no such page.
  std::set<std::string> Files(const std::string& dir, const std::string& name) const;
  // A file of that number may lie there still: the next one has another.
  void SkipNumber(const std::string& dir, const std::string& name, uint64_t number);
  // The highest epoch of any image that was there when its page was added.
  uint64_t highest_epoch() const { return highest_epoch_; }
  // Only ranks of this epoch may begin or seal from now on.
  void SetLiveEpoch(uint64_t epoch);

  // Fewer slots than wanted, but not below two, where they do not fit into `free_bytes`. Slots that can stay do: a file
  // of the same size, as `bytes_of` tells, or one that nobody may replace yet.
  StatusOr<SlotPlan> Plan(const std::string& dir, const std::string& name, const SlotsWanted& wanted,
                          uint64_t free_bytes, const std::function<uint64_t(const std::string& path)>& bytes_of);
  // The files of the plan are the slots' from now on. Returns those that nobody names any more; they are to go.
  std::vector<std::string> Install(const SlotPlan& plan);
  // Files of what Plan wanted could not be made: slots are as they were, and Replacements tells those without a file.
  void Abandon(const SlotPlan& plan);

  // All sealed images that were not dropped or given up, and whose file is not about to be replaced.
  std::vector<MemoryImage> Images() const;
  // Of one save: the own images of local ranks and the shared one. A page that has two, since the step was saved twice,
  // gives the same one on all ranks: that which is committed, else the first.
  std::vector<MemoryImage> Images(const std::string& dir, const SaveKey& save) const;

  // The calls of NodeMemory (memory.h) of the same names; `free_bytes`: what slots may still take.
  void Commit(const std::string& dir, const SaveKey& save);
  void Drop(const std::string& dir, const SaveKey& save);
  bool GiveUp(const MemoryImage& image);
  bool Hold(const MemoryImage& image);
  void Release(const MemoryImage& image);
  bool HandOut(const MemoryImage& image, uint64_t free_bytes);
  std::vector<SlotPlan> Replacements();
  // What Install is to be given instead, where there is no memory for the plan. `had`: its slots had files before.
  SlotPlan Postponed(const SlotPlan& plan, bool* had);

 private:
  struct Page {
    std::string name;
    std::string folder;
    uint8_t* bytes = nullptr;
    uint64_t next_number = 1;
    std::set<int> replaced_next;  // slots: when a newer save is committed
    std::set<int> replacing;      // held, and a new file is due
    std::vector<int> to_tell;     // of those, not told yet
    std::set<int> misfits;        // of another size than saves have by now: none goes there
    std::map<int, int> readers;   // by Hold, of slots
    // Slots over which a newer save was committed while they were read, in the round of that epoch.
    std::map<int, uint64_t> overdue;
    uint64_t opened_epoch = 0;  // the last round in which a rank has opened it
    // By the newest Plan(), which may not be installed yet; 0 bytes: there was none since the page was taken up.
    uint64_t planned_bytes = 0;
    int planned_slots = 0;

    Control control() const { return Control(bytes); }
    std::string SlotPath(int slot, uint64_t number) const;
    ControlPage Parse() const;
  };

  static void Replace(Page& page, int slot);
  void MakeNewest(Page& page, const MemoryImage& image) const;
  // Whether this slot of the page holds an image that counts.
  static bool HasImage(const Page& page, const Slot& slot, int index);
  bool MustStay(const Page& page, const ControlPage& now, int slot) const;
  static void Outgrow(Page& page, int slot);
  // A replacement that was begun before slots of other sizes were asked for.
  static bool IsOutdated(const Page& page, const SlotPlan& plan);
  static bool IsTold(const Page& page, int slot);
  // Replacements tells its slots again; the files that are nobody's.
  static std::vector<std::string> TellAgain(Page& page, const SlotPlan& plan);
  // That with the page's image of a save; -1: there is none.
  static int SlotOf(const Page& page, const ControlPage& now, const SaveKey& save);
  static MemoryImage ImageIn(const std::string& dir, const Page& page, const Slot& slot, int index);
  // A newer save was committed in that slot.
  void ReplaceOlder(Page& page, int committed) const;
  static SlotFile NewFile(Page& page, int slot, uint64_t bytes);
  uint64_t DueBytes() const;
  Page* Find(const std::string& dir, const std::string& name);
  const Page* Find(const std::string& dir, const std::string& name) const;

  uint64_t highest_epoch_ = 0;
  uint64_t live_epoch_ = 0;
  std::map<std::string, std::map<std::string, Page>> dirs_;  // pages by name, by directory
};

}  // namespace phalanx::checkpoint

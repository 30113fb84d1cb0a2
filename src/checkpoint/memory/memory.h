// A node's checkpoint memory: the folders, control pages and slots in /dev/shm that its ranks save into
// (docs/formats/checkpoint-image.md, "The memory of a node"). The agent owns them all; they outlive its ranks, and the
// agent: the next one of the same job at the same address takes them up. On the agent's loop, but for what is said to
// block, which is a plain function of files for another thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/save_key.h"
#include "base/status.h"
#include "checkpoint/memory/pages.h"

namespace phalanx::checkpoint {

// Blocks: makes the files, reserves their memory and faults it in, so that nobody is ever killed by a full /dev/shm and
// the first save costs what the tenth does. Where that fails nothing is left.
Status MakeSlotFiles(const std::vector<SlotFile>& files);

// How much more memory files in that folder may take: what it has, this machine, and the limits that this process has.
uint64_t FreeMemoryBytes(const std::string& folder);

// What tells a checkpoint directory from one of the same name that is made after it was deleted.
struct DirectoryMark {
  std::string dir;
  std::string mark;  // empty: not known
};
// Block for as long as the file system of the directory takes, which may be for ever.
DirectoryMark MarkOf(const std::string& dir);
// Those that are gone, or others by now. What cannot be looked at counts as it was, as does what may lie in a file
// system that is not mounted, or was mounted again.
std::set<std::string> GoneOf(const std::vector<DirectoryMark>& marks);

// Why the file of an image is not what its control page says; empty: it is. `is_damage`: it will not be at another
// look, either; else it could not be read for now.
struct ImageFault {
  std::string why;
  bool is_damage = false;
};
// Blocks: reads every byte.
ImageFault CheckMemoryImage(const MemoryImage& image);

class NodeMemory {
 public:
  // Whether an agent of that job has left memory at that address.
  static bool IsLeft(const std::string& root, const std::string& job_id, const std::string& address);
  // The folder of that job at that address below `root`, taken up or made; its lock is held from now on. A folder that
  // another agent holds, or that is another user's, is passed over for the next name. Directories in it that
  // nobody can read are removed; where only open files or the like are short that is an error, and they stay.
  static StatusOr<std::unique_ptr<NodeMemory>> Open(const std::string& root, const std::string& job_id,
                                                    const std::string& address);
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;
  // The files stay.
  ~NodeMemory();

  const std::string& path() const { return path_; }
  // The highest epoch of any image that was taken up; a new round's must be higher.
  uint64_t highest_epoch() const { return pages_.highest_epoch(); }

  // Memory that was taken up may be of a directory that was deleted, and perhaps made anew, since: those that are to be
  // looked at, with what told them from others. KeepAllBut says which it was; it is removed.
  std::vector<DirectoryMark> TakenUp() const;
  void KeepAllBut(const std::set<std::string>& dirs);
  // Of a directory that was first opened by this agent. False where it is known, or there is no such.
  bool WantsMark(const std::string& dir) const;
  void SetMark(const DirectoryMark& mark);

  // The control page of one page of a Checkpointer directory, made where it is missing.
  StatusOr<std::string> OpenPage(const std::string& dir, const std::string& page);
  // A rank of the live round has opened that page.
  void MarkOpened(const std::string& dir, const std::string& page) { pages_.MarkOpened(dir, page); }
  // Whether any rank has ever opened it.
  bool HasPage(const std::string& dir, const std::string& page) const { return pages_.Has(dir, page); }
  // Only ranks of this epoch may begin or seal from now on.
  void SetLiveEpoch(uint64_t epoch) { pages_.SetLiveEpoch(epoch); }

  // `slots` slots of `bytes` each for that page, within `budget` bytes (0: none); fewer, but not below two, where there
  // is no memory for more. Slots that can stay do.
  StatusOr<SlotPlan> Plan(const std::string& dir, const std::string& page, uint64_t bytes, int slots, uint64_t budget);
  void Install(const SlotPlan& plan);
  // Instead, where MakeSlotFiles has failed.
  void Abandon(const SlotPlan& plan) { pages_.Abandon(plan); }

  // All sealed images that were not dropped or given up.
  std::vector<MemoryImage> Images() const { return pages_.Images(); }
  // Of one save: the own images of local ranks and the shared one.
  std::vector<MemoryImage> Images(const std::string& dir, const SaveKey& save) const {
    return pages_.Images(dir, save);
  }

  void Commit(const std::string& dir, const SaveKey& save) { pages_.Commit(dir, save); }
  // When a save is committed: pages of that directory that nobody needs any more give their memory back
  // (NodePages::Unneeded).
  void FreeUnneeded(const std::string& dir, const SaveKey& save);
  void Drop(const std::string& dir, const SaveKey& save) { pages_.Drop(dir, save); }
  // The image is not what was sealed: it is none any more, committed or not, and the first to be written over. False
  // where another one lies there by now.
  bool GiveUp(const MemoryImage& image) { return pages_.GiveUp(image); }
  // Nobody writes over the image, and its file stays, until Release; Replacements may tell of it then. False where it
  // is gone.
  bool Hold(const MemoryImage& image) { return pages_.Hold(image); }
  void Release(const MemoryImage& image) { pages_.Release(image); }
  // The image, which the job goes on from, is handed to ranks that may have it mapped for ever: it is never written
  // over, but replaced by a fresh file when a newer save is committed. See Replacements. Newer images of earlier rounds
  // are none any more. False where there is no memory for that: then it stays as it
  // is only until a newer save is committed.
  bool HandOut(const MemoryImage& image);
  // Slots whose file is to be replaced now; each is told once. Install puts the new one in its place.
  std::vector<SlotPlan> Replacements() { return pages_.Replacements(); }
  bool HasRoomFor(const SlotPlan& plan) const;
  // There is no memory for a replacement: its slots go without a file, so that the memory of the old ones comes back
  // when the last one who has them mapped lets go. Replacements tells them again. False where they had none before.
  bool Postpone(const SlotPlan& plan);

  // The folder for images that were read from other nodes, made where it is missing. What is in it is nobody's when
  // memory is taken up.
  StatusOr<std::string> FetchedFolder() const;

  uint64_t Bytes() const;
  // Removes everything; the object is of no more use.
  void Remove();

 private:
  struct Mapping;
  struct Folder;

  NodeMemory(std::string path, Fd lock);
  Status TakeUp();
  Status TakeUpFolder(const std::string& path);
  StatusOr<Folder*> OpenFolder(const std::string& dir);
  void Unmap(const std::string& dir);
  void RemoveUnnamed(const std::string& dir, const std::string& name, const std::vector<std::string>& entries);
  static Status WriteInfo(const Folder& folder, const std::string& dir);

  const std::string path_;
  Fd lock_;
  NodePages pages_;
  std::map<std::string, std::unique_ptr<Folder>> folders_;  // by directory
};

}  // namespace phalanx::checkpoint

// Which images of a node's memory and which shards of a step are told of, restored and stored. Pure: memory and storage
// have been looked at before. agent/checkpoint/keeper.h and storage.h do so, and carry out what is selected.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "base/save_form.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/memory/memory.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/storage/publish.h"
#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx::agent {

// --- what memory holds --------------------------------------------------------------------------------------------

// An image of which every byte was read.
struct ReadImage {
  checkpoint::MemoryImage image;
  std::string wrong;        // why it is not what was sealed; empty: it is
  bool is_damaged = false;  // it will not be at another look, either
};

// Which images are to be read next, of all that memory holds and those that were read. Of each directory that is the
// newest save that was committed, as far as this node knows, with all newer ones; where an image of it is not whole,
// the one before. All images of a directory of which none was committed, and of those in `all_of`. Empty: there are no
// more.
std::vector<checkpoint::MemoryImage> NextToRead(const std::vector<checkpoint::MemoryImage>& images,
                                                const std::vector<ReadImage>& read,
                                                const std::set<std::string>& all_of);

// Directories with images that were not read.
std::set<std::string> UnreadOf(const std::vector<checkpoint::MemoryImage>& images, const std::vector<ReadImage>& read);

// Whether all ranks of a node share the image.
bool IsShared(const checkpoint::MemoryImage& image);

// Whose its file is on storage: a rank's; kMainRank of a shared one.
int64_t RankOf(const checkpoint::MemoryImage& image);

// Who needs its file to restore the save.
FileNeed NeedOf(const checkpoint::MemoryImage& image);

// What is told of memory when a round begins: images that are whole. `unread`: as of UnreadOf.
std::vector<HeldPage> HeldPages(const std::vector<ReadImage>& images, const std::set<std::string>& unread);
// Of images that nobody has read: they count as what was sealed.
std::vector<HeldPage> HeldPages(const std::vector<checkpoint::MemoryImage>& images);

// A line about memory that agents of this user have left and that is of another job: nobody else would ever tell of it.
// Empty where it is less than a part of kLeftIsMuch of what is free: nobody misses it.
constexpr uint64_t kLeftIsMuch = 8;
std::string LeftMemoryText(const std::vector<checkpoint::MemoryFolder>& memories, const std::string& job_id,
                           uint64_t free_bytes);
// What they hold of a directory that this job has opened: the newest step that was committed. Empty where there is
// none.
std::string LeftStepText(const std::vector<checkpoint::MemoryFolder>& memories, const std::string& job_id,
                         const std::string& dir);

// --- what a rank restores -----------------------------------------------------------------------------------------

// Paths, empty where the rank has none.
struct RestoreFiles {
  std::string own;
  std::string main;                          // what all ranks share
  std::map<std::string, std::string> ranks;  // where any rank may need any image: all that are here, by rank
};

struct ImagesToRestore {
  RestoreFiles files;
  std::vector<checkpoint::MemoryImage> images;  // that the rank is given
};

// `images` are those of the save on this node. A rank is given those that it may need. Images of a world of another
// size are of another save.
ImagesToRestore RestoreFromMemory(const std::vector<checkpoint::MemoryImage>& images, uint32_t rank,
                                  uint32_t world_size);

// `shards` are the paths of a step that was checked, by rank.
RestoreFiles RestoreFromStep(const std::map<int64_t, std::string>& shards, int64_t rank);

// The folder of a step that this node has read last, as CheckOnDisk asked for.
struct CheckedFolder {
  std::string name;
  std::map<int64_t, std::string> shards;  // paths by rank, of those that its ranks read
  std::string layout;                     // of its manifest
  std::string place = "";                 // where it lies
};

// Files of images that were read from other nodes' memory, by whose they are: a rank, or kMainRank.
using FetchedImages = std::map<int32_t, std::string>;

// What the order, which has `restore`, lets a rank have. `in_memory` are the images of that save on this node,
// `fetched` those that it did not hold. Nothing where they are gone, or another folder was checked since.
ImagesToRestore ToRestore(const v1::CheckpointOrder& order, uint32_t rank,
                          const std::vector<checkpoint::MemoryImage>& in_memory, const CheckedFolder& checked,
                          const FetchedImages& fetched, const SaveForm& form);

// The files of a step that `ranks` ranks from `first_rank` on read: what every rank needs, their own, and of what any
// rank may need those that are theirs where they are dealt out to the ranks of the world in turn.
std::vector<checkpoint::Shard> ShardsOfRanks(const checkpoint::Manifest& manifest, uint32_t first_rank, uint32_t ranks,
                                             uint32_t world_size);

// The newest committed step, those named in `but` apart, and why newer ones do not count. `newest_first` is what
// FindSteps has found in `dir`; `job_id` that of this job.
v1::FoundOnDisk NewestStep(const std::string& dir, std::vector<checkpoint::FoundStep> newest_first,
                           const std::set<std::string>& but, const std::string& job_id);

// Why nobody knows whether there is a step to restore: none counts, and some cannot be read. Empty: it is known.
std::string WhyNotKnown(const std::string& dir, const std::vector<checkpoint::FoundStep>& newest_first,
                        const std::set<std::string>& but);

// --- what a node's memory takes -----------------------------------------------------------------------------------

// The slots of one page, as a rank has asked for them and got them.
struct PreparedPage {
  uint64_t bytes = 0;  // of a slot
  int slots = 0;
  int slots_wanted = 0;
};

// What saves to that directory take on this node, and what else is free, for people.
std::string CostText(const std::string& dir, const std::map<std::string, PreparedPage>& pages, uint64_t free_bytes);

// --- what a node stores -------------------------------------------------------------------------------------------

// `images` are those of a save on this node: the shared one goes to storage only from the node that is told so, and
// nowhere where it says no more than the manifest will.
std::vector<checkpoint::MemoryImage> ImagesToStore(std::vector<checkpoint::MemoryImage> images, bool main);

// Why a save cannot be stored of which only these images could be held; empty: it can. Each local rank has one.
std::string StoreRefusal(const std::vector<checkpoint::MemoryImage>& held, int local_world_size);

// The manifest that the master has ordered, and what is to be done once it is there.
checkpoint::StepToPublish ToPublish(const CloseStep& action, const std::string& job_id, int64_t written_unix_ms);

}  // namespace phalanx::agent

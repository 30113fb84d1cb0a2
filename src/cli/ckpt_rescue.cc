#include "cli/ckpt_rescue.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/files/files.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/memory_names.h"
#include "checkpoint/storage/files_of.h"
#include "checkpoint/storage/publish.h"
#include "checkpoint/storage/storage.h"
#include "cli/ckpt_discard.h"
#include "cli/ckpt_image.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

using checkpoint::LockMemory;
using checkpoint::Manifest;
using checkpoint::MemoryDirectory;
using checkpoint::MemoryFolder;
using checkpoint::MemorySlot;
using checkpoint::NewestOfAll;
using checkpoint::RanksOf;
using checkpoint::ReadMemory;
using checkpoint::SaveOfAll;
using checkpoint::Shard;

// One rank's image, and what it says of itself.
struct Found {
  std::string path;
  SaveForm form;
  const char* layout = checkpoint::kTorchLayout;
  bool main = false;  // what is the same on all ranks; `info.rank` is whose copy it is
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  uint32_t branch = 0;
  ImageInfo info;
};

struct Chosen {
  std::vector<Found> found;
  bool committed = false;
  std::vector<int64_t> newer;  // steps that may be committed, too
};

// That of the one job and the one checkpoint directory that are there. More than one: which is meant cannot be told.
StatusOr<std::vector<const MemoryDirectory*>> OneDirectory(const std::vector<MemoryFolder>& memories) {
  std::map<std::string, std::vector<const MemoryDirectory*>> by_dir;
  for (const MemoryFolder& memory : memories) {
    if (memory.job_id != memories.front().job_id) {
      return absl::InvalidArgumentError(fmt::format("memory of several jobs ('{}' in {}, '{}' in {}): name one folder",
                                                    memories.front().job_id, memories.front().path, memory.job_id,
                                                    memory.path));
    }
    for (const MemoryDirectory& directory : memory.directories) {
      if (!directory.pages.empty() || !directory.problems.empty()) by_dir[directory.dir].push_back(&directory);
    }
  }
  if (by_dir.empty()) return absl::NotFoundError(fmt::format("{} holds no slots", memories.front().path));
  if (by_dir.size() == 1) return by_dir.begin()->second;
  return absl::InvalidArgumentError(
      fmt::format("the job saved to several directories ({} and {}): one at a time can be rescued",
                  by_dir.begin()->first, by_dir.rbegin()->first));
}

StatusOr<Found> FoundIn(const MemorySlot& slot) {
  PHX_ASSIGN_OR_RETURN(const Image image, OpenImage(slot.path));
  const checkpoint::SlotImage& sealed = slot.slot.image;
  const ImageInfo& info = image.info;
  if (!info.known || info.step != sealed.step || info.epoch != sealed.epoch || info.rank != sealed.rank) {
    return absl::DataLossError(fmt::format("{}: its control page says step {} of rank {}, the image another", slot.path,
                                           sealed.step, sealed.rank));
  }
  return Found{.path = slot.path,
               .form = sealed.form,
               .layout = image.named ? checkpoint::kNamedLayout : checkpoint::kTorchLayout,
               .main = checkpoint::IsSharedPage(slot.page),
               .bytes = sealed.bytes,
               .crc32 = sealed.crc32,
               .branch = sealed.branch,
               .info = info};
}

// Files that any rank may need say nothing of themselves: all that is known is what their seal says.
Found FoundForAnyRank(const MemorySlot& slot, const std::string& job_id) {
  const checkpoint::SlotImage& sealed = slot.slot.image;
  return Found{.path = slot.path,
               .form = sealed.form,
               .layout = sealed.form.several ? checkpoint::kFilesLayout : checkpoint::kDcpLayout,
               .main = checkpoint::IsSharedPage(slot.page),
               .bytes = sealed.bytes,
               .crc32 = sealed.crc32,
               .branch = sealed.branch,
               .info = {.known = true,
                        .step = sealed.step,
                        .epoch = sealed.epoch,
                        .rank = sealed.rank,
                        .world_size = sealed.world_size,
                        .kind = std::string(KindOf(sealed.form)),
                        .job_id = job_id}};
}

// Whether a file on disk is the rest of this step cannot be told where any rank may need it, so all of it must be here.
Status CheckAllRanks(const SaveOfAll& save) {
  const uint32_t world_size = save.slots.front()->slot.image.world_size;
  const size_t ranks = RanksOf(save);
  if (ranks == world_size) return absl::OkStatus();
  return absl::FailedPreconditionError(
      fmt::format("a state that its ranks share out is rescued where all of them are: of {} this memory has {}; name "
                  "the folders of all nodes, or copies of them: phalanx ckpt rescue PATH PATH ..; a phalanx-run of the "
                  "same job takes it up, on the same nodes",
                  world_size, ranks));
}

std::string NothingText(size_t pages, std::optional<int64_t> step, const std::string& folder) {
  const std::string what = step ? fmt::format("no save of step {}", *step) : "no step";
  return fmt::format("{} is sealed by all {} writers; `phalanx ckpt ls {}` lists what is", what, pages, folder);
}

// A step of all local ranks of all these nodes.
StatusOr<Chosen> Choose(const std::vector<const MemoryDirectory*>& directories, std::optional<int64_t> step,
                        const std::string& job_id) {
  size_t pages = 0;
  for (const MemoryDirectory* directory : directories) {
    if (!directory->problems.empty()) return absl::DataLossError(directory->problems.front());
    pages += directory->pages.size();
  }
  const std::string& folder = directories.front()->folder;
  const SaveOfAll save = NewestOfAll(directories, step);
  if (save.slots.empty()) {
    return absl::NotFoundError(NothingText(pages, step, folder.substr(0, folder.rfind('/'))));
  }
  const SaveForm& form = save.slots.front()->slot.image.form;
  if (!std::ranges::all_of(save.slots, [&](const MemorySlot* slot) { return slot->slot.image.form == form; })) {
    return absl::DataLossError(fmt::format("{}: its images are of saves of different kinds", folder));
  }
  const bool is_for_any_rank = form.own == FileNeed::kAnyRank;
  Chosen chosen{.found = {}, .committed = save.committed, .newer = save.newer};
  for (const MemorySlot* slot : save.slots) {
    if (is_for_any_rank) {
      chosen.found.push_back(FoundForAnyRank(*slot, job_id));
    } else {
      PHX_ASSIGN_OR_RETURN(Found one, FoundIn(*slot));
      chosen.found.push_back(std::move(one));
    }
  }
  if (is_for_any_rank) PHX_RETURN_IF_ERROR(CheckAllRanks(save));
  return chosen;
}

// One that was rescued on another node: NotFound where it was not, yet.
StatusOr<Shard> ReadOne(const std::string& folder, int64_t rank, const Found& like) {
  const ImageInfo& wanted = like.info;
  const std::string file = checkpoint::ShardName(like.layout, rank);
  const std::string path = fmt::format("{}/{}", folder, file);
  PHX_ASSIGN_OR_RETURN(const Image image, OpenImage(path));
  PHX_RETURN_IF_ERROR(CheckRecords(path, image));
  const ImageInfo& info = image.info;
  const bool same_rank = rank == checkpoint::kMainRank || rank == int64_t{info.rank};
  const bool same_branch = info.branch.value_or(like.branch) == like.branch;
  if (!same_rank || !same_branch || info.step != wanted.step || info.epoch != wanted.epoch ||
      info.job_id != wanted.job_id || info.world_size != wanted.world_size) {
    return absl::DataLossError(
        fmt::format("{}: rank {} of {} at step {}, epoch {}, branch {}, of job '{}': it belongs to another "
                    "state; remove it or name another place",
                    path, info.rank, info.world_size, info.step, info.epoch, info.branch.value_or(0), info.job_id));
  }
  return Shard{.rank = rank,
               .file = file,
               .bytes = image.file.bytes(),
               .crc32 = FileCrc(image.file),
               .needed_by = rank == checkpoint::kMainRank ? FileNeed::kEveryRank : like.form.own};
}

// What a rank has for itself: others, and a world without that rank, can do without.
bool CanDoWithoutOwn(const Found& found) { return found.form.own == FileNeed::kNobody; }

Manifest ManifestFor(const Found& like, std::vector<Shard> shards, int64_t now_unix_ms) {
  const ImageInfo& info = like.info;
  Manifest manifest;
  manifest.step = info.step;
  manifest.epoch = info.epoch;
  manifest.branch = like.branch;
  manifest.world_size = info.world_size;
  manifest.kind = KindOf(like.form);
  manifest.layout = like.layout;
  manifest.job_id = info.job_id;
  manifest.written_unix_ms = now_unix_ms;
  manifest.shards = std::move(shards);
  return manifest;
}

constexpr const char* kWhenItCounts =
    "the step counts when `phalanx ckpt rescue` has run on their nodes too, to the same place";
constexpr const char* kOrWithoutThem =
    ", or with --without-lost, where those are lost for good: such ranks go on without random numbers and data "
    "positions of their own";

struct Rescued {
  std::string folder;
  size_t written = 0;
  std::vector<std::string> missing;
  bool counts = false;  // its manifest is there
  uint64_t freed_bytes = 0;
};

Status Free(const std::vector<MemoryFolder>& memories, Rescued& rescued) {
  for (const MemoryFolder& memory : memories) {
    PHX_RETURN_IF_ERROR(RemoveMemory(memory.path));
    rescued.freed_bytes += memory.bytes;
  }
  return absl::OkStatus();
}

CkptAnswer Tell(const Rescued& rescued, const Chosen& chosen, bool json, bool free) {
  const ImageInfo& info = chosen.found.front().info;
  CkptAnswer answer;
  answer.exit_code = rescued.counts ? 0 : 1;
  if (json) {
    answer.text = Dump({{"folder", rescued.folder},
                        {"step", info.step},
                        {"epoch", info.epoch},
                        {"committed", chosen.committed},
                        {"newer", chosen.newer},
                        {"counts", rescued.counts},
                        {"written", rescued.written},
                        {"missing", rescued.missing},
                        {"freed_bytes", rescued.freed_bytes}},
                       2);
    return answer;
  }
  answer.text = fmt::format("{}: step {}, {} images from memory\n", rescued.folder, info.step, rescued.written);
  if (!chosen.committed) {
    answer.text +=
        "this memory does not say that all ranks of the job had this step: other nodes may have older ones\n";
  }
  if (!chosen.newer.empty()) {
    answer.text += fmt::format("step {} is in this memory, too, and newer: where other nodes have it, use --step {}\n",
                               chosen.newer.front(), chosen.newer.front());
  }
  if (!rescued.missing.empty()) {
    const std::string what = rescued.counts ? "the step counts without them"
                                            : fmt::format("{}{}", kWhenItCounts,
                                                          CanDoWithoutOwn(chosen.found.front()) ? kOrWithoutThem : "");
    answer.text += fmt::format("{} more are missing, the first is {}: {}\n", rescued.missing.size(),
                               rescued.missing.front(), what);
  }
  if (rescued.freed_bytes > 0) answer.text += fmt::format("{} of memory are free again\n", Bytes(rescued.freed_bytes));
  if (free && !rescued.counts) answer.text += "the memory stays until the step counts\n";
  if (free && rescued.counts && !chosen.newer.empty()) answer.text += "the memory stays, as it holds that newer step\n";
  return answer;
}

// What is lost with a node that holds no more of a step than what each rank has of its own: DDP goes on without that.
bool CountsWithout(const std::vector<std::string>& missing, const Found& like) {
  return std::ranges::find(missing, checkpoint::ShardName(like.layout, checkpoint::kMainRank)) == missing.end();
}

// Those of the images in memory; of the state that is the same on all ranks one copy is enough.
StatusOr<std::vector<Shard>> WriteAll(const std::vector<Found>& found, checkpoint::Storage& storage,
                                      const std::string& step_name) {
  std::vector<Shard> all;
  bool has_main = false;
  for (const Found& one : found) {
    if (one.main && std::exchange(has_main, true)) continue;
    const int64_t rank = one.main ? checkpoint::kMainRank : int64_t{one.info.rank};
    PHX_ASSIGN_OR_RETURN(const std::vector<Shard> shards,
                         checkpoint::PutImage(storage, step_name, {one.path, one.form, rank, one.bytes, one.crc32}));
    all.insert(all.end(), shards.begin(), shards.end());
  }
  return all;
}

// Those of the ranks whose images are not in this memory: in `folder`, where they were rescued on other nodes. Names
// are of those that are missing.
Status AddOthers(const Found& like, const std::string& folder, std::vector<Shard>& all,
                 std::vector<std::string>& missing) {
  std::set<int64_t> here;
  for (const Shard& shard : all) here.insert(shard.rank);
  for (int64_t rank = like.form.shared ? checkpoint::kMainRank : 0; rank < int64_t{like.info.world_size}; ++rank) {
    if (here.contains(rank)) continue;
    StatusOr<Shard> shard = ReadOne(folder, rank, like);
    if (absl::IsNotFound(shard.status())) {
      missing.push_back(checkpoint::ShardName(like.layout, rank));
    } else if (!shard.ok()) {
      return shard.status();
    } else {
      all.push_back(*std::move(shard));
    }
  }
  return absl::OkStatus();
}

StatusOr<Rescued> WriteRescued(const Chosen& chosen, const RescueOptions& options, int64_t now) {
  const std::vector<Found>& found = chosen.found;
  const std::string& to = options.to;
  if (options.without_lost && !CanDoWithoutOwn(found.front())) {
    return absl::InvalidArgumentError(
        fmt::format("--without-lost is for DDP: step {} is of kind '{}', and each rank's part of it is needed",
                    found.front().info.step, KindOf(found.front().form)));
  }
  if (mkdir(to.c_str(), 0777) != 0 && errno != EEXIST) return CallFailed(to, "mkdir", errno);
  const ImageInfo& info = found.front().info;
  const std::string step_name = checkpoint::StepNameText({.step = info.step});
  Rescued rescued{.folder = fmt::format("{}/{}", to, step_name), .missing = {}};
  PHX_ASSIGN_OR_RETURN(const auto storage, checkpoint::OpenStorage(to));
  PHX_ASSIGN_OR_RETURN(std::vector<Shard> all, WriteAll(found, *storage, step_name));
  rescued.written = all.size();
  std::vector<std::string>& missing = rescued.missing;
  // Where any rank may need any file, all are here (Choose).
  if (found.front().form.own != FileNeed::kAnyRank) {
    PHX_RETURN_IF_ERROR(AddOthers(found.front(), rescued.folder, all, missing));
  }
  std::ranges::stable_sort(all, {}, &Shard::rank);
  rescued.counts = missing.empty() || (options.without_lost && CountsWithout(missing, found.front()));
  if (rescued.counts) {
    // Behind all that is there, as a job stores: it is what was trained last.
    checkpoint::StepToPublish step;
    step.name = step_name;
    step.manifest = ManifestFor(found.front(), std::move(all), now);
    const auto published = checkpoint::PublishStep(*storage, step);
    // Another node's was just as late, and as complete.
    if (!published.ok() && !absl::IsAlreadyExists(published.status())) return published.status();
  }
  return rescued;
}

// One that is named twice, or is below another path, is one.
StatusOr<std::set<std::string>> FoldersOf(const std::vector<std::string>& paths) {
  std::set<std::string> folders;
  for (std::string path : paths) {
    while (path.size() > 1 && path.ends_with('/')) path.pop_back();
    PHX_ASSIGN_OR_RETURN(const std::vector<std::string> meant, checkpoint::DeadMemories(path));
    folders.insert(meant.begin(), meant.end());
  }
  return folders;
}

// The job's, of agents that are dead.
bool IsLeftBy(const std::string& job_id, const MemoryFolder& memory) {
  return memory.own && !memory.agent_lives && memory.job_id == job_id;
}

}  // namespace

std::vector<LeftStep> LeftSteps(const std::vector<MemoryFolder>& memories, const std::string& job_id) {
  std::map<std::string, std::vector<const MemoryDirectory*>> by_dir;
  std::map<std::string, std::string> folder_of;
  for (const MemoryFolder& memory : memories) {
    if (!IsLeftBy(job_id, memory)) continue;
    for (const MemoryDirectory& directory : memory.directories) {
      if (directory.dir.empty() || !directory.problems.empty()) continue;
      by_dir[directory.dir].push_back(&directory);
      const auto [at, fresh] = folder_of.emplace(directory.dir, memory.path);
      if (!fresh) at->second = memory.path.substr(0, memory.path.rfind('/'));
    }
  }
  std::vector<LeftStep> left;
  for (const auto& [dir, directories] : by_dir) {
    const SaveOfAll save = NewestOfAll(directories, std::nullopt);
    if (!save.slots.empty()) left.push_back({dir, save.slots.front()->slot.image.step, folder_of[dir]});
  }
  return left;
}

StatusOr<CkptAnswer> CkptRescue(const std::vector<std::string>& paths, const RescueOptions& options,
                                int64_t now_unix_ms) {
  PHX_ASSIGN_OR_RETURN(const std::set<std::string> meant, FoldersOf(paths));
  std::vector<Fd> locks;
  std::vector<MemoryFolder> memories;
  for (const std::string& folder : meant) {
    StatusOr<Fd> lock = LockMemory(folder);
    if (!lock.ok()) return WithContext(lock.status(), "nothing is rescued");
    locks.push_back(*std::move(lock));
    // Only now nobody changes it.
    PHX_ASSIGN_OR_RETURN(MemoryFolder memory, ReadMemory(folder));
    memories.push_back(std::move(memory));
  }
  PHX_ASSIGN_OR_RETURN(const std::vector<const MemoryDirectory*> directories, OneDirectory(memories));
  PHX_ASSIGN_OR_RETURN(const Chosen chosen, Choose(directories, options.step, memories.front().job_id));
  PHX_ASSIGN_OR_RETURN(Rescued rescued, WriteRescued(chosen, options, now_unix_ms));
  if (options.free && rescued.counts && chosen.newer.empty()) PHX_RETURN_IF_ERROR(Free(memories, rescued));
  return Tell(rescued, chosen, options.json, options.free);
}

}  // namespace phalanx::cli

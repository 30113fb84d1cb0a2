#include "agent/checkpoint/selection.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "checkpoint/rank/memory_names.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

namespace {

// Of a step whose shards have been named by their images' layouts.
const char* LayoutOf(const v1::WriteManifest& order) {
  if (order.form().several()) return ckpt::kFilesLayout;
  if (order.form().own() == v1::ANY_RANK) return ckpt::kDcpLayout;
  const bool is_named = std::ranges::any_of(order.shards(), [](const v1::Shard& shard) {
    return shard.file() == ckpt::ShardName(ckpt::kNamedLayout, shard.rank());
  });
  return is_named ? ckpt::kNamedLayout : ckpt::kTorchLayout;
}

}  // namespace

// --- what memory holds --------------------------------------------------------------------------------------------

namespace {

// In which slot it lies, and which of those that have lain there it is.
using ImageId = std::tuple<std::string, std::string, int, uint64_t>;

ImageId IdOf(const ckpt::MemoryImage& image) { return {image.dir, image.page, image.slot, image.generation}; }

std::set<ImageId> IdsOf(const std::vector<ReadImage>& read) {
  std::set<ImageId> ids;
  for (const ReadImage& each : read) ids.insert(IdOf(each.image));
  return ids;
}

}  // namespace

std::vector<ckpt::MemoryImage> NextToRead(const std::vector<ckpt::MemoryImage>& images,
                                          const std::vector<ReadImage>& read, const std::set<std::string>& all_of) {
  std::set<std::pair<std::string, SaveKey>> wrong;
  for (const ReadImage& each : read) {
    if (!each.wrong.empty()) wrong.insert({each.image.dir, KeyOf(each.image.image)});
  }
  std::map<std::string, SaveKey> from;  // by directory
  for (const ckpt::MemoryImage& image : images) {
    const SaveKey save = KeyOf(image.image);
    if (!image.committed || wrong.contains({image.dir, save}) || all_of.contains(image.dir)) continue;
    const auto [newest, is_first] = from.try_emplace(image.dir, save);
    newest->second = std::max(newest->second, save);
  }
  const std::set<ImageId> known = IdsOf(read);
  std::vector<ckpt::MemoryImage> next;
  std::ranges::copy_if(images, std::back_inserter(next), [&](const ckpt::MemoryImage& image) {
    const auto newest = from.find(image.dir);
    return !known.contains(IdOf(image)) && (newest == from.end() || KeyOf(image.image) >= newest->second);
  });
  return next;
}

std::set<std::string> UnreadOf(const std::vector<ckpt::MemoryImage>& images, const std::vector<ReadImage>& read) {
  const std::set<ImageId> known = IdsOf(read);
  std::set<std::string> unread;
  for (const ckpt::MemoryImage& image : images) {
    if (!known.contains(IdOf(image))) unread.insert(image.dir);
  }
  return unread;
}

bool IsShared(const ckpt::MemoryImage& image) { return ckpt::IsSharedPage(image.page); }

int64_t RankOf(const ckpt::MemoryImage& image) { return IsShared(image) ? ckpt::kMainRank : int64_t{image.image.rank}; }

FileNeed NeedOf(const ckpt::MemoryImage& image) {
  return IsShared(image) ? FileNeed::kEveryRank : image.image.form.own;
}

std::vector<HeldPage> HeldPages(const std::vector<ReadImage>& images, const std::set<std::string>& unread) {
  std::vector<HeldPage> pages;
  for (const ReadImage& read : images) {
    const checkpoint::MemoryImage& image = read.image;
    if (!read.wrong.empty()) continue;
    HeldPage& page = pages.emplace_back();
    page.dir = image.dir;
    page.form = image.image.form;
    page.page = IsShared(image) ? kMainPage : 0;
    page.save = KeyOf(image.image);
    page.rank = image.image.rank;
    page.world_size = image.image.world_size;
    page.committed = image.committed;
    page.sealed_unix_ms = image.image.sealed_unix_ms;
    page.older_unread = unread.contains(image.dir);
  }
  return pages;
}

std::vector<HeldPage> HeldPages(const std::vector<ckpt::MemoryImage>& images) {
  std::vector<ReadImage> read;
  read.reserve(images.size());
  for (const ckpt::MemoryImage& image : images) read.push_back({image, ""});
  return HeldPages(read, {});
}

std::string LeftMemoryText(const std::vector<ckpt::MemoryFolder>& memories, const std::string& job_id,
                           uint64_t free_bytes) {
  std::vector<const ckpt::MemoryFolder*> left;
  uint64_t bytes = 0;
  for (const ckpt::MemoryFolder& memory : memories) {
    if (!memory.own || memory.agent_lives || memory.job_id == job_id) continue;
    left.push_back(&memory);
    bytes += memory.bytes;
  }
  if (left.empty() || bytes < free_bytes / kLeftIsMuch) return "";
  const std::string which =
      left.size() == 1 ? fmt::format("{}, of job '{}'", left[0]->path, left[0]->job_id)
                       : fmt::format("{} folders that `phalanx ckpt ls {}` lists", left.size(), ckpt::kMemoryRoot);
  return fmt::format(
      "checkpoint: agents that have gone left {} MiB of memory: {}; `phalanx ckpt rescue` writes the newest "
      "step in it to a directory, `phalanx ckpt discard` frees it",
      bytes >> 20, which);
}

std::string LeftStepText(const std::vector<ckpt::MemoryFolder>& memories, const std::string& job_id,
                         const std::string& dir) {
  const ckpt::MemoryFolder* newest = nullptr;
  int64_t newest_step = -1;
  for (const ckpt::MemoryFolder& memory : memories) {
    if (!memory.own || memory.agent_lives || memory.job_id == job_id) continue;
    for (const ckpt::MemoryDirectory& directory : memory.directories) {
      if (directory.dir != dir) continue;
      for (const ckpt::MemorySlot& slot : directory.slots) {
        const bool newer = slot.slot.is_committed() && slot.slot.image.step > newest_step;
        if (!newer) continue;
        newest = &memory;
        newest_step = slot.slot.image.step;
      }
    }
  }
  if (newest == nullptr) return "";
  return fmt::format(
      "checkpoint: an earlier job, '{}', left step {} of {} in memory; this job begins without it: `phalanx ckpt "
      "rescue "
      "{} --to {}` writes it there, `phalanx ckpt discard {}` frees it",
      newest->job_id, newest_step, dir, newest->path, dir, newest->path);
}

// --- what a rank restores -----------------------------------------------------------------------------------------

ImagesToRestore RestoreFromMemory(const std::vector<ckpt::MemoryImage>& images, uint32_t rank, uint32_t world_size) {
  ImagesToRestore restore;
  for (const ckpt::MemoryImage& image : images) {
    const bool is_own = !IsShared(image) && image.image.rank == rank;
    const bool is_for_any = NeedOf(image) == FileNeed::kAnyRank;
    if (image.image.world_size != world_size || !(is_own || IsShared(image) || is_for_any)) continue;
    if (is_own) restore.files.own = image.path;
    if (IsShared(image)) restore.files.main = image.path;
    if (is_for_any) restore.files.ranks[std::to_string(image.image.rank)] = image.path;
    restore.images.push_back(image);
  }
  return restore;
}

namespace {

void AddFetched(RestoreFiles& files, uint32_t rank, const FetchedImages& fetched, const SaveForm& form) {
  for (const auto& [of_rank, path] : fetched) {
    if (of_rank == ckpt::kMainRank) files.main = path;
    if (of_rank == static_cast<int32_t>(rank)) files.own = path;
    if (of_rank != ckpt::kMainRank && form.own == FileNeed::kAnyRank) files.ranks[std::to_string(of_rank)] = path;
  }
}

}  // namespace

RestoreFiles RestoreFromStep(const std::map<int64_t, std::string>& shards, int64_t rank) {
  const auto path_of = [&](int64_t of_rank) {
    const auto shard = shards.find(of_rank);
    return shard == shards.end() ? "" : shard->second;
  };
  return {path_of(rank), path_of(ckpt::kMainRank), {}};
}

ImagesToRestore ToRestore(const v1::CheckpointOrder& order, uint32_t rank,
                          const std::vector<ckpt::MemoryImage>& in_memory, const CheckedFolder& checked,
                          const FetchedImages& fetched, const SaveForm& form) {
  const v1::RestoreDecided& decided = order.restore();
  if (decided.source() == v1::RestoreDecided::MEMORY) {
    ImagesToRestore restore = RestoreFromMemory(in_memory, rank, decided.world_size());
    AddFetched(restore.files, rank, fetched, form);
    return restore;
  }
  const bool on_disk = decided.source() == v1::RestoreDecided::DISK && checked.name == decided.name();
  if (on_disk) return {RestoreFromStep(checked.shards, rank), {}};
  return {};
}

std::vector<ckpt::Shard> ShardsOfRanks(const ckpt::Manifest& manifest, uint32_t first_rank, uint32_t ranks,
                                       uint32_t world_size) {
  std::vector<ckpt::Shard> shards;
  for (const ckpt::Shard& shard : manifest.shards) {
    const bool is_dealt = shard.needed_by == FileNeed::kAnyRank && world_size > 0;
    const int64_t rank = is_dealt ? shard.rank % int64_t{world_size} : shard.rank;
    const bool ours = rank >= int64_t{first_rank} && rank < int64_t{first_rank} + ranks;
    if (ours || shard.needed_by == FileNeed::kEveryRank) shards.push_back(shard);
  }
  return shards;
}

v1::FoundOnDisk NewestStep(const std::string& dir, std::vector<ckpt::FoundStep> newest_first,
                           const std::set<std::string>& but, const std::string& job_id) {
  std::erase_if(newest_first, [&](const ckpt::FoundStep& step) { return but.contains(step.name); });
  const ckpt::FoundStep* newest = ckpt::NewestCommitted(newest_first);
  std::string why;
  for (const ckpt::FoundStep& step : newest_first) {
    if (&step == newest) break;
    why += fmt::format("{}{}/{}: {}", why.empty() ? "" : "; ", dir, step.name, step.why);
  }
  v1::FoundOnDisk found;
  found.set_why(why);
  found.set_step(newest == nullptr ? -1 : newest->step);
  if (newest == nullptr) return found;
  found.set_name(newest->name);
  const ckpt::Manifest& manifest = *newest->manifest;
  found.set_world_size(manifest.world_size);
  found.set_epoch(manifest.epoch);
  found.set_branch(manifest.branch);
  found.set_same_job(manifest.job_id == job_id);
  found.set_written_unix_ms(manifest.written_unix_ms);
  return found;
}

std::string WhyNotKnown(const std::string& dir, const std::vector<ckpt::FoundStep>& newest_first,
                        const std::set<std::string>& but) {
  std::string why;
  for (const ckpt::FoundStep& step : newest_first) {
    if (but.contains(step.name)) continue;
    if (step.state == ckpt::StepState::kCommitted) return "";
    if (step.state != ckpt::StepState::kUnreadable) continue;
    why += fmt::format("{}{}/{}: {}", why.empty() ? "" : "; ", dir, step.name, step.why);
  }
  return why;
}

// --- what a node stores -------------------------------------------------------------------------------------------

std::vector<ckpt::MemoryImage> ImagesToStore(std::vector<ckpt::MemoryImage> images, bool main) {
  std::erase_if(images, [main](const ckpt::MemoryImage& image) {
    return IsShared(image) && (!main || image.image.form.several);
  });
  return images;
}

std::string StoreRefusal(const std::vector<ckpt::MemoryImage>& held, int local_world_size) {
  const auto own = std::ranges::count_if(held, [](const ckpt::MemoryImage& image) { return !IsShared(image); });
  if (own >= local_world_size) return "";
  return fmt::format("{} of {} images are no longer in memory", local_world_size - own, local_world_size);
}

std::string CostText(const std::string& dir, const std::map<std::string, PreparedPage>& pages, uint64_t free_bytes) {
  uint64_t taken = 0, wanted = 0;
  int slots = std::numeric_limits<int>::max(), slots_wanted = 0;
  for (const auto& [name, page] : pages) {
    taken += page.bytes * static_cast<uint64_t>(page.slots);
    wanted += page.bytes * static_cast<uint64_t>(page.slots_wanted);
    slots = std::min(slots, page.slots);
    slots_wanted = std::max(slots_wanted, page.slots_wanted);
  }
  const auto mib = [](uint64_t bytes) { return (bytes + (uint64_t{1} << 20) - 1) >> 20; };
  std::string text = fmt::format("checkpoint: saves to {} take {} MiB of this node's /dev/shm, in {} slots a writer; ",
                                 dir, mib(taken), slots);
  if (taken < wanted) text += fmt::format("{} slots need {} MiB; ", slots_wanted, mib(wanted));
  return text + fmt::format("{} MiB more are free (`phalanx ckpt memory`)", mib(free_bytes));
}

ckpt::StepToPublish ToPublish(const CloseStep& action, const std::string& job_id, int64_t written_unix_ms) {
  const v1::WriteManifest& wire = action.order.write_manifest();
  ckpt::StepToPublish step;
  step.name = wire.name();
  step.trackers = action.options.trackers;
  step.retention = {action.options.keep_last, action.options.keep_every};
  step.goes_on_from = action.goes_on_from;
  ckpt::Manifest& manifest = step.manifest;
  manifest.step = action.order.save().step();
  manifest.epoch = action.order.save().epoch();
  manifest.branch = action.order.save().branch();
  manifest.world_size = wire.world_size();
  manifest.kind = KindOf(FormOf(wire.form()));
  manifest.layout = LayoutOf(wire);
  manifest.job_id = job_id;
  manifest.written_unix_ms = written_unix_ms;
  for (const v1::Shard& shard : wire.shards()) {
    manifest.shards.push_back(
        {shard.rank(), shard.file(), shard.bytes(), shard.crc32(), static_cast<FileNeed>(shard.needed_by())});
  }
  return step;
}

}  // namespace phalanx::agent

#include "agent/checkpoint/selection.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/rank/memory_names.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

// --- what memory holds --------------------------------------------------------------------------------------------

std::vector<HeldPage> HeldPages(const std::vector<ReadImage>& images, const SaveKinds::HasPage& has_page) {
  SaveKinds kinds(has_page);
  for (const ReadImage& each : images) kinds.Add(each.image);
  std::vector<HeldPage> pages;
  for (const auto& [image, wrong] : images) {
    if (!wrong.empty()) continue;
    HeldPage& page = pages.emplace_back();
    page.dir = image.dir;
    page.kind = kinds.Of(image);
    page.page = IsShared(image) ? kMainPage : 0;
    page.save = KeyOf(image.image);
    page.rank = image.image.rank;
    page.world_size = image.image.world_size;
    page.committed = image.committed;
  }
  return pages;
}

std::string LeftMemoryText(const std::vector<ckpt::MemoryFolder>& memories, const std::string& job_id) {
  std::vector<const ckpt::MemoryFolder*> left;
  uint64_t bytes = 0;
  for (const ckpt::MemoryFolder& memory : memories) {
    if (!memory.own || memory.agent_lives || memory.job_id == job_id) continue;
    left.push_back(&memory);
    bytes += memory.bytes;
  }
  if (left.empty()) return "";
  const std::string which =
      left.size() == 1 ? fmt::format("{}, of job '{}'", left[0]->path, left[0]->job_id)
                       : fmt::format("{} folders that `phalanx ckpt ls {}` lists", left.size(), ckpt::kMemoryRoot);
  return fmt::format(
      "checkpoint: agents that have gone left {} MiB of memory: {}; `phalanx ckpt rescue` writes the newest "
      "step in it to a directory, and removing the folder frees it",
      bytes >> 20, which);
}

// --- what a rank restores -----------------------------------------------------------------------------------------

ImagesToRestore RestoreFromMemory(const std::vector<ckpt::MemoryImage>& images, uint32_t rank, uint32_t world_size) {
  ImagesToRestore restore;
  const bool is_sharded =
      std::ranges::any_of(images, [](const ckpt::MemoryImage& image) { return image.page == ckpt::kMetadataPageName; });
  for (const ckpt::MemoryImage& image : images) {
    const bool is_own = !IsShared(image) && image.image.rank == rank;
    if (image.image.world_size != world_size || !(is_own || IsShared(image) || is_sharded)) continue;
    if (is_own) restore.files.own = image.path;
    if (IsShared(image)) restore.files.main = image.path;
    if (is_sharded && !IsShared(image)) restore.files.ranks[std::to_string(image.image.rank)] = image.path;
    restore.images.push_back(image);
  }
  return restore;
}

RestoreFiles RestoreFromStep(const std::map<int64_t, std::string>& shards, int64_t rank) {
  const auto path_of = [&](int64_t of_rank) {
    const auto shard = shards.find(of_rank);
    return shard == shards.end() ? "" : shard->second;
  };
  return {path_of(rank), path_of(ckpt::kMainRank), {}};
}

std::vector<ckpt::Shard> ShardsOfRanks(const ckpt::Manifest& manifest, uint32_t first_rank, uint32_t ranks,
                                       uint32_t world_size) {
  const bool is_dealt = manifest.layout == ckpt::kDcpLayout && world_size > 0;
  std::vector<ckpt::Shard> shards;
  for (const ckpt::Shard& shard : manifest.shards) {
    const int64_t rank = is_dealt ? shard.rank % int64_t{world_size} : shard.rank;
    const bool ours = rank >= int64_t{first_rank} && rank < int64_t{first_rank} + ranks;
    if (ours || shard.rank == ckpt::kMainRank) shards.push_back(shard);
  }
  return shards;
}

v1::FoundOnDisk NewestStep(const std::string& dir, std::vector<ckpt::FoundStep> newest_first,
                           const std::set<std::string>& but) {
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
  found.set_world_size(newest->manifest->world_size);
  return found;
}

// --- what a node stores -------------------------------------------------------------------------------------------

std::vector<ckpt::MemoryImage> ImagesToStore(std::vector<ckpt::MemoryImage> images, bool main) {
  std::erase_if(images, [main](const ckpt::MemoryImage& image) { return IsShared(image) && !main; });
  return images;
}

v1::CheckpointKind KindOfSave(const std::vector<ckpt::MemoryImage>& images, const SaveKinds::HasPage& has_page) {
  if (images.empty()) return v1::FULL;
  SaveKinds kinds(has_page);
  for (const ckpt::MemoryImage& image : images) kinds.Add(image);
  return kinds.Of(images.front());
}

std::string StoreRefusal(const std::vector<ckpt::MemoryImage>& held, int local_world_size) {
  const auto own = std::ranges::count_if(held, [](const ckpt::MemoryImage& image) { return !IsShared(image); });
  if (own >= local_world_size) return "";
  return fmt::format("{} of {} images are no longer in memory", local_world_size - own, local_world_size);
}

}  // namespace phalanx::agent

#include "agent/checkpoint/kinds.h"

#include <tuple>

#include "checkpoint/disk/manifest.h"
#include "checkpoint/rank/memory_names.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

bool IsShared(const ckpt::MemoryImage& image) { return ckpt::IsSharedPage(image.page); }

const char* SharedPageOf(v1::CheckpointKind kind) {
  return kind == v1::DCP ? ckpt::kMetadataPageName : ckpt::kMainPageName;
}

int64_t RankOf(const ckpt::MemoryImage& image) { return IsShared(image) ? ckpt::kMainRank : int64_t{image.image.rank}; }

// The page that was opened says it of a first save that was cut off before the image in it.
void SaveKinds::AddPages(const std::string& dir) {
  if (has_page_(dir, ckpt::kMetadataPageName)) of_dir_[dir] = {SaveKey{}, v1::DCP};
  if (has_page_(dir, ckpt::kMainPageName)) of_dir_[dir] = {SaveKey{}, v1::DDP};
}

void SaveKinds::Add(const ckpt::MemoryImage& image) {
  if (!of_dir_.contains(image.dir)) AddPages(image.dir);
  if (!IsShared(image)) return;
  const v1::CheckpointKind kind = image.page == ckpt::kMetadataPageName ? v1::DCP : v1::DDP;
  const SaveKey save = KeyOf(image.image);
  of_save_[{image.dir, save}] = kind;
  auto& [newest, of_newest] = of_dir_[image.dir];
  if (save >= newest) std::tie(newest, of_newest) = std::tie(save, kind);
}

v1::CheckpointKind SaveKinds::Of(const ckpt::MemoryImage& image) const {
  const auto save = of_save_.find({image.dir, KeyOf(image.image)});
  if (save != of_save_.end()) return save->second;
  const auto dir = of_dir_.find(image.dir);
  return dir == of_dir_.end() ? v1::FULL : dir->second.second;
}

}  // namespace phalanx::agent

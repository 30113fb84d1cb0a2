#include "agent/checkpoint/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "agent/checkpoint/selection.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/storage/files_of.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

namespace {

// Of one save, on one node: its message to the master holds so many.
constexpr size_t kFilesMax = 8'192;
constexpr size_t kFilesBytesMax = size_t{768} << 10;

void Add(WrittenImages& written, const ckpt::Shard& shard) {
  v1::Shard& wire = written.shards.emplace_back();
  wire.set_rank(static_cast<int32_t>(shard.rank));
  wire.set_file(shard.file);
  wire.set_bytes(shard.bytes);
  wire.set_crc32(shard.crc32);
  wire.set_needed_by(static_cast<v1::FileNeed>(shard.needed_by));
}

}  // namespace

FoundSteps FindNewestStep(ckpt::Storage& storage, const std::set<std::string>& but, const std::string& job_id) {
  const std::string& dir = storage.location();
  const StatusOr<std::vector<ckpt::FoundStep>> steps = storage.List();
  if (steps.ok()) return {NewestStep(dir, *steps, but, job_id), WhyNotKnown(dir, *steps, but)};
  FoundSteps none;
  none.found.set_step(-1);
  if (absl::IsNotFound(steps.status())) return none;  // nothing was ever saved there
  none.found.set_why(Message(steps.status()));
  none.unreadable = Message(steps.status());
  return none;
}

CheckedStep CheckShards(ckpt::Storage& storage, const std::string& step, uint32_t first_rank, uint32_t ranks,
                        uint32_t world_size) {
  CheckedStep checked;
  const ckpt::FoundStep found = storage.LookAt(step);
  if (!found.manifest) {
    checked.error = fmt::format("{}/{}: {}", storage.location(), step, found.why);
    // Without a manifest it is gone since it was found, or this node does not see what that one has seen.
    checked.unreadable = found.state != ckpt::StepState::kDamaged;
    return checked;
  }
  for (const ckpt::Shard& shard : ShardsOfRanks(*found.manifest, first_rank, ranks, world_size)) {
    const Status whole = storage.Check(step, shard);
    if (!whole.ok()) checked.error = Message(whole);
    checked.unreadable = checked.unreadable || (!whole.ok() && !absl::IsDataLoss(whole));
    checked.files[shard.rank] = storage.PathOf(step, shard.file);
  }
  return checked;
}

WrittenImages WriteShards(ckpt::Storage& storage, const std::string& step, const std::vector<ckpt::MemoryImage>& images) {
  WrittenImages written;
  for (const ckpt::MemoryImage& image : images) {
    const StatusOr<std::vector<ckpt::Shard>> shards = ckpt::PutImage(
        storage, step, {image.path, image.image.form, RankOf(image), image.image.bytes, image.image.crc32});
    if (!shards.ok()) {
      written.error = Message(shards.status());
      return written;
    }
    for (const ckpt::Shard& shard : *shards) Add(written, shard);
  }
  size_t bytes = 0;
  for (const v1::Shard& shard : written.shards) bytes += shard.ByteSizeLong();
  if (written.shards.size() > kFilesMax || bytes > kFilesBytesMax) {
    written.error = fmt::format("{} files of this node are too many for one step: at most {} in {} KiB of names",
                                written.shards.size(), kFilesMax, kFilesBytesMax >> 10);
  }
  return written;
}

}  // namespace phalanx::agent

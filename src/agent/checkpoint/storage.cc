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
constexpr size_t kBesideNameBytes = 40;

void Add(WrittenImages& written, const ckpt::Shard& shard) {
  v1::Shard& wire = written.shards.emplace_back();
  wire.set_rank(static_cast<int32_t>(shard.rank));
  wire.set_file(shard.file);
  wire.set_bytes(shard.bytes);
  wire.set_crc32(shard.crc32);
  wire.set_needed_by(static_cast<v1::FileNeed>(shard.needed_by));
}

}  // namespace

FoundSteps FindNewestStep(ckpt::Storage& storage, const std::set<std::string>& but,
                          const std::set<std::string>& doubted, const std::string& job_id) {
  const std::string& dir = storage.location();
  const StatusOr<std::vector<ckpt::FoundStep>> steps = storage.ListPast(but, doubted);
  if (steps.ok()) {
    FoundSteps found{NewestStep(dir, *steps, but, job_id), WhyNotKnown(dir, *steps, but)};
    if (found.found.step() >= 0) found.found.set_place(storage.PathOf(found.found.name(), ""));
    return found;
  }
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
    checked.error = fmt::format("{}: {}", storage.PathOf(step, ""), found.why);
    // Without a manifest it is gone since it was found, or this node does not see what that one has seen.
    checked.unreadable = found.state != ckpt::StepState::kDamaged;
    return checked;
  }
  checked.layout = found.manifest->layout;
  checked.place = storage.PathOf(step, "");
  for (const ckpt::Shard& shard : ShardsOfRanks(*found.manifest, first_rank, ranks, world_size)) {
    const Status whole = storage.Check(step, shard);
    if (!whole.ok()) checked.error = Message(whole);
    checked.unreadable = checked.unreadable || (!whole.ok() && !absl::IsDataLoss(whole));
    checked.files[shard.rank] = storage.PathOf(step, shard.file);
  }
  return checked;
}

WrittenImages WriteShards(ckpt::Storage& storage, const std::string& step,
                          const std::vector<ckpt::MemoryImage>& images) {
  std::vector<ckpt::FileToPut> files;
  size_t bytes = 0;
  for (const ckpt::MemoryImage& image : images) {
    const StatusOr<std::vector<ckpt::FileToPut>> of_image =
        ckpt::FilesOf({image.path, image.image.form, RankOf(image), image.image.bytes, image.image.crc32});
    if (!of_image.ok()) return {{}, Message(of_image.status())};
    for (const ckpt::FileToPut& file : *of_image) bytes += file.name.size() + kBesideNameBytes;
    files.insert(files.end(), of_image->begin(), of_image->end());
  }
  if (files.size() > kFilesMax || bytes > kFilesBytesMax) {
    return {{},
            fmt::format("{} files of this node, whose names take {} KiB: at most {} in {} KiB can be told of a step",
                        files.size(), bytes >> 10, kFilesMax, kFilesBytesMax >> 10)};
  }
  const StatusOr<std::vector<ckpt::Shard>> shards = ckpt::PutFiles(storage, step, files);
  if (!shards.ok()) return {{}, Message(shards.status())};
  WrittenImages written;
  for (const ckpt::Shard& shard : *shards) Add(written, shard);
  return written;
}

}  // namespace phalanx::agent

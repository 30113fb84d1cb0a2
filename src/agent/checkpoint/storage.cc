#include "agent/checkpoint/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "agent/checkpoint/kinds.h"
#include "agent/checkpoint/selection.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/persist.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/disk/verify.h"
#include "checkpoint/files/files.h"
#include "checkpoint/image/safetensors.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

namespace {

// The image itself says whether it is a zip or a safetensors file. One that cannot be read is not written either.
const char* LayoutOf(const ckpt::MemoryImage& image, v1::CheckpointKind kind) {
  if (kind == v1::DCP) return ckpt::kDcpLayout;
  const StatusOr<ckpt::MappedFile> file = ckpt::MappedFile::Open(image.path);
  const bool is_named = file.ok() && ckpt::IsSafetensors(file->data(), file->bytes());
  return is_named ? ckpt::kNamedLayout : ckpt::kTorchLayout;
}

}  // namespace

FoundSteps FindNewestStep(const std::string& dir, const std::set<std::string>& but, const std::string& job_id) {
  const StatusOr<std::vector<ckpt::FoundStep>> steps = ckpt::FindSteps(dir);
  if (steps.ok()) return {NewestStep(dir, *steps, but, job_id), WhyNotKnown(dir, *steps, but)};
  FoundSteps none;
  none.found.set_step(-1);
  if (absl::IsNotFound(steps.status())) return none;  // nothing was ever saved there
  none.found.set_why(Message(steps.status()));
  none.unreadable = Message(steps.status());
  return none;
}

CheckedStep CheckShards(const std::string& folder, uint32_t first_rank, uint32_t ranks, uint32_t world_size) {
  CheckedStep checked;
  const ckpt::FoundStep step = ckpt::LookAtStep(folder);
  if (!step.manifest) {
    checked.error = fmt::format("{}: {}", folder, step.why);
    return checked;
  }
  for (const ckpt::Shard& shard : ShardsOfRanks(*step.manifest, first_rank, ranks, world_size)) {
    const Status whole = ckpt::CheckShardFile(folder, shard);
    if (!whole.ok()) checked.error = Message(whole);
    checked.files[shard.rank] = folder + "/" + shard.file;
  }
  return checked;
}

WrittenImages WriteShards(const std::vector<ckpt::MemoryImage>& images, v1::CheckpointKind kind,
                          const std::string& name) {
  WrittenImages written;
  for (const ckpt::MemoryImage& image : images) {
    ckpt::WriteJob job;
    job.source = image.path;
    job.dir = image.dir;
    job.step_name = name;
    job.rank = RankOf(image);
    job.file = ckpt::ShardName(LayoutOf(image, kind), job.rank);
    job.bytes = image.image.bytes;
    job.crc32 = image.image.crc32;
    const StatusOr<ckpt::Shard> shard = ckpt::WriteShard(job);
    if (!shard.ok()) {
      written.error = Message(shard.status());
      return written;
    }
    v1::Shard& wire = written.shards.emplace_back();
    wire.set_rank(static_cast<int32_t>(shard->rank));
    wire.set_file(shard->file);
    wire.set_bytes(shard->bytes);
    wire.set_crc32(shard->crc32);
  }
  return written;
}

}  // namespace phalanx::agent

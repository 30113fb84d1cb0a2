#include "agent/checkpoint/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "agent/checkpoint/kinds.h"
#include "agent/checkpoint/selection.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/steps.h"
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

WrittenImages WriteShards(ckpt::Storage& storage, const std::string& step, const std::vector<ckpt::MemoryImage>& images,
                          v1::CheckpointKind kind) {
  WrittenImages written;
  for (const ckpt::MemoryImage& image : images) {
    ckpt::FileToPut file;
    file.source = image.path;
    file.rank = RankOf(image);
    file.name = ckpt::ShardName(LayoutOf(image, kind), file.rank);
    file.bytes = image.image.bytes;
    file.crc32 = image.image.crc32;
    const StatusOr<ckpt::Shard> shard = storage.Put(step, file);
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

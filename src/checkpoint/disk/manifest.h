// The manifest of a step on disk (docs/formats/checkpoint-manifest.md), to text and back. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/save_form.h"
#include "base/status.h"

namespace phalanx::checkpoint {

constexpr const char* kManifestName = "manifest.json";
constexpr size_t kMaxManifestBytes = size_t{64} << 20;

// The image that holds what is the same on all ranks is no rank's.
constexpr int64_t kMainRank = -1;

// Manifest::layout: what the shards are.
constexpr const char* kTorchLayout = "torch-zip";    // files of torch.save
constexpr const char* kNamedLayout = "safetensors";  // files of safetensors
constexpr const char* kDcpLayout = "dcp";            // the files of torch.distributed.checkpoint
constexpr const char* kFilesLayout = "files";        // each is what it is

// "rank_<rank>.pt" and "main.pt", or ".safetensors" for ".pt"; of sharded state as torch.distributed.checkpoint has
// them: "__<rank>_0.distcp" and ".metadata".
std::string ShardName(std::string_view layout, int64_t rank);
// Whether ShardName has such names.
bool IsShardName(std::string_view name);

// A file of a step.
struct Shard {
  int64_t rank = 0;  // whose it is, or kMainRank
  std::string file;  // in the step's directory
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  FileNeed needed_by = FileNeed::kOwner;

  bool operator==(const Shard&) const = default;
};

struct Manifest {
  int64_t step = 0;
  // The how manieth stored in its directory, whatever its number: the newest has the highest. 0: of a Phalanx that knew
  // no order.
  uint64_t sequence = 0;
  // Begins anew, one higher, with a step that does not go on from the one stored before, or is not above it: who has
  // gone back, or another run.
  uint64_t timeline = 0;
  // The sequence of the stored step that it goes on from; 0: of none. Nothing where that is not known.
  std::optional<uint64_t> goes_on_from = std::nullopt;
  uint32_t branch = 0;  // of its round (SaveKey)
  uint64_t epoch = 0;
  uint32_t world_size = 0;
  std::string kind;  // what people call the form (KindOf); who needs which file the shards say
  std::string layout;
  std::string job_id;
  int64_t written_unix_ms = 0;
  std::vector<Shard> shards;

  bool operator==(const Manifest&) const = default;
};

// Its JSON object. Bytes of a job's id that are no UTF-8 are replaced.
std::string ManifestJson(const Manifest& manifest);

// That and its last line.
std::string ManifestText(const Manifest& manifest);

// DataLoss where the text is cut off or changed, FailedPrecondition where a newer Phalanx wrote it, InvalidArgument
// where a field is missing or out of its range. What comes back passes CheckManifest.
StatusOr<Manifest> ParseManifest(std::string_view text);

// InvalidArgument with the field and its value where the manifest contradicts itself.
Status CheckManifest(const Manifest& manifest);

// A plain name for a file in a step's directory: no path, no control character.
bool IsFileName(std::string_view name);

}  // namespace phalanx::checkpoint

#include "checkpoint/host/storage_host.h"

#include <fmt/format.h>

#include <limits>

#include "checkpoint/storage/publish.h"
#include "checkpoint/storage/storage.h"

namespace phalanx::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameBytesMax = 255;
constexpr size_t kTrackersMax = 16;
constexpr size_t kWarningsMax = 8;
constexpr int64_t kNumberMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kRankMax = std::numeric_limits<int32_t>::max();

}  // namespace

std::string StorageHost::Answer(Request& request) {
  const std::string& type = request.type();
  const StatusOr<Json> answer = type == "claim"    ? Claim(request)
                                : type == "write"  ? Write(request)
                                : type == "shards" ? AddShards(request)
                                : type == "close"  ? Close(request)
                                : type == "tidy"   ? Tidy(request)
                                                   : absl::UnimplementedError(fmt::format("no request '{}'", type));
  return answer.ok() ? AnswerText(*answer) : ErrorText(answer.status());
}

StatusOr<Json> StorageHost::Claim(Request& request) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  const int64_t step = request.Number("step", 0, kNumberMax);
  const int64_t epoch = request.Number("epoch", 0, kNumberMax);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenStorage(dir));
  PHX_ASSIGN_OR_RETURN(const std::string name, storage->Begin(step, static_cast<uint64_t>(epoch)));
  return Json{{"name", name}};
}

StatusOr<Json> StorageHost::Write(Request& request) {
  FileToPut file;
  file.source = request.Text("path", kPathBytesMax);
  const std::string dir = request.Text("dir", kPathBytesMax);
  const std::string step = request.Text("name", kNameBytesMax);
  const std::string layout = request.Text("layout", kNameBytesMax);
  file.rank = request.Number("rank", kMainRank, kRankMax);
  file.bytes = static_cast<uint64_t>(request.Number("bytes", 0, kNumberMax));
  file.crc32 = static_cast<uint32_t>(request.Number("crc32", 0, std::numeric_limits<uint32_t>::max()));
  PHX_RETURN_IF_ERROR(request.status());
  if (layout != kTorchLayout && layout != kNamedLayout && layout != kDcpLayout) {
    return absl::InvalidArgumentError(fmt::format("layout is '{}': expected torch-zip, safetensors or dcp", layout));
  }
  file.name = ShardName(layout, file.rank);
  PHX_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenStorage(dir));
  PHX_ASSIGN_OR_RETURN(const Shard shard, storage->Put(step, file));
  return Json{{"rank", shard.rank}, {"file", shard.file}, {"bytes", shard.bytes}, {"crc32", shard.crc32}};
}

StatusOr<Json> StorageHost::AddShards(Request& request) {
  std::vector<Shard> more = request.Shards("shards");
  PHX_RETURN_IF_ERROR(request.status());
  shards_.insert(shards_.end(), more.begin(), more.end());
  return Json::object();
}

StatusOr<Json> StorageHost::Close(Request& request) {
  StepToPublish step;
  step.manifest.shards = std::move(shards_);
  shards_.clear();
  const std::string dir = request.Text("dir", kPathBytesMax);
  step.name = request.Text("name", kNameBytesMax);
  step.manifest.step = request.Number("step", 0, kNumberMax);
  step.manifest.branch = static_cast<uint32_t>(request.Number("branch", 0, std::numeric_limits<uint32_t>::max()));
  step.manifest.epoch = static_cast<uint64_t>(request.Number("epoch", 0, kNumberMax));
  step.manifest.world_size = static_cast<uint32_t>(request.Number("world_size", 1, kRankMax));
  step.manifest.kind = request.Text("kind", kNameBytesMax);
  step.manifest.layout = request.Text("layout", kNameBytesMax);
  step.manifest.job_id = request.Text("job_id", kPathBytesMax);
  step.manifest.written_unix_ms = request.Number("written_unix_ms", 0, kNumberMax);
  step.trackers = request.Texts("trackers", kTrackersMax);
  step.retention.keep_last = static_cast<int>(request.Number("keep_last", 0, kRankMax));
  step.retention.keep_every = request.Number("keep_every", 0, kNumberMax);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenStorage(dir));
  PHX_ASSIGN_OR_RETURN(std::vector<std::string> warnings, PublishStep(*storage, step));
  if (warnings.size() > kWarningsMax) warnings.resize(kWarningsMax);  // of an answer that fits a packet
  return Json{{"warnings", warnings}};
}

StatusOr<Json> StorageHost::Tidy(Request& request) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenStorage(dir));
  PHX_RETURN_IF_ERROR(storage->Tidy());
  return Json::object();
}

}  // namespace phalanx::checkpoint

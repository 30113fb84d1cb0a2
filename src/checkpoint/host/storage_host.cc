#include "checkpoint/host/storage_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>

#include "checkpoint/disk/shard_json.h"
#include "checkpoint/storage/files_of.h"
#include "checkpoint/storage/publish.h"
#include "checkpoint/storage/storage.h"

namespace phalanx::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr size_t kNameBytesMax = 255;
constexpr size_t kTrackersMax = 16;
constexpr size_t kShardsOfPacket = 100;
constexpr int64_t kFormMax = 15;
constexpr size_t kWarningsMax = 8;
constexpr size_t kStepsMax = 64;  // of an answer that fits a packet
constexpr int64_t kNumberMax = std::numeric_limits<int64_t>::max();
constexpr int64_t kRankMax = std::numeric_limits<int32_t>::max();

}  // namespace

std::string StorageHost::Answer(Request& request) {
  const std::string& type = request.type();
  const StatusOr<Json> answer = type == "claim"     ? Claim(request)
                                : type == "write"   ? Write(request)
                                : type == "more"    ? StatusOr<Json>(More())
                                : type == "shards"  ? AddShards(request)
                                : type == "close"   ? Close(request)
                                : type == "archive" ? Archive(request)
                                : type == "tidy"    ? Tidy(request)
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
  ImageToStore image;
  image.path = request.Text("path", kPathBytesMax);
  const std::string dir = request.Text("dir", kPathBytesMax);
  const std::string step = request.Text("name", kNameBytesMax);
  const std::optional<SaveForm> form = FormOfNumber(static_cast<uint32_t>(request.Number("form", 0, kFormMax)));
  image.rank = request.Number("rank", kMainRank, kRankMax);
  image.bytes = static_cast<uint64_t>(request.Number("bytes", 0, kNumberMax));
  image.crc32 = static_cast<uint32_t>(request.Number("crc32", 0, std::numeric_limits<uint32_t>::max()));
  PHX_RETURN_IF_ERROR(request.status());
  if (!form) return absl::InvalidArgumentError("form of write: no save has that one");
  image.form = *form;
  PHX_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenStorage(dir));
  PHX_ASSIGN_OR_RETURN(written_, PutImage(*storage, step, image));
  Json answer = More();
  answer["layout"] = LayoutOf(image);
  return answer;
}

// As many as fit a packet, however long their names are.
Json StorageHost::More() {
  const size_t count = std::min(written_.size(), kShardsOfPacket);
  Json shards = Json::array();
  for (size_t i = 0; i < count; ++i) {
    shards.push_back(ShardJson<Json>(written_[i]));
  }
  written_.erase(written_.begin(), written_.begin() + static_cast<std::ptrdiff_t>(count));
  return {{"shards", std::move(shards)}, {"more", !written_.empty()}};
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
  const std::vector<std::string> goes_on_from = request.Texts("goes_on_from", 1);
  if (!goes_on_from.empty()) step.goes_on_from = goes_on_from.front();
  const std::string archive = request.Text("archive", kPathBytesMax);
  const int64_t archive_every = request.Number("archive_every", 0, kNumberMax);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_ASSIGN_OR_RETURN(std::shared_ptr<Storage> storage, OpenStorage(dir));
  if (!archive.empty()) {
    std::shared_ptr<TieredStorage>& tiers = tiers_[dir];
    if (!tiers) {
      PHX_ASSIGN_OR_RETURN(std::shared_ptr<Storage> far, OpenStorage(archive));
      tiers = std::make_shared<TieredStorage>(std::move(storage), std::move(far), archive_every);
    }
    storage = tiers;
  }
  PHX_ASSIGN_OR_RETURN(std::vector<std::string> warnings, PublishStep(*storage, step));
  if (warnings.size() > kWarningsMax) warnings.resize(kWarningsMax);  // of an answer that fits a packet
  return Json{{"warnings", warnings}};
}

StatusOr<Json> StorageHost::Archive(Request& request) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  const std::vector<std::string> trackers = request.Texts("trackers", kTrackersMax);
  PHX_RETURN_IF_ERROR(request.status());
  const auto tiers = tiers_.find(dir);
  if (tiers == tiers_.end()) return absl::FailedPreconditionError(fmt::format("{} has no archive", dir));
  const ArchivedSteps done = tiers->second->Archive(trackers);
  return Json{{"steps", done.steps.size() > kStepsMax ? std::vector<int64_t>() : done.steps}, {"why", done.error}};
}

StatusOr<Json> StorageHost::Tidy(Request& request) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_ASSIGN_OR_RETURN(const std::shared_ptr<Storage> storage, OpenStorage(dir));
  PHX_RETURN_IF_ERROR(storage->Tidy());
  return Json::object();
}

}  // namespace phalanx::checkpoint

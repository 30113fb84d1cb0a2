#include "agent/checkpoint/wire.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/utf8.h"
#include "wire/limits.h"

namespace phalanx::agent {
namespace {

namespace ckpt = phalanx::checkpoint;

using Json = nlohmann::json;

constexpr size_t kPathMax = 4'096;
constexpr size_t kWhyMax = 512;
constexpr int64_t kStepMax = int64_t{1} << 48;
constexpr int64_t kBranchMax = UINT32_MAX;
constexpr uint64_t kBytesMax = uint64_t{1} << 48;
constexpr uint64_t kRankMax = INT32_MAX;
constexpr int kSlotsMax = 3;
constexpr size_t kTrackersMax = 8;
constexpr size_t kNameMax = 256;
constexpr int64_t kExactMax = int64_t{1} << 53;
constexpr size_t kNumbersMax = 16'384;

Status Wrong(std::string_view field, std::string_view right) {
  return absl::InvalidArgumentError(fmt::format("a checkpoint packet's {} is not {}", field, right));
}

StatusOr<int64_t> Number(const Json& packet, const char* field, int64_t least, int64_t most) {
  const auto value = packet.find(field);
  if (value == packet.end() || !value->is_number_integer()) return Wrong(field, "a number");
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(most)) {
    return Wrong(field, fmt::format("at most {}", most));
  }
  const int64_t number = value->get<int64_t>();
  if (number < least || number > most) return Wrong(field, fmt::format("from {} to {}", least, most));
  return number;
}

StatusOr<int64_t> NumberOr(const Json& packet, const char* field, int64_t fallback, int64_t least, int64_t most) {
  const auto value = packet.find(field);
  if (value == packet.end() || value->is_null()) return fallback;
  return Number(packet, field, least, most);
}

StatusOr<std::string> Text(const Json& packet, const char* field, size_t most) {
  const auto value = packet.find(field);
  if (value == packet.end() || !value->is_string()) return Wrong(field, "a text");
  std::string text = value->get<std::string>();
  if (text.size() > most) return Wrong(field, fmt::format("at most {} bytes long", most));
  return text;
}

bool Flag(const Json& packet, const char* field) {
  const auto value = packet.find(field);
  return value != packet.end() && value->is_boolean() && value->get<bool>();
}

StatusOr<std::string> Path(const Json& packet, const char* field) {
  PHX_ASSIGN_OR_RETURN(std::string path, Text(packet, field, kPathMax));
  if (path.empty() || path[0] != '/' || path.find('\0') != std::string::npos) return Wrong(field, "an absolute path");
  return path;
}

StatusOr<std::string> Directory(const Json& packet) { return Path(packet, "dir"); }

StatusOr<bool> IsMain(const Json& packet) {
  if (!packet.contains("page")) return false;
  PHX_ASSIGN_OR_RETURN(const std::string page, Text(packet, "page", kPathMax));
  if (page != "own" && page != "main") return Wrong("page", "\"own\" or \"main\"");
  return page == "main";
}

StatusOr<uint32_t> Branch(const Json& packet) {
  PHX_ASSIGN_OR_RETURN(const int64_t branch, NumberOr(packet, "branch", 0, 0, kBranchMax));
  return static_cast<uint32_t>(branch);
}

StatusOr<SaveOfRank> Save(const Json& packet) {
  SaveOfRank save;
  PHX_ASSIGN_OR_RETURN(save.step, Number(packet, "step", 0, kStepMax));
  PHX_ASSIGN_OR_RETURN(save.branch, Branch(packet));
  return save;
}

StatusOr<RankPacket> Open(const Json& packet) {
  OpenPacket open;
  PHX_ASSIGN_OR_RETURN(open.id, Number(packet, "id", 0, INT64_MAX));
  PHX_ASSIGN_OR_RETURN(open.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(const std::string kind, Text(packet, "kind", kPathMax));
  const std::optional<SaveForm> form = FormOfKind(kind);
  if (!form) return Wrong("kind", R"("full", "ddp", "dcp" or "files")");
  CheckpointOptions& options = open.options;
  options.form = *form;
  options.at_breakpoint = Flag(packet, "save_at_breakpoint");
  PHX_ASSIGN_OR_RETURN(const int64_t keep_last, NumberOr(packet, "keep_last", 0, 0, 1'000'000));
  options.keep_last = static_cast<int>(keep_last);
  PHX_ASSIGN_OR_RETURN(options.keep_every, NumberOr(packet, "keep_every", 0, 0, kStepMax));
  if (packet.contains("archive")) {
    PHX_ASSIGN_OR_RETURN(options.archive, Path(packet, "archive"));
    if (options.archive == open.dir) return Wrong("archive", "another directory than that whose archive it is");
  }
  PHX_ASSIGN_OR_RETURN(options.archive_every, NumberOr(packet, "archive_every", 0, 0, kStepMax));
  const auto trackers = packet.find("trackers");
  if (trackers == packet.end()) return RankPacket{std::move(open)};
  if (!trackers->is_array() || trackers->size() > kTrackersMax) return Wrong("trackers", "a short list");
  for (const Json& tracker : *trackers) {
    if (!tracker.is_string()) return Wrong("trackers", "a list of file names");
    options.trackers.push_back(tracker.get<std::string>());
  }
  return RankPacket{std::move(open)};
}

StatusOr<RankPacket> Prepare(const Json& packet) {
  PreparePacket prepare;
  PHX_ASSIGN_OR_RETURN(prepare.id, Number(packet, "id", 0, INT64_MAX));
  PHX_ASSIGN_OR_RETURN(prepare.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(prepare.main, IsMain(packet));
  PHX_ASSIGN_OR_RETURN(const int64_t bytes, Number(packet, "bytes", 1, static_cast<int64_t>(kBytesMax)));
  prepare.bytes = static_cast<uint64_t>(bytes);
  PHX_ASSIGN_OR_RETURN(const int64_t slots, Number(packet, "slots", 2, kSlotsMax));
  prepare.slots = static_cast<int>(slots);
  PHX_ASSIGN_OR_RETURN(const int64_t budget, NumberOr(packet, "memory_budget", 0, 0, INT64_MAX));
  prepare.memory_budget = static_cast<uint64_t>(budget);
  return RankPacket{std::move(prepare)};
}

StatusOr<std::map<std::string, uint32_t>> Values(const Json& packet) {
  std::map<std::string, uint32_t> values;
  const auto given = packet.find("values");
  if (given == packet.end()) return values;
  if (!given->is_object() || given->size() > wire::kMaxSharedValues) return Wrong("values", "a short object");
  for (const auto& [name, crc] : given->items()) {
    const bool is_crc = crc.is_number_unsigned() && crc.get<uint64_t>() <= UINT32_MAX;
    if (name.size() > wire::kMaxSharedValueNameBytes || !is_crc)
      return Wrong("values", "an object of CRCs by short names");
    values[name] = crc.get<uint32_t>();
  }
  return values;
}

StatusOr<RankPacket> Sealed(const Json& packet) {
  SealedPacket sealed;
  PHX_ASSIGN_OR_RETURN(sealed.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(sealed.main, IsMain(packet));
  PHX_ASSIGN_OR_RETURN(sealed.save, Save(packet));
  sealed.store = Flag(packet, "disk");
  PHX_ASSIGN_OR_RETURN(sealed.values, Values(packet));
  return RankPacket{std::move(sealed)};
}

StatusOr<RankPacket> Skipped(const Json& packet) {
  SkippedPacket skipped;
  PHX_ASSIGN_OR_RETURN(skipped.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(skipped.save, Save(packet));
  PHX_ASSIGN_OR_RETURN(skipped.why, Text(packet, "why", kCheckpointPacketMax));
  skipped.why.resize(CutUtf8(skipped.why, kWhyMax).size());
  return RankPacket{std::move(skipped)};
}

StatusOr<RankPacket> Wait(const Json& packet) {
  WaitPacket wait;
  PHX_ASSIGN_OR_RETURN(wait.id, Number(packet, "id", 0, INT64_MAX));
  PHX_ASSIGN_OR_RETURN(wait.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(wait.save, Save(packet));
  PHX_ASSIGN_OR_RETURN(const std::string until, Text(packet, "until", kPathMax));
  if (until != "committed" && until != "stored") return Wrong("until", "\"committed\" or \"stored\"");
  wait.until_stored = until == "stored";
  return RankPacket{std::move(wait)};
}

StatusOr<RankPacket> Restore(const Json& packet) {
  RestorePacket restore;
  PHX_ASSIGN_OR_RETURN(restore.id, Number(packet, "id", 0, INT64_MAX));
  PHX_ASSIGN_OR_RETURN(restore.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(restore.branch, Branch(packet));
  return RankPacket{std::move(restore)};
}

constexpr char kRanges[] = "{rank: [[from, behind the last], ..]}";

std::optional<uint32_t> RankOf(const std::string& text) {
  uint32_t rank = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rank);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return rank;
}

StatusOr<ckpt::ByteRanges> RangesOf(const Json& list) {
  ckpt::ByteRanges ranges;
  if (!list.is_array() || list.empty()) return Wrong("ranges", kRanges);
  for (const Json& range : list) {
    const bool is_range = range.is_array() && range.size() == 2 && range[0].is_number_unsigned() &&
                          range[1].is_number_unsigned() && range[0].get<uint64_t>() < range[1].get<uint64_t>() &&
                          range[1].get<uint64_t>() <= kBytesMax;
    if (!is_range) return Wrong("ranges", kRanges);
    ranges.Add({range[0].get<uint64_t>(), range[1].get<uint64_t>()});
  }
  return ranges;
}

StatusOr<RankPacket> Images(const Json& packet) {
  ImagesPacket images;
  PHX_ASSIGN_OR_RETURN(images.id, Number(packet, "id", 0, INT64_MAX));
  PHX_ASSIGN_OR_RETURN(images.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(images.branch, Branch(packet));
  const auto ranks = packet.find("ranks");
  if (ranks == packet.end() || !ranks->is_array() || ranks->empty()) return Wrong("ranks", "a list of ranks");
  for (const Json& rank : *ranks) {
    const bool is_rank = rank.is_number_unsigned() && rank.get<uint64_t>() <= kRankMax;
    if (!is_rank) return Wrong("ranks", "a list of ranks");
    images.parts[rank.get<uint32_t>()];
  }
  const auto ranges = packet.find("ranges");
  if (ranges == packet.end()) return RankPacket{std::move(images)};
  if (!ranges->is_object()) return Wrong("ranges", kRanges);
  for (const auto& [rank, list] : ranges->items()) {
    const std::optional<uint32_t> number = RankOf(rank);
    if (!number || !images.parts.contains(*number)) return Wrong("ranges", "of ranks that are asked for");
    PHX_ASSIGN_OR_RETURN(images.parts[*number], RangesOf(list));
  }
  return RankPacket{std::move(images)};
}

StatusOr<RankPacket> Restored(const Json& packet) {
  RestoredPacket restored;
  PHX_ASSIGN_OR_RETURN(restored.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(restored.branch, Branch(packet));
  return RankPacket{std::move(restored)};
}

StatusOr<RankPacket> Absent(const Json& packet) {
  AbsentPacket absent;
  PHX_ASSIGN_OR_RETURN(absent.id, Number(packet, "id", 0, INT64_MAX));
  PHX_ASSIGN_OR_RETURN(absent.dir, Directory(packet));
  PHX_ASSIGN_OR_RETURN(absent.save, Save(packet));
  return RankPacket{std::move(absent)};
}

StatusOr<uint64_t> Count(const Json& packet, const char* field) {
  PHX_ASSIGN_OR_RETURN(const int64_t count, Number(packet, field, 0, kExactMax));
  return static_cast<uint64_t>(count);
}

StatusOr<std::vector<uint64_t>> Counts(const Json& packet, const char* field) {
  const auto list = packet.find(field);
  if (list == packet.end() || !list->is_array() || list->size() > kNumbersMax) return Wrong(field, "a list of numbers");
  std::vector<uint64_t> numbers;
  for (const Json& number : *list) {
    if (!number.is_number_unsigned() || number.get<uint64_t>() > kExactMax) return Wrong(field, "a list of numbers");
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

Status FillSpec(const Json& packet, v1::DatasetSpec& spec) {
  PHX_ASSIGN_OR_RETURN(const uint64_t size, Count(packet, "size"));
  PHX_ASSIGN_OR_RETURN(const uint64_t shard_size, Count(packet, "shard_size"));
  PHX_ASSIGN_OR_RETURN(const uint64_t passes, Count(packet, "passes"));
  PHX_ASSIGN_OR_RETURN(const uint64_t seed, Count(packet, "seed"));
  PHX_ASSIGN_OR_RETURN(const std::string order, Text(packet, "order", kNameMax));
  spec.set_size(size);
  spec.set_shard_size(shard_size);
  spec.set_passes(passes);
  spec.set_seed(seed);
  if (order == "shards") spec.set_order(v1::DatasetSpec::SHUFFLED_SHARDS);
  if (order == "records") spec.set_order(v1::DatasetSpec::SHUFFLED_RECORDS);
  return order == "none" || spec.order() != v1::DatasetSpec::IN_ORDER
             ? absl::OkStatus()
             : Wrong("order", R"("none", "shards" or "records")");
}

Status FillRestore(const Json& packet, v1::DatasetState& state) {
  PHX_RETURN_IF_ERROR(FillSpec(packet, *state.mutable_spec()));
  PHX_ASSIGN_OR_RETURN(const uint64_t next, Count(packet, "next"));
  PHX_ASSIGN_OR_RETURN(const std::vector<uint64_t> gaps, Counts(packet, "undone_gaps"));
  state.set_next(next);
  state.mutable_undone_gaps()->Add(gaps.begin(), gaps.end());
  return absl::OkStatus();
}

StatusOr<RankPacket> Shards(const Json& packet) {
  ShardsPacket shards;
  PHX_ASSIGN_OR_RETURN(shards.id, Number(packet, "id", 0, INT64_MAX));
  v1::ShardRequest& request = shards.request;
  PHX_ASSIGN_OR_RETURN(const std::string dataset, Text(packet, "dataset", kNameMax));
  if (dataset.empty()) return Wrong("dataset", "a name");
  request.set_dataset(ToUtf8(dataset));
  PHX_ASSIGN_OR_RETURN(const uint64_t number, Count(packet, "request"));
  request.set_request(number);
  PHX_ASSIGN_OR_RETURN(const std::string ask, Text(packet, "ask", kNameMax));
  std::vector<uint64_t> numbers;
  if (ask == "done" || ask == "back") {
    PHX_ASSIGN_OR_RETURN(numbers, Counts(packet, "shards"));
    auto& told = ask == "done" ? *request.mutable_done()->mutable_shards() : *request.mutable_back()->mutable_shards();
    told.Add(numbers.begin(), numbers.end());
  } else if (ask == "open") {
    PHX_RETURN_IF_ERROR(FillSpec(packet, *request.mutable_open()));
  } else if (ask == "restore") {
    PHX_RETURN_IF_ERROR(FillRestore(packet, *request.mutable_restore()));
  } else if (ask == "take") {
    request.mutable_take();
  } else if (ask == "read") {
    request.mutable_read();
  } else {
    return Wrong("ask", R"("open", "take", "done", "back", "read" or "restore")");
  }
  return RankPacket{std::move(shards)};
}

}  // namespace

StatusOr<RankPacket> ParseRankPacket(std::string_view json) {
  const Json packet = Json::parse(json, nullptr, false);
  if (!packet.is_object()) return absl::InvalidArgumentError("a checkpoint packet is no JSON object");
  PHX_ASSIGN_OR_RETURN(const std::string type, Text(packet, "type", kPathMax));
  if (type == "open") return Open(packet);
  if (type == "prepare") return Prepare(packet);
  if (type == "sealed") return Sealed(packet);
  if (type == "skipped") return Skipped(packet);
  if (type == "wait") return Wait(packet);
  if (type == "restore") return Restore(packet);
  if (type == "images") return Images(packet);
  if (type == "restored") return Restored(packet);
  if (type == "absent") return Absent(packet);
  if (type == "shards") return Shards(packet);
  return Wrong("type", "one that this phalanx-run knows; the package that the rank imports may be newer");
}

}  // namespace phalanx::agent

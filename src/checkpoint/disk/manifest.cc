#include "checkpoint/disk/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/crc/crc32.h"
#include "checkpoint/disk/shard_json.h"

namespace phalanx::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "phalanx-manifest";
constexpr uint64_t kVersion = 2;
constexpr uint64_t kVersionOfNeeds = 2;  // from which on each file says who needs it
constexpr std::string_view kCrcWord = "crc32 ";
constexpr size_t kLastLineBytes = kCrcWord.size() + 8 + 1;
constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxKindBytes = 32;

// Names of shards: of what all ranks share, and around the number of a rank.
struct Names {
  const char* main;
  std::string_view before;
  std::string_view behind;
};
constexpr Names kTorchNames = {"main.pt", "rank_", ".pt"};
constexpr Names kSafetensorsNames = {"main.safetensors", "rank_", ".safetensors"};
constexpr Names kDcpNames = {".metadata", "__", "_0.distcp"};

bool IsNumbered(std::string_view name, std::string_view before, std::string_view after) {
  return name.size() > before.size() + after.size() && name.starts_with(before) && name.ends_with(after) &&
         std::ranges::all_of(name.substr(before.size(), name.size() - before.size() - after.size()),
                             [](char c) { return c >= '0' && c <= '9'; });
}

std::string LastLine(std::string_view body) {
  return fmt::format("{}{:08x}\n", kCrcWord, Crc32(0, body.data(), body.size()));
}

Status Missing(const char* field, const char* wanted) {
  return absl::InvalidArgumentError(fmt::format("'{}' is missing or not {}", field, wanted));
}

template <typename Number>
Status Read(const ordered_json& object, const char* field, Number& out) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_integer()) return Missing(field, "a whole number");
  // Of a number below 0 the unsigned reading is too large, of one that is too large for a signed one the unsigned
  // holds.
  if (it->is_number_unsigned()) {
    const auto value = it->get<uint64_t>();
    if (value <= static_cast<uint64_t>(std::numeric_limits<Number>::max())) {
      out = static_cast<Number>(value);
      return absl::OkStatus();
    }
  } else if (std::numeric_limits<Number>::is_signed) {
    out = static_cast<Number>(it->get<int64_t>());
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("'{}' is {}, out of its range", field, it->dump()));
}

// 0 where it is missing.
template <typename Number>
Status ReadOr(const ordered_json& object, const char* field, Number& out) {
  return object.contains(field) ? Read(object, field, out) : absl::OkStatus();
}

Status Read(const ordered_json& object, const char* field, std::string& out) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) return Missing(field, "a text");
  out = it->get<std::string>();
  return absl::OkStatus();
}

Status Read(const ordered_json& object, const char* field, FileNeed& out) {
  std::string text;
  PHX_RETURN_IF_ERROR(Read(object, field, text));
  const std::optional<FileNeed> need = FileNeedOf(text);
  if (!need) return absl::InvalidArgumentError(fmt::format("'{}' is none of {}", field, fmt::join(kFileNeeds, ", ")));
  out = *need;
  return absl::OkStatus();
}

// Who needed the files of a step of that kind before manifests said it.
FileNeed NeedBefore(std::string_view kind, int64_t rank) {
  if (rank == kMainRank) return FileNeed::kEveryRank;
  return FormOfKind(kind).value_or(kFullForm).own;
}

StatusOr<std::vector<Shard>> ReadShards(const ordered_json& object, const Manifest& manifest, uint64_t version) {
  const auto it = object.find("shards");
  if (it == object.end() || !it->is_array()) return Missing("shards", "a list");
  std::vector<Shard> shards;
  shards.reserve(it->size());
  for (const ordered_json& entry : *it) {
    if (!entry.is_object()) return Missing("shards", "a list of objects");
    Shard shard;
    PHX_RETURN_IF_ERROR(Read(entry, "rank", shard.rank));
    PHX_RETURN_IF_ERROR(Read(entry, "file", shard.file));
    PHX_RETURN_IF_ERROR(Read(entry, "bytes", shard.bytes));
    PHX_RETURN_IF_ERROR(Read(entry, "crc32", shard.crc32));
    if (version < kVersionOfNeeds) {
      shard.needed_by = NeedBefore(manifest.kind, shard.rank);
    } else {
      PHX_RETURN_IF_ERROR(Read(entry, "needed_by", shard.needed_by));
    }
    shards.push_back(std::move(shard));
  }
  return shards;
}

bool IsKind(std::string_view kind) {
  return !kind.empty() && kind.size() <= kMaxKindBytes &&
         std::ranges::all_of(kind, [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-'; });
}

Status CheckShards(const Manifest& manifest) {
  if (manifest.shards.empty()) return absl::InvalidArgumentError("'shards' is empty");
  std::set<std::string_view> files;
  bool shared = false, without_is_nothing = false;
  for (const Shard& shard : manifest.shards) {
    if (shard.rank < kMainRank || shard.rank >= int64_t{manifest.world_size}) {
      return absl::InvalidArgumentError(
          fmt::format("a shard of rank {} in a world of {}", shard.rank, manifest.world_size));
    }
    if (!IsFileName(shard.file) || shard.file == kManifestName) {
      return absl::InvalidArgumentError(fmt::format("the shard of rank {} has no plain file name", shard.rank));
    }
    if (!files.insert(shard.file).second) {
      return absl::InvalidArgumentError(fmt::format("two shards are '{}'", shard.file));
    }
    if ((shard.rank == kMainRank) != (shard.needed_by == FileNeed::kEveryRank)) {
      return absl::InvalidArgumentError(
          fmt::format("'{}' is of rank {}, and needed by {}", shard.file, shard.rank, NameOf(shard.needed_by)));
    }
    shared = shared || shard.rank == kMainRank;
    without_is_nothing = without_is_nothing || shard.needed_by == FileNeed::kNobody || manifest.layout == kDcpLayout;
  }
  if (shared || !without_is_nothing) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("'kind' is {}, and what all ranks share is not among the shards", manifest.kind));
}

// The object in front of the last line, whose CRC is right.
StatusOr<ordered_json> Unwrap(std::string_view text) {
  if (text.size() > kMaxManifestBytes) {
    return absl::DataLossError(fmt::format("{} bytes, more than the {} of a manifest", text.size(), kMaxManifestBytes));
  }
  if (text.size() <= kLastLineBytes || !text.substr(text.size() - kLastLineBytes).starts_with(kCrcWord)) {
    return absl::DataLossError(fmt::format("cut off: {} bytes that do not end in a line 'crc32 ...'", text.size()));
  }
  const std::string_view body = text.substr(0, text.size() - kLastLineBytes);
  if (text.substr(body.size()) != LastLine(body)) {
    return absl::DataLossError(fmt::format("damaged: {} bytes whose CRC is not that of their last line", text.size()));
  }
  ordered_json object = ordered_json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("no JSON object");
  return object;
}

}  // namespace

std::string ManifestJson(const Manifest& manifest) {
  ordered_json shards = ordered_json::array();
  for (const Shard& shard : manifest.shards) {
    shards.push_back(ShardJson<ordered_json>(shard));
  }
  ordered_json object = {{"format", kFormat},
                         {"version", kVersion},
                         {"step", manifest.step},
                         {"sequence", manifest.sequence},
                         {"timeline", manifest.timeline}};
  if (manifest.goes_on_from) object["goes_on_from"] = *manifest.goes_on_from;
  object.update({{"epoch", manifest.epoch},
                 {"branch", manifest.branch},
                 {"world_size", manifest.world_size},
                 {"kind", manifest.kind},
                 {"layout", manifest.layout},
                 {"job_id", manifest.job_id},
                 {"written_unix_ms", manifest.written_unix_ms}});
  object["shards"] = std::move(shards);
  return object.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string ManifestText(const Manifest& manifest) {
  const std::string body = ManifestJson(manifest) + "\n";
  return body + LastLine(body);
}

StatusOr<Manifest> ParseManifest(std::string_view text) {
  PHX_ASSIGN_OR_RETURN(const ordered_json object, Unwrap(text));
  std::string format;
  uint64_t version = 0;
  PHX_RETURN_IF_ERROR(Read(object, "format", format));
  if (format != kFormat) return absl::InvalidArgumentError("'format' is not that of a manifest of Phalanx");
  PHX_RETURN_IF_ERROR(Read(object, "version", version));
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        fmt::format("written by a newer Phalanx (version {}, this one knows {})", version, kVersion));
  }
  if (version == 0) return absl::InvalidArgumentError(fmt::format("'version' is {}", version));
  Manifest manifest;
  PHX_RETURN_IF_ERROR(Read(object, "step", manifest.step));
  PHX_RETURN_IF_ERROR(ReadOr(object, "sequence", manifest.sequence));
  PHX_RETURN_IF_ERROR(ReadOr(object, "timeline", manifest.timeline));
  if (object.contains("goes_on_from")) {
    PHX_RETURN_IF_ERROR(Read(object, "goes_on_from", manifest.goes_on_from.emplace()));
  }
  PHX_RETURN_IF_ERROR(ReadOr(object, "branch", manifest.branch));
  PHX_RETURN_IF_ERROR(Read(object, "epoch", manifest.epoch));
  PHX_RETURN_IF_ERROR(Read(object, "world_size", manifest.world_size));
  PHX_RETURN_IF_ERROR(Read(object, "kind", manifest.kind));
  PHX_RETURN_IF_ERROR(Read(object, "layout", manifest.layout));
  PHX_RETURN_IF_ERROR(Read(object, "job_id", manifest.job_id));
  PHX_RETURN_IF_ERROR(Read(object, "written_unix_ms", manifest.written_unix_ms));
  PHX_ASSIGN_OR_RETURN(manifest.shards, ReadShards(object, manifest, version));
  PHX_RETURN_IF_ERROR(CheckManifest(manifest));
  return manifest;
}

Status CheckManifest(const Manifest& manifest) {
  if (manifest.step < 0) return absl::InvalidArgumentError(fmt::format("'step' is {}, below 0", manifest.step));
  if (manifest.world_size == 0) return absl::InvalidArgumentError("'world_size' is 0");
  if (!IsKind(manifest.kind)) {
    return absl::InvalidArgumentError(
        fmt::format("'kind' is not 1 to {} small letters, digits and '-'", kMaxKindBytes));
  }
  constexpr std::array<std::string_view, 4> kLayouts = {kTorchLayout, kNamedLayout, kDcpLayout, kFilesLayout};
  if (std::ranges::find(kLayouts, manifest.layout) == kLayouts.end()) {
    return absl::InvalidArgumentError(fmt::format("'layout' is none of {}", fmt::join(kLayouts, ", ")));
  }
  return CheckShards(manifest);
}

std::string ShardName(std::string_view layout, int64_t rank) {
  const Names& names = layout == kDcpLayout ? kDcpNames : layout == kNamedLayout ? kSafetensorsNames : kTorchNames;
  return rank == kMainRank ? names.main : fmt::format("{}{}{}", names.before, rank, names.behind);
}

bool IsShardName(std::string_view name) {
  return std::ranges::any_of(std::array{kTorchNames, kSafetensorsNames, kDcpNames}, [&](const Names& names) {
    return name == names.main || IsNumbered(name, names.before, names.behind);
  });
}

bool IsFileName(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes || name == "." || name == "..") return false;
  return std::ranges::all_of(name, [](unsigned char c) { return c >= 0x20 && c != 0x7f && c != '/'; });
}

}  // namespace phalanx::checkpoint

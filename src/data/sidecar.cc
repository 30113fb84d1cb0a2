#include "data/sidecar.h"

#include <fmt/format.h>

#include <limits>

namespace phalanx::data {
namespace {

using nlohmann::ordered_json;

constexpr const char* kFormat = "phalanx-dataset";
constexpr uint64_t kVersion = 1;
constexpr int kMaxDepth = 32;  // what is passed on is written by recursion

Status Missing(std::string_view field, const char* wanted) {
  return absl::InvalidArgumentError(fmt::format("'{}' is missing or not {}", field, wanted));
}

Status Read(const ordered_json& object, const char* field, uint64_t max, uint64_t& out) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_number_integer()) return Missing(field, "a whole number");
  if (!it->is_number_unsigned() || it->get<uint64_t>() > max) {
    return absl::InvalidArgumentError(fmt::format("'{}' is {}, out of its range", field, it->dump()));
  }
  out = it->get<uint64_t>();
  return absl::OkStatus();
}

Status Read(const ordered_json& object, const char* field, std::string& out) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_string()) return Missing(field, "a text");
  out = it->get<std::string>();
  return absl::OkStatus();
}

Status ReadFile(const ordered_json& object, const char* field, uint64_t& bytes, uint32_t& crc32) {
  const auto it = object.find(field);
  if (it == object.end() || !it->is_object()) return Missing(field, "an object");
  PHX_RETURN_IF_ERROR(Read(*it, "bytes", INT64_MAX, bytes));
  uint64_t value = 0;
  PHX_RETURN_IF_ERROR(Read(*it, "crc32", UINT32_MAX, value));
  crc32 = static_cast<uint32_t>(value);
  return absl::OkStatus();
}

Status ReadDtype(const ordered_json& object, Dtype& out) {
  std::string name;
  PHX_RETURN_IF_ERROR(Read(object, "dtype", name));
  for (const Dtype dtype : {Dtype::kUint8, Dtype::kInt8, Dtype::kInt16, Dtype::kInt32, Dtype::kInt64, Dtype::kUint16}) {
    if (name != NameOf(dtype)) continue;
    out = dtype;
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(fmt::format("'dtype' is '{}', which no tokens have", name));
}

Status ReadLayout(const ordered_json& object, Layout& out) {
  std::string name;
  PHX_RETURN_IF_ERROR(Read(object, "dataset_impl", name));
  if (name != "mmap" && name != "lazy") {
    return absl::InvalidArgumentError(fmt::format("'dataset_impl' is '{}': mmap and lazy are known", name));
  }
  out = name == "mmap" ? Layout::kMmap : Layout::kLazy;
  return absl::OkStatus();
}

StatusOr<std::optional<Tokenizer>> ReadTokenizer(const ordered_json& object) {
  const auto it = object.find("tokenizer");
  if (it != object.end() && it->is_null()) return std::optional<Tokenizer>();
  if (it == object.end() || !it->is_object()) return Missing("tokenizer", "an object or null");
  Tokenizer tokenizer;
  PHX_RETURN_IF_ERROR(Read(*it, "type", tokenizer.type));
  PHX_RETURN_IF_ERROR(Read(*it, "fingerprint", tokenizer.fingerprint));
  PHX_RETURN_IF_ERROR(Read(*it, "vocab_size", INT64_MAX, tokenizer.vocab_size));
  const auto eod = it->find("eod");
  if (eod != it->end() && !eod->is_null()) {
    uint64_t value = 0;
    PHX_RETURN_IF_ERROR(Read(*it, "eod", INT64_MAX, value));
    tokenizer.eod = static_cast<int64_t>(value);
  }
  return std::optional<Tokenizer>(std::move(tokenizer));
}

Status ReadParts(const ordered_json& object, Sidecar& sidecar) {
  const auto options = object.find("options");
  if (options == object.end() || !options->is_object()) return Missing("options", "an object");
  const auto inputs = object.find("inputs");
  if (inputs == object.end() || !inputs->is_array()) return Missing("inputs", "a list");
  const auto versions = object.find("versions");
  if (versions == object.end() || !versions->is_object()) return Missing("versions", "an object");
  sidecar.options = *options;
  sidecar.inputs = *inputs;
  sidecar.versions = *versions;
  return absl::OkStatus();
}

StatusOr<ordered_json> ParseObject(std::string_view text) {
  if (text.size() > kMaxSidecarBytes) {
    return absl::InvalidArgumentError(
        fmt::format("{} bytes, more than the {} of a sidecar", text.size(), kMaxSidecarBytes));
  }
  bool is_deep = false;
  const auto within = [&](int depth, ordered_json::parse_event_t, ordered_json&) {
    is_deep = is_deep || depth > kMaxDepth;
    return depth <= kMaxDepth;
  };
  ordered_json object = ordered_json::parse(text, within, /*allow_exceptions=*/false);
  if (is_deep) return absl::InvalidArgumentError(fmt::format("JSON of more than {} levels", kMaxDepth));
  if (!object.is_object()) return absl::InvalidArgumentError("no JSON object");
  return object;
}

ordered_json FileJson(uint64_t bytes, uint32_t crc32) { return {{"bytes", bytes}, {"crc32", crc32}}; }

ordered_json TokenizerJson(const std::optional<Tokenizer>& tokenizer) {
  if (!tokenizer) return nullptr;
  ordered_json object = {
      {"type", tokenizer->type}, {"fingerprint", tokenizer->fingerprint}, {"vocab_size", tokenizer->vocab_size}};
  object["eod"] = nullptr;
  if (tokenizer->eod) object["eod"] = *tokenizer->eod;
  return object;
}

const char* NameOf(Layout layout) { return layout == Layout::kMmap ? "mmap" : "lazy"; }

void Compare(std::vector<std::string>& all, const char* what, uint64_t said, uint64_t found) {
  if (said != found) all.push_back(fmt::format("{} {} are there instead of {}", found, what, said));
}

}  // namespace

StatusOr<Sidecar> ParseSidecar(std::string_view text) {
  PHX_ASSIGN_OR_RETURN(const ordered_json object, ParseObject(text));
  std::string format;
  PHX_RETURN_IF_ERROR(Read(object, "format", format));
  if (format != kFormat) {
    return absl::InvalidArgumentError(fmt::format("'format' is '{}' instead of '{}'", format, kFormat));
  }
  uint64_t version = 0;
  PHX_RETURN_IF_ERROR(Read(object, "version", UINT64_MAX, version));
  if (version != kVersion) {
    return absl::InvalidArgumentError(fmt::format("version {}, where {} is known", version, kVersion));
  }
  Sidecar sidecar;
  JoinCounts& counts = sidecar.counts;
  PHX_RETURN_IF_ERROR(ReadLayout(object, sidecar.layout));
  PHX_RETURN_IF_ERROR(ReadDtype(object, counts.dtype));
  PHX_RETURN_IF_ERROR(Read(object, "documents", INT64_MAX, counts.documents));
  PHX_RETURN_IF_ERROR(Read(object, "sequences", INT64_MAX, counts.sequences));
  PHX_RETURN_IF_ERROR(Read(object, "tokens", INT64_MAX, counts.tokens));
  PHX_RETURN_IF_ERROR(ReadFile(object, "bin", counts.bin_bytes, counts.bin_crc32));
  PHX_RETURN_IF_ERROR(ReadFile(object, "idx", counts.idx_bytes, counts.idx_crc32));
  PHX_ASSIGN_OR_RETURN(sidecar.tokenizer, ReadTokenizer(object));
  PHX_RETURN_IF_ERROR(ReadParts(object, sidecar));
  if (object.contains("errors")) PHX_RETURN_IF_ERROR(Read(object, "errors", INT64_MAX, sidecar.errors));
  if (object.contains("written_unix_ms")) {
    uint64_t written = 0;
    PHX_RETURN_IF_ERROR(Read(object, "written_unix_ms", INT64_MAX, written));
    sidecar.written_unix_ms = static_cast<int64_t>(written);
  }
  return sidecar;
}

std::string SidecarText(const Sidecar& sidecar) {
  const JoinCounts& counts = sidecar.counts;
  const ordered_json object = {{"format", kFormat},
                               {"version", kVersion},
                               {"dataset_impl", NameOf(sidecar.layout)},
                               {"dtype", data::NameOf(counts.dtype)},
                               {"documents", counts.documents},
                               {"sequences", counts.sequences},
                               {"tokens", counts.tokens},
                               {"bin", FileJson(counts.bin_bytes, counts.bin_crc32)},
                               {"idx", FileJson(counts.idx_bytes, counts.idx_crc32)},
                               {"tokenizer", TokenizerJson(sidecar.tokenizer)},
                               {"options", sidecar.options},
                               {"inputs", sidecar.inputs},
                               {"errors", sidecar.errors},
                               {"versions", sidecar.versions},
                               {"written_unix_ms", sidecar.written_unix_ms}};
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::vector<std::string> Contradictions(const Sidecar& sidecar, Layout layout, const JoinCounts& found,
                                        bool with_crcs) {
  const JoinCounts& said = sidecar.counts;
  std::vector<std::string> all;
  if (sidecar.layout != layout) {
    all.push_back(fmt::format("the layout is {} instead of {}", NameOf(layout), NameOf(sidecar.layout)));
  }
  if (said.dtype != found.dtype) {
    all.push_back(fmt::format("tokens are {} instead of {}", data::NameOf(found.dtype), data::NameOf(said.dtype)));
  }
  Compare(all, "documents", said.documents, found.documents);
  Compare(all, "sequences", said.sequences, found.sequences);
  Compare(all, "tokens", said.tokens, found.tokens);
  Compare(all, "bytes of .bin", said.bin_bytes, found.bin_bytes);
  Compare(all, "bytes of .idx", said.idx_bytes, found.idx_bytes);
  if (!with_crcs || !all.empty()) return all;  // of other bytes the CRC says nothing more
  for (const auto& [file, wanted, is] :
       {std::tuple(".bin", said.bin_crc32, found.bin_crc32), std::tuple(".idx", said.idx_crc32, found.idx_crc32)}) {
    if (wanted != is)
      all.push_back(fmt::format("the CRC of {} is {:08x} instead of {:08x}: it is damaged", file, is, wanted));
  }
  return all;
}

StatusOr<std::optional<Tokenizer>> CommonTokenizer(const std::vector<std::optional<Sidecar>>& sidecars,
                                                   const std::vector<std::string>& names) {
  std::optional<size_t> known;
  bool is_common = true;
  for (size_t i = 0; i < sidecars.size(); ++i) {
    if (!sidecars[i] || !sidecars[i]->tokenizer) {
      is_common = false;
      continue;
    }
    if (!known) known = i;
    const Tokenizer& first = *sidecars[*known]->tokenizer;
    const Tokenizer& other = *sidecars[i]->tokenizer;
    if (first.fingerprint == other.fingerprint) continue;
    return absl::InvalidArgumentError(fmt::format(
        "{} and {} were made by different tokenizers, {} ({}) and {} ({}): what one token means in the one it does not "
        "mean in the other",
        names[*known], names[i], first.type, first.fingerprint, other.type, other.fingerprint));
  }
  return is_common && known ? sidecars[*known]->tokenizer : std::nullopt;
}

}  // namespace phalanx::data

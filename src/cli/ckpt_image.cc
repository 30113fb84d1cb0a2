#include "cli/ckpt_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/crc/crc32.h"
#include "checkpoint/image/safetensors.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

constexpr uint64_t kMaxInfoBytes = 1 << 20;

template <typename Number>
Number NumberOf(const nlohmann::ordered_json& object, const char* key) {
  const int64_t value = NumberIn(object, key);
  const bool fits = value >= 0 && static_cast<uint64_t>(value) <= uint64_t{std::numeric_limits<Number>::max()};
  return fits ? static_cast<Number>(value) : 0;
}

ImageInfo ParseInfo(std::string_view text) {
  ImageInfo info;
  if (text.size() > kMaxInfoBytes) return info;
  const auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return info;
  info.known = true;
  info.step = NumberIn(object, "step");
  info.epoch = NumberOf<uint64_t>(object, "epoch");
  if (object.contains("branch")) info.branch = NumberOf<uint32_t>(object, "branch");
  info.rank = NumberOf<uint32_t>(object, "rank");
  info.world_size = NumberOf<uint32_t>(object, "world_size");
  info.kind = TextIn(object, "kind");
  info.job_id = TextIn(object, "job_id");
  return info;
}

// The text of the record `.phalanx/info`; empty where there is none.
std::string_view InfoText(const checkpoint::MappedFile& file, const std::vector<checkpoint::ImageRecord>& records) {
  const auto it = std::ranges::find_if(
      records, [](const checkpoint::ImageRecord& record) { return record.name.ends_with("/.phalanx/info"); });
  return it == records.end() ? std::string_view() : std::string_view(file.data() + it->offset, it->bytes);
}

}  // namespace

StatusOr<Image> OpenImage(const std::string& path) {
  PHX_ASSIGN_OR_RETURN(checkpoint::MappedFile file, checkpoint::MappedFile::Open(path));
  std::vector<checkpoint::ImageRecord> records;
  std::string info;
  const bool named = checkpoint::IsSafetensors(file.data(), file.bytes());
  const std::string why = named ? checkpoint::ParseSafetensors(file.data(), file.bytes(), &records, &info)
                                : checkpoint::ParseImage(file.data(), file.bytes(), &records);
  if (!why.empty()) return absl::DataLossError(fmt::format("{}: {}", path, why));
  ImageInfo said = ParseInfo(named ? std::string_view(info) : InfoText(file, records));
  return Image{named, std::move(file), std::move(records), std::move(said)};
}

std::string WhyDamaged(const checkpoint::MappedFile& file) {
  return checkpoint::IsSafetensors(file.data(), file.bytes()) ? checkpoint::CheckSafetensors(file.data(), file.bytes())
                                                              : checkpoint::CheckImage(file.data(), file.bytes());
}

Status CheckRecords(const std::string& path, const Image& image) {
  const std::string why = WhyDamaged(image.file);
  return why.empty() ? absl::OkStatus() : absl::DataLossError(fmt::format("{}: {}", path, why));
}

uint32_t FileCrc(const checkpoint::MappedFile& file) { return Crc32(0, file.data(), file.bytes()); }

}  // namespace phalanx::cli

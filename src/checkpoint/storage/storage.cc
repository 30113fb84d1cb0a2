#include "checkpoint/storage/storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/crc/crc32.h"
#include "checkpoint/storage/posix.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kReadBytes = uint64_t{4} << 20;

// "s3" of "s3://bucket/run": letters, digits, "+", "-" and "." in front of "://" (RFC 3986, 3.1). Empty: it is a path.
std::string SchemeOf(const std::string& location) {
  const size_t end = location.find("://");
  if (end == std::string::npos || end == 0) return "";
  const std::string scheme = location.substr(0, end);
  const bool is_one = std::ranges::all_of(scheme, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' || c == '-' ||
           c == '.';
  });
  return is_one ? scheme : "";
}

}  // namespace

StatusOr<std::vector<FoundStep>> Storage::ListPast(const std::set<std::string>& /*useless*/,
                                                   const std::set<std::string>& /*doubted*/) {
  return List();
}

std::set<std::string> Storage::StillNeeded(const std::vector<FoundStep>& /*newest_first*/) { return {}; }

Status Storage::Check(const std::string& step, const Shard& file) {
  std::vector<uint8_t> part(std::min(file.bytes, kReadBytes));
  uint32_t crc = 0;
  if (part.empty()) PHX_RETURN_IF_ERROR(Read(step, file.file, 0, part));  // whether it is there
  for (uint64_t at = 0; at < file.bytes; at += part.size()) {
    part.resize(std::min<uint64_t>(part.size(), file.bytes - at));
    PHX_RETURN_IF_ERROR(Read(step, file.file, at, part));
    crc = Crc32(crc, part.data(), part.size());
  }
  uint8_t byte = 0;
  Status beyond = Read(step, file.file, file.bytes, {&byte, 1});
  if (!beyond.ok() && !absl::IsDataLoss(beyond)) return beyond;
  if (beyond.ok()) {
    return absl::DataLossError(
        fmt::format("{} has more than {} bytes, as its manifest says", PathOf(step, file.file), file.bytes));
  }
  if (crc == file.crc32) return absl::OkStatus();
  return absl::DataLossError(
      fmt::format("{} has CRC {:08x}, and its manifest says {:08x}", PathOf(step, file.file), crc, file.crc32));
}

StatusOr<std::shared_ptr<Storage>> OpenStorage(const std::string& location) {
  const std::string scheme = SchemeOf(location);
  if (scheme.empty()) return std::make_shared<PosixStorage>(location);
  return absl::InvalidArgumentError(
      fmt::format("{}: there is no storage for {}://; mount it, and name the path", location, scheme));
}

}  // namespace phalanx::checkpoint

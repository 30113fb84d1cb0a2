#include "checkpoint/remote/image_request.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/crc/crc32.h"

namespace phalanx::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kRequestMagic = "PHXIMGRQ";
constexpr std::string_view kAnswerMagic = "PHXIMGAN";
constexpr size_t kEpochAt = 8;
constexpr size_t kStepAt = 16;
constexpr size_t kBranchAt = 24;
constexpr size_t kRankAt = 28;
constexpr size_t kOffsetAt = 32;
constexpr size_t kBytesAt = 40;
constexpr size_t kDirBytesAt = 48;
constexpr size_t kProvedAt = 52;
constexpr size_t kCrcAt = 56;

constexpr size_t kStatusAt = 8;
constexpr size_t kImageCrcAt = 12;
constexpr size_t kImageBytesAt = 16;
constexpr size_t kFollowAt = 24;

template <typename T>
T Get(std::string_view text, size_t at) {
  T value;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

template <typename T>
void Put(std::string& text, size_t at, T value) {
  std::memcpy(text.data() + at, &value, sizeof value);
}

uint32_t CrcOf(std::string_view request, std::string_view dir) {
  return Crc32(Crc32(0, request.data(), kCrcAt), dir.data(), dir.size());
}

}  // namespace

std::string FormatRequest(const ImageRequest& request) {
  std::string text(kRequestHeadBytes, '\0');
  kRequestMagic.copy(text.data(), kRequestMagic.size());
  Put(text, kEpochAt, request.image.save.epoch);
  Put(text, kStepAt, request.image.save.step);
  Put(text, kBranchAt, request.image.save.branch);
  Put(text, kRankAt, request.image.rank);
  Put(text, kOffsetAt, request.offset);
  Put(text, kBytesAt, request.bytes);
  Put(text, kDirBytesAt, static_cast<uint32_t>(request.image.dir.size()));
  Put(text, kProvedAt, uint32_t{request.proved});
  Put(text, kCrcAt, CrcOf(text, request.image.dir));
  return text + request.image.dir;
}

StatusOr<std::optional<ImageRequest>> ParseRequest(std::string_view arrived, size_t* used) {
  const std::string_view magic = arrived.substr(0, kRequestMagic.size());
  if (magic != kRequestMagic.substr(0, magic.size()))
    return absl::InvalidArgumentError("it is no request for an image");
  if (arrived.size() < kRequestHeadBytes) return std::nullopt;
  const uint32_t dir_bytes = Get<uint32_t>(arrived, kDirBytesAt);
  if (dir_bytes == 0 || dir_bytes > kRequestDirMax) {
    return absl::InvalidArgumentError(
        fmt::format("a directory's name of {} bytes: expected 1 to {}", dir_bytes, kRequestDirMax));
  }
  if (arrived.size() < kRequestHeadBytes + dir_bytes) return std::nullopt;
  const std::string_view dir = arrived.substr(kRequestHeadBytes, dir_bytes);
  if (CrcOf(arrived, dir) != Get<uint32_t>(arrived, kCrcAt)) {
    return absl::InvalidArgumentError("the request's CRC is not that of its bytes");
  }
  const auto proved = Get<uint32_t>(arrived, kProvedAt);
  if (proved > 1) return absl::InvalidArgumentError("the request wants what is not known here");
  ImageRequest request;
  request.proved = proved == 1;
  request.image.dir = dir;
  request.image.save = {Get<uint64_t>(arrived, kEpochAt), Get<int64_t>(arrived, kStepAt),
                        Get<uint32_t>(arrived, kBranchAt)};
  request.image.rank = Get<int32_t>(arrived, kRankAt);
  request.offset = Get<uint64_t>(arrived, kOffsetAt);
  request.bytes = Get<uint64_t>(arrived, kBytesAt);
  *used = kRequestHeadBytes + dir_bytes;
  return request;
}

std::string FormatAnswer(const ImageAnswer& answer) {
  std::string text(kAnswerBytes, '\0');
  kAnswerMagic.copy(text.data(), kAnswerMagic.size());
  Put(text, kStatusAt, uint32_t{answer.found ? 0U : 1U});
  Put(text, kImageCrcAt, answer.crc32);
  Put(text, kImageBytesAt, answer.image_bytes);
  Put(text, kFollowAt, answer.bytes);
  return text;
}

StatusOr<ImageAnswer> ParseAnswer(std::string_view text) {
  if (text.size() != kAnswerBytes || !text.starts_with(kAnswerMagic)) {
    return absl::InvalidArgumentError("it is no answer to a request for an image");
  }
  ImageAnswer answer;
  answer.found = Get<uint32_t>(text, kStatusAt) == 0;
  answer.crc32 = Get<uint32_t>(text, kImageCrcAt);
  answer.image_bytes = Get<uint64_t>(text, kImageBytesAt);
  answer.bytes = Get<uint64_t>(text, kFollowAt);
  if (answer.bytes > answer.image_bytes || (!answer.found && answer.bytes != 0)) {
    return absl::InvalidArgumentError(
        fmt::format("an answer of {} bytes of an image of {}", answer.bytes, answer.image_bytes));
  }
  return answer;
}

std::string FormatProof(const ImageProof& proof) {
  std::string text(kProofBytes, '\0');
  Put(text, 0, proof.crc32);
  Put(text, 4, uint32_t{proof.still_lent});
  return text;
}

ImageProof ParseProof(std::string_view text) { return {Get<uint32_t>(text, 0), Get<uint32_t>(text, 4) == 1}; }

}  // namespace phalanx::checkpoint

// What a node that reads another's images says, and what it is answered: docs/formats/image-read.md. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/save_key.h"
#include "base/status.h"

namespace phalanx::checkpoint {

constexpr size_t kImageKeyBytes = 32;
constexpr size_t kRequestHeadBytes = 60;
constexpr size_t kAnswerBytes = 32;
constexpr size_t kProofBytes = 8;
constexpr size_t kRequestDirMax = 4096;
// Either side gives up a connection that has not moved for so long.
constexpr int64_t kImageStallMs = 10'000;

// By which a holder and its readers know each other (secure_channel.h).
using ImageKey = std::array<uint8_t, kImageKeyBytes>;

// Which image: of one save of a directory, a rank's own or, for kMainRank, that which all ranks of a node share.
struct ImageName {
  std::string dir;
  SaveKey save;
  int32_t rank = 0;
  auto operator<=>(const ImageName&) const = default;
};

struct ImageRequest {
  ImageName image;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  bool proved = false;  // the bytes are to be followed by an ImageProof
};

// Behind a part of an image: what tells that it is just that.
struct ImageProof {
  uint32_t crc32 = 0;       // of the part
  bool still_lent = false;  // behind its last byte nobody had been free to write over the image
};

struct ImageAnswer {
  bool found = false;
  uint32_t crc32 = 0;        // of the whole image
  uint64_t image_bytes = 0;  // of the whole image
  uint64_t bytes = 0;        // that follow
};

std::string FormatRequest(const ImageRequest& request);
// The request at the front of what has arrived; *used is its length then. Nothing where more is to come. The error says
// what is wrong: nothing that follows can be read.
StatusOr<std::optional<ImageRequest>> ParseRequest(std::string_view arrived, size_t* used);

std::string FormatAnswer(const ImageAnswer& answer);
// `text` has kAnswerBytes.
StatusOr<ImageAnswer> ParseAnswer(std::string_view text);

std::string FormatProof(const ImageProof& proof);
// `text` has kProofBytes.
ImageProof ParseProof(std::string_view text);

}  // namespace phalanx::checkpoint

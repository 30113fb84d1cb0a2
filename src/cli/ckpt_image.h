// An image in a file: its records and what it says of itself.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/files/files.h"
#include "checkpoint/image/image.h"

namespace phalanx::cli {

// The record `.phalanx/info`, or its like in the header of a safetensors file; empty and 0 where the image has none or
// does not say.
struct ImageInfo {
  bool known = false;
  int64_t step = 0;
  uint64_t epoch = 0;
  std::optional<uint32_t> branch = std::nullopt;  // of one of a Phalanx that says it
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string kind;
  std::string job_id;
};

struct Image {
  bool named = false;  // a safetensors file, no zip
  checkpoint::MappedFile file;
  std::vector<checkpoint::ImageRecord> records;
  ImageInfo info;
};

// DataLoss with the path and the reason where it is no image.
StatusOr<Image> OpenImage(const std::string& path);

// The same, whatever it is called: reads all of it; the reason where it is none or its records are not what they should
// be, else empty.
std::string WhyDamaged(const checkpoint::MappedFile& file);
Status CheckRecords(const std::string& path, const Image& image);
uint32_t FileCrc(const checkpoint::MappedFile& file);

}  // namespace phalanx::cli

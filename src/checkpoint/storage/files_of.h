// What of an image in memory goes to storage: itself, under the name of its rank, or the files in it under theirs.
#pragma once

#include <string>
#include <vector>

#include "base/save_form.h"
#include "base/status.h"
#include "checkpoint/storage/storage.h"

namespace phalanx::checkpoint {

struct ImageToStore {
  std::string path;
  SaveForm form;
  int64_t rank = 0;  // or kMainRank
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

// Manifest::layout of what it holds. An image that cannot be read is not written either.
const char* LayoutOf(const ImageToStore& image);

// In the image's order; none where it holds none that go to storage. DataLoss where it cannot be taken apart.
StatusOr<std::vector<FileToPut>> FilesOf(const ImageToStore& image);

// All of them, in a step as Storage::Begin gave it. The error is that of the first that could not be put.
StatusOr<std::vector<Shard>> PutFiles(Storage& storage, const std::string& step, const std::vector<FileToPut>& files);
StatusOr<std::vector<Shard>> PutImage(Storage& storage, const std::string& step, const ImageToStore& image);

}  // namespace phalanx::checkpoint

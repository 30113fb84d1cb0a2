// Of which kind the saves in a node's memory are, and whose state an image is: told by the pages that hold them. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "base/save_key.h"
#include "checkpoint/memory/memory.h"
#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx::agent {

// Whether the image is in a page that all ranks of a node share.
bool IsShared(const checkpoint::MemoryImage& image);

// The name of that page, for saves of a kind.
const char* SharedPageOf(v1::CheckpointKind kind);

// Of which rank the image's shard is on storage; kMainRank for a shared one.
int64_t RankOf(const checkpoint::MemoryImage& image);

// The kinds of the saves whose images are added: shows in the page that the ranks of a node share.
class SaveKinds {
 public:
  // Whether the memory has that page of a directory, with an image in it or not.
  using HasPage = std::function<bool(const std::string& dir, const std::string& page)>;
  explicit SaveKinds(HasPage has_page) : has_page_(std::move(has_page)) {}

  void Add(const checkpoint::MemoryImage& image);
  // A save whose shared image is missing is of the kind of its directory's newest that has one.
  v1::CheckpointKind Of(const checkpoint::MemoryImage& image) const;

 private:
  void AddPages(const std::string& dir);

  HasPage has_page_;
  std::map<std::pair<std::string, SaveKey>, v1::CheckpointKind> of_save_;
  std::map<std::string, std::pair<SaveKey, v1::CheckpointKind>> of_dir_;
};

}  // namespace phalanx::agent

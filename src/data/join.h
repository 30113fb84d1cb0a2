// Sources to one dataset, in their order: `.bin` and `.idx` complete on the disk, then both in their place or none.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/join_plan.h"
#include "data/out_file.h"
#include "data/source.h"

namespace phalanx::data {

struct Progress {
  // Called between blocks of tokens, from the thread that joins. Other than 0: stop.
  int (*report)(void* user, uint64_t done_bytes, uint64_t all_bytes) = nullptr;
  void* user = nullptr;
};

struct JoinSpec {
  std::string prefix;
  Layout layout = Layout::kMmap;
  bool replace = false;  // a dataset that is there; else that is an error
  std::vector<Source> sources;
  Progress progress;
};

struct JoinCounts {
  Dtype dtype = Dtype::kInt32;
  uint64_t documents = 0;
  uint64_t sequences = 0;
  uint64_t tokens = 0;
  uint64_t bin_bytes = 0;
  uint64_t idx_bytes = 0;
  uint32_t bin_crc32 = 0;
  uint32_t idx_crc32 = 0;
};

// Complete and on the disk, under names that nobody reads; removed with this if they are not published.
class Joined {
 public:
  const JoinCounts& counts() const { return counts_; }

  // Both files and the sidecar to their place, as docs/formats/indexed-dataset.md has it. Once.
  Result<Done> Publish(std::string_view sidecar);

 private:
  friend Result<Joined> Join(const JoinSpec& spec);
  Joined(std::string prefix, JoinCounts counts, OutFile bin, OutFile idx)
      : prefix_(std::move(prefix)), counts_(counts), bin_(std::move(bin)), idx_(std::move(idx)) {}

  std::string prefix_;
  JoinCounts counts_;
  OutFile bin_;
  OutFile idx_;
};

// Checks everything that the sources say of themselves, the tokens' CRC in the pass that copies them. Blocks for as
// long as storage takes. Memory does not grow with the data.
Result<Joined> Join(const JoinSpec& spec);

}  // namespace phalanx::data

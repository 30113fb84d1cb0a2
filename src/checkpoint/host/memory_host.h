// The memory that a rank without an agent saves into, and the requests about it (docs/formats/checkpoint-host.md).
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "checkpoint/host/request.h"
#include "checkpoint/memory/memory.h"

namespace phalanx::checkpoint {

// On one thread, which waits while memory is reserved.
class MemoryHost {
 public:
  // Below `root`, for the process `owner`. What hosts of processes that are gone have left there is removed: no other
  // process can go on from it.
  static StatusOr<MemoryHost> Open(const std::string& root, int64_t owner);

  // To open, prepare, commit, drop, hold and release.
  std::string Answer(Request& request);
  // Nothing of it is left behind.
  void Remove() { memory_->Remove(); }
  const std::string& path() const { return memory_->path(); }

 private:
  MemoryHost(std::string root, std::unique_ptr<NodeMemory> memory)
      : root_(std::move(root)), memory_(std::move(memory)) {}

  StatusOr<nlohmann::json> OpenPages(Request& request);
  StatusOr<nlohmann::json> Prepare(Request& request);
  StatusOr<nlohmann::json> Settle(Request& request, bool commits);
  StatusOr<nlohmann::json> HoldOne(Request& request, bool holds);
  // What nobody may write over any more gets a fresh file, where there is memory for it.
  void ReplaceSlots();

  std::string root_;

  std::unique_ptr<NodeMemory> memory_;
};

}  // namespace phalanx::checkpoint

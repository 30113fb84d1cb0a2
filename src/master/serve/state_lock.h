// One master per state directory: two would overwrite each other's record, address and token. The lock is the kernel's
// (flock) and goes with its process, however that ends; the file stays.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx::master {

class StateLock {
 public:
  StateLock() = default;

  // Locks `<state_dir>/lock` and writes there who holds it. `address` is bound already: of a holder that names the same
  // one the end is awaited, for 5 s. FailedPrecondition, with a sentence that names the holder
  // and what to do: another master has it. Any other error: nothing can be locked there (a file system without locks, a
  // full disk).
  static StatusOr<StateLock> Take(const std::string& state_dir, const std::string& job_id, const std::string& address);

 private:
  explicit StateLock(Fd fd) : fd_(std::move(fd)) {}

  Fd fd_;
};

}  // namespace phalanx::master

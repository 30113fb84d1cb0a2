// Hears of a rank's death when the kernel begins with it. A pidfd tells when it is done: 25 ms later with torch mapped,
// seconds later for a rank with a large memory, and all that time its peers wait for it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/event_loop.h"

namespace phalanx::agent {

class DeathWatch {
 public:
  // Watches the lock of slot `slot` on the rank board at `board_path` (docs/formats/rank-board.md). `on_let_go` is
  // called once, from the loop, when the rank's main thread is ending or executes another program. Null where the rank
  // holds no lock: then its pidfd is all there is.
  static std::unique_ptr<DeathWatch> Start(EventLoop& loop, const std::string& board_path, int slot,
                                           std::function<void()> on_let_go);
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;
  // From the loop's thread; nothing is called any more.
  ~DeathWatch();

 private:
  struct Lock;
  explicit DeathWatch(std::shared_ptr<Lock> lock) : lock_(std::move(lock)) {}

  const std::shared_ptr<Lock> lock_;  // the thread's, too
};

}  // namespace phalanx::agent

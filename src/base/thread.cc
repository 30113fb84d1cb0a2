#include "base/thread.h"

#include <system_error>
#include <utility>

#include "base/signals_blocked.h"

namespace phalanx {

StatusOr<std::thread> StartThread(std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return ErrnoStatus(error.code().value(), "no thread could be started (pids.max, ulimit -u)");
  }
}

}  // namespace phalanx

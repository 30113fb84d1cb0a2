#include "checkpoint/files/crew.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

#include "base/signals_blocked.h"

namespace phalanx::checkpoint {
namespace {

constexpr size_t kCrewMax = 32;  // by then all of the memory's bandwidth is used

std::vector<std::thread> Start(size_t count, const std::function<void(size_t)>& body) {
  const SignalsBlocked blocked;
  std::vector<std::thread> threads;
  try {
    while (threads.size() < count) threads.emplace_back([&body, index = threads.size()] { body(index); });
  } catch (const std::system_error&) {
    // Those that could be started do it, and the caller.
  }
  return threads;
}

}  // namespace

void RunCrew(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::thread> threads = Start(count - 1, body);
  body(count - 1);
  for (std::thread& thread : threads) thread.join();
}

size_t CrewSize() { return std::clamp<size_t>(std::thread::hardware_concurrency(), 1, kCrewMax); }

}  // namespace phalanx::checkpoint

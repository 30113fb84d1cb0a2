#include "checkpoint/crew.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <vector>

namespace phalanx::checkpoint {
namespace {

constexpr size_t kCrewMax = 32;  // by then all of the memory's bandwidth is used

// Signals go to threads that expect them.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

std::vector<std::thread> Start(size_t count, const std::function<void(size_t)>& body) {
  const NoSignals quiet;
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

// Carries out Probe (src/master/core/core.h): asks other machines whether somebody listens there. A thread of its own,
// which is started with the first question; everything but the callback belongs to the caller's.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/event_loop.h"
#include "master/core/core.h"

namespace phalanx::master {

class Prober {
 public:
  // A machine that says nothing for so long is silent.
  static constexpr int64_t kProbeMs = 500;

  // `on_answer` is called on the prober's thread whenever there is something to Take; it must not block.
  explicit Prober(std::function<void()> on_answer) : on_answer_(std::move(on_answer)) {}
  Prober(const Prober&) = delete;
  Prober& operator=(const Prober&) = delete;
  // Questions that have no answer yet get none.
  ~Prober() { Finish(); }

  // No answer comes any more.
  void Finish();
  void Ask(const Probe& probe);
  // The answers that have come.
  std::vector<Probed> Take();

 private:
  void Begin(const Probe& probe);

  const std::function<void()> on_answer_;
  EventLoop loop_;
  std::thread thread_;
  std::mutex mutex_;  // guards answers_
  std::vector<Probed> answers_;
};

}  // namespace phalanx::master

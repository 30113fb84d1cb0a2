// One simulated machine: its clock, whether it runs, and what is left of it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "checkpoint/rank/control.h"
#include "simulation/event_queue.h"
#include "simulation/random.h"

namespace phalanx::simulation {

// CLOCK_MONOTONIC of a machine: it began at another time than its neighbours' and runs a little faster or slower.
class MachineClock {
 public:
  MachineClock() = default;
  MachineClock(int64_t offset_us, int64_t skew_ppm) : offset_us_(offset_us), skew_ppm_(skew_ppm) {}

  Instant Read(Micros world) const { return ReadUs(world) / 1'000; }
  // The first moment at which it reads `instant`.
  Micros WhenReads(Instant instant) const {
    Micros when = (instant * 1'000 - offset_us_) * 1'000'000 / (1'000'000 + skew_ppm_);
    while (Read(when) >= instant) --when;
    while (Read(when) < instant) ++when;
    return when;
  }
  // The machine was paused from outside and has not noticed.
  void StandStill(Micros duration) { offset_us_ -= duration; }

 private:
  int64_t ReadUs(Micros world) const { return offset_us_ + world + world * skew_ppm_ / 1'000'000; }

  int64_t offset_us_ = 0;
  int64_t skew_ppm_ = 0;
};

// A process, or all of a machine, that can be stopped: what would reach it meanwhile reaches it afterwards, in order.
class Gate {
 public:
  // What does not wait is not made a Task: almost everything in a world comes this way.
  template <typename Callable>
  void Pass(Callable&& task) {
    if (stops_ == 0 && !draining_) return task();
    waiting_.emplace_back(std::forward<Callable>(task));
  }
  void Stop() { ++stops_; }
  void Go() {
    --stops_;
    if (stops_ > 0 || draining_) return;
    draining_ = true;
    while (!waiting_.empty() && stops_ == 0) {
      Task task = std::move(waiting_.front());
      waiting_.pop_front();
      task();
    }
    draining_ = false;
  }
  bool stopped() const { return stops_ > 0; }

 private:
  int stops_ = 0;
  bool draining_ = false;
  std::deque<Task> waiting_;
};

// The control page of a rank, or of all ranks of a node, in shared memory: it outlives both ranks and agent. Who has it
// mapped keeps it when its name is gone.
struct SharedPage {
  alignas(8) std::array<uint8_t, checkpoint::kControlBytes> bytes{};
};

struct Store {
  uint64_t epoch = 0;
  uint32_t port = 0;
};

struct Machine {
  int index = 0;
  std::string name;     // "node3"
  std::string address;  // where others reach it
  MachineClock clock;
  Gate gate;
  Random random{0};
  bool powered = true;
  int cut = 0;                                                       // > 0: other machines are not reached
  Micros cut_at = 0;                                                 // last
  Micros unkillable_until = 0;                                       // until then killed processes stay
  std::optional<Store> store;                                        // that its agent holds
  std::map<std::string, std::shared_ptr<SharedPage>> shared_memory;  // by page
  uint32_t next_port = 20'000;
  uint32_t lends_at = 0;  // the port at which its agent lends images; 0: at none
  int64_t next_pid = 1'000;
  int groups_alive = 0;   // process groups of workers
  Micros changed_at = 0;  // its agent began or ended, its memory was removed, or it was lost

  bool Works() const { return powered && !gate.stopped(); }
};

}  // namespace phalanx::simulation

// Virtual time: what is due next, in order of time and, at the same time, in the order in which it was asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "simulation/task.h"

namespace phalanx::simulation {

using Micros = int64_t;  // of virtual time, from the begin of the world

constexpr Micros kMs = 1'000;
constexpr Micros kSecond = 1'000'000;

class EventQueue {
 public:
  Micros now() const { return now_; }
  uint64_t served() const { return served_; }
  bool empty() const { return heap_.empty(); }

  void At(Micros when, Task&& task) {
    heap_.push_back({std::max(when, now_), next_++, Keep(std::move(task))});
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }
  void After(Micros delay, Task&& task) { At(now_ + delay, std::move(task)); }

  // Not on an empty queue.
  void ServeNext() {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    const Entry entry = heap_.back();
    heap_.pop_back();
    now_ = entry.when;
    ++served_;
    Task task = std::move(tasks_[entry.task]);
    free_.push_back(entry.task);
    task();
  }

 private:
  // Small and plain: a heap moves its entries about.
  struct Entry {
    Micros when = 0;
    uint64_t order = 0;
    size_t task = 0;  // in tasks_
  };
  // A type and no function, so that the heap has it inline.
  struct Later {
    bool operator()(const Entry& a, const Entry& b) const {
      return a.when != b.when ? a.when > b.when : a.order > b.order;
    }
  };

  size_t Keep(Task&& task) {
    if (free_.empty()) {
      tasks_.push_back(std::move(task));
      return tasks_.size() - 1;
    }
    const size_t place = free_.back();
    free_.pop_back();
    tasks_[place] = std::move(task);
    return place;
  }

  std::vector<Entry> heap_;
  std::vector<Task> tasks_;   // of the entries
  std::vector<size_t> free_;  // places in tasks_
  Micros now_ = 0;
  uint64_t next_ = 0;
  uint64_t served_ = 0;
};

}  // namespace phalanx::simulation

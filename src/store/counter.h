// A counter with one writer, readable from other threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace phalanx::store {

class Counter {
 public:
  void Add(uint64_t n) { Set(get() + n); }
  void Set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace phalanx::store

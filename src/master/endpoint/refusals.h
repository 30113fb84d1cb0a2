// Callers that the endpoint has turned away, for `phalanx status`. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace phalanx::master {

class Refusals {
 public:
  struct Told {
    uint64_t count = 0;
    std::string last;  // what was said of the last one
  };

  void Add(const std::string& sentence) {
    const std::lock_guard<std::mutex> lock(mutex_);
    told_.last = sentence;
    ++told_.count;
  }
  Told Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return told_;
  }

 private:
  mutable std::mutex mutex_;
  Told told_;
};

}  // namespace phalanx::master

// Callers that the master has turned away, for `phalanx status`. Any thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

namespace phalanx::master {

class Refusals {
 public:
  // Who came past the endpoint is turned away by what it asked for.
  enum class Door { kEndpoint, kAdmin, kPlatform };
  struct Told {
    uint64_t count = 0;  // at all doors
    uint64_t admin = 0;
    uint64_t platform = 0;
    std::string last;  // what was said of the last one
  };

  void Add(Door door, const std::string& sentence) {
    const std::lock_guard<std::mutex> lock(mutex_);
    told_.last = sentence;
    ++told_.count;
    if (door == Door::kAdmin) ++told_.admin;
    if (door == Door::kPlatform) ++told_.platform;
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

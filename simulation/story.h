// What happened, one line an event, for people. Costs nothing where nobody reads it.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <vector>

#include "simulation/event_queue.h"

namespace phalanx::simulation {

class Story {
 public:
  explicit Story(bool told = false) : told_(told) {}

  bool told() const { return told_; }
  template <typename... Args>
  void Say(Micros at, std::string_view who, fmt::format_string<Args...> text, Args&&... args) {
    if (!told_) return;
    lines_.push_back(fmt::format("{:>8}.{:03} s  {:<8}  {}", at / kSecond, at / kMs % 1'000, who,
                                 fmt::format(text, std::forward<Args>(args)...)));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  bool told_;
  std::vector<std::string> lines_;
};

}  // namespace phalanx::simulation

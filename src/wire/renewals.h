// When files that may be renewed at any time are read anew, and what of that is told. Pure.
#pragma once

#include <optional>
#include <utility>

namespace phalanx::wire {

// `Stamps`: what tells files from those that were there before.
template <typename Stamps>
class Renewals {
 public:
  // Those that could not be used are asked for again, unchanged too: a clock that is behind, or a want of descriptors,
  // passes, and leaves no stamp.
  bool AreDue(const Stamps& now) const { return now != taken_; }

  void Take(Stamps now) {
    taken_ = std::move(now);
    refused_.reset();
  }

  // Whether that is to be told: once of the same files.
  bool Refuse(const Stamps& now) { return std::exchange(refused_, now) != now; }

 private:
  std::optional<Stamps> taken_, refused_;
};

}  // namespace phalanx::wire

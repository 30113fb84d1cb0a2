// Something to be called later, with what it needs. Kept in place where that is small, as almost all of it is: a world
// makes several of them for each of its events. Moved, not copied.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>

namespace phalanx::simulation {

class Task {
 public:
  Task() = default;
  Task(std::nullptr_t) {}
  template <typename Callable>
  requires(!std::same_as<std::remove_cvref_t<Callable>, Task> && std::invocable<std::decay_t<Callable>&>)
      Task(Callable&& callable) {  // NOLINT(bugprone-forwarding-reference-overload): never of a Task
    using Kept = std::decay_t<Callable>;
    if constexpr (FitsInPlace<Kept>()) {
      new (place_) Kept(std::forward<Callable>(callable));
      kind_ = &kInPlace<Kept>;
    } else {
      new (place_) Kept*(new Kept(std::forward<Callable>(callable)));
      kind_ = &kElsewhere<Kept>;
    }
  }
  Task(Task&& other) noexcept { Take(other); }
  Task& operator=(Task&& other) noexcept {
    if (this == &other) return *this;
    Clear();
    Take(other);
    return *this;
  }
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
  ~Task() { Clear(); }

  explicit operator bool() const { return kind_ != nullptr; }
  // Not of an empty one.
  void operator()() { kind_->call(place_); }

 private:
  static constexpr size_t kPlaceBytes = 48;
  struct Kind {
    void (*call)(void* place);
    void (*move)(void* to, void* from);  // and `from` is no more; null: its bytes are all there is to it
    void (*destroy)(void* place);        // null: nothing is to be done
  };

  template <typename Kept>
  static constexpr bool FitsInPlace() {
    return sizeof(Kept) <= kPlaceBytes && alignof(Kept) <= alignof(std::max_align_t) &&
           std::is_nothrow_move_constructible_v<Kept>;
  }
  template <typename Kept>
  static Kept& In(void* place) {
    return *std::launder(static_cast<Kept*>(place));
  }
  template <typename Kept>
  static void Move(void* to, void* from) {
    new (to) Kept(std::move(In<Kept>(from)));
    std::destroy_at(&In<Kept>(from));
  }
  template <typename Kept>
  static constexpr Kind kInPlace = {
      [](void* place) { In<Kept>(place)(); },
      std::is_trivially_copyable_v<Kept> ? nullptr : &Move<Kept>,
      std::is_trivially_destructible_v<Kept> ? nullptr : +[](void* place) { std::destroy_at(&In<Kept>(place)); },
  };
  template <typename Kept>
  static constexpr Kind kElsewhere = {
      [](void* place) { (*In<Kept*>(place))(); },
      nullptr,
      [](void* place) { delete In<Kept*>(place); },
  };

  void Take(Task& other) {
    kind_ = std::exchange(other.kind_, nullptr);
    if (kind_ == nullptr) return;
    if (kind_->move != nullptr) return kind_->move(place_, other.place_);
    std::memcpy(place_, other.place_, kPlaceBytes);
  }
  void Clear() {
    const Kind* const kind = std::exchange(kind_, nullptr);
    if (kind != nullptr && kind->destroy != nullptr) kind->destroy(place_);
  }

  const Kind* kind_ = nullptr;
  alignas(std::max_align_t) std::byte place_[kPlaceBytes];
};

}  // namespace phalanx::simulation

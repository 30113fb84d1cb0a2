// What a completion-queue tag points to. The queue's thread calls Done once for each operation that was started with
// it.
#pragma once

#include <grpcpp/grpcpp.h>

namespace phalanx::wire {

class Operation {
 public:
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;
  virtual ~Operation() = default;
  // `ok`: the operation succeeded. May destroy this object.
  virtual void Done(bool ok) = 0;
};

// An operation that calls a member function of its owner.
template <typename Owner>
class MemberOperation final : public Operation {
 public:
  MemberOperation(Owner* owner, void (Owner::*handler)(bool)) : owner_(owner), handler_(handler) {}
  void Done(bool ok) override { (owner_->*handler_)(ok); }

 private:
  Owner* owner_;
  void (Owner::*handler_)(bool);
};

}  // namespace phalanx::wire

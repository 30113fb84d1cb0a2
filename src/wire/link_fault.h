// What a call to a master came to, where calling again will not change it. gRPC tells that only in texts; they are read
// here alone.
#pragma once

#include <grpcpp/grpcpp.h>

#include "wire/credentials.h"

namespace phalanx::wire {

// As long as the same program answers.
enum class LinkFault {
  kNone,
  kForeign,    // it is not a Phalanx master
  kNotProved,  // it or this side is not believed: another token or authority
  // It takes only who proves to belong to the job, and this side has nothing to prove it with; or it is about to end,
  // and will not say so again.
  kClosed,
};

// Pure.
LinkFault FaultOf(const grpc::Status& status);

// The same of a caller with these credentials. `was_up`: the master had answered by then.
LinkFault FaultOf(const grpc::Status& status, const Credentials& credentials, bool was_up);

}  // namespace phalanx::wire

// What a desk answers who asks for another job than its master's.
#pragma once

#include <grpcpp/grpcpp.h>

namespace phalanx::master {

// It names neither job: who has the wrong id learns no right one.
inline grpc::Status OtherJob() {
  return {grpc::StatusCode::NOT_FOUND, "this master serves another job than the one that was asked for"};
}

}  // namespace phalanx::master

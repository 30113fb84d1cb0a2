#include "wire/link_fault.h"

#include <string_view>

namespace phalanx::wire {

LinkFault FaultOf(const grpc::Status& status) {
  const auto says = [&status](std::string_view words) {
    return status.error_message().find(words) != std::string::npos;
  };
  // It speaks no HTTP/2, or knows no such method; or it speaks no TLS.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED || says("http1.x server") ||
      says("Failed parsing HTTP/2")) {
    return LinkFault::kForeign;
  }
  if (says("wrong version number") || says("packet length too long")) return LinkFault::kForeign;
  // None of these is what a connection that breaks meanwhile comes to.
  if (says("SSL_ERROR_SSL") || says("is not in peer certificate") || says("Cannot check peer")) {
    return LinkFault::kNotProved;
  }
  return says("GOAWAY received") ? LinkFault::kClosed : LinkFault::kNone;
}

}  // namespace phalanx::wire

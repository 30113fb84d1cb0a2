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

LinkFault FaultOf(const grpc::Status& status, const Credentials& credentials, bool was_up) {
  // What a master makes of a certificate that it does not believe, its caller sees as this.
  const bool cut_off = !was_up && status.error_message().find("Socket closed") != std::string::npos;
  if (cut_off && credentials.from_files()) return LinkFault::kNotProved;
  const LinkFault fault = FaultOf(status);
  // To be sent away in clear is nothing that TLS does: the master ends.
  return fault == LinkFault::kClosed && credentials.given() ? LinkFault::kNone : fault;
}

}  // namespace phalanx::wire

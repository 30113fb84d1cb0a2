// Where a program is, as text. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace phalanx {

struct HostPort {
  std::string host;  // without brackets
  uint16_t port = 0;
};

// "[2001:db8::1]:29400" for IPv6, "host:29400" otherwise.
std::string JoinHostPort(std::string_view host, uint16_t port);

// "host:port", "[v6]:port". The error names the text and what would be right.
StatusOr<HostPort> SplitHostPort(std::string_view text);

// 127.0.0.0/8 and ::1, as text.
bool IsLoopback(std::string_view address);

}  // namespace phalanx

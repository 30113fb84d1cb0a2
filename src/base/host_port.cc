#include "base/host_port.h"

#include <fmt/format.h>

#include <charconv>

namespace phalanx {

std::string JoinHostPort(std::string_view host, uint16_t port) {
  const bool v6 = host.find(':') != std::string_view::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

StatusOr<HostPort> SplitHostPort(std::string_view text) {
  const auto error = [&] {
    return absl::InvalidArgumentError(
        fmt::format("'{}' is not host:port or [ipv6]:port with a port of 1 to 65535", text));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return error();
  std::string_view host = text.substr(0, colon);
  const std::string_view digits = text.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']' || host.size() < 3) return error();
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return error();
  }
  HostPort result{std::string(host), 0};
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), result.port);
  if (code != std::errc() || end != digits.data() + digits.size() || result.port == 0) return error();
  return result;
}

bool IsLoopback(std::string_view address) { return address.starts_with("127.") || address == "::1"; }

}  // namespace phalanx

// What a master whose job is closed answers to gRPC in clear: two frames of HTTP/2 (RFC 9113, 6.5 and 6.8), SETTINGS
// without any and GOAWAY with INADEQUATE_SECURITY. gRPC tells its caller of the latter, without the text.
#pragma once

#include <string>
#include <string_view>

namespace phalanx::wire {

constexpr std::string_view kClosedText = "Phalanx: closed";
constexpr std::string_view kClosedHead(
    "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
    "\x00\x00\x17\x07\x00\x00\x00\x00\x00"
    "\x00\x00\x00\x00"
    "\x00\x00\x00\x0c",
    26);
static_assert(kClosedText.size() + 8 == 0x17);

inline std::string ClosedAnswer() { return std::string(kClosedHead) + std::string(kClosedText); }

}  // namespace phalanx::wire

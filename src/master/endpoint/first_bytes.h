// Who has connected to the job's endpoint, told by the first bytes: docs/formats/endpoint.md. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace phalanx::master {

enum class Caller {
  kUnknown,   // what has come could be either; more must come
  kGrpc,      // an agent or a command: the preface of HTTP/2
  kStore,     // a rank: a client of torch's TCPStore, 2.2 or newer
  kStranger,  // neither
};

// As many bytes are looked at, at most.
constexpr size_t kFirstBytes = 24;

// `bytes`: what has come since the connection was made, from its beginning; all of it or a part.
Caller WhoCalls(std::string_view bytes);

}  // namespace phalanx::master

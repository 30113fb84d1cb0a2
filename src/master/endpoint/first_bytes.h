// Who has connected to the job's endpoint, told by the first bytes: docs/formats/endpoint.md. Pure.
#pragma once

#include <cstddef>
#include <string_view>

namespace phalanx::master {

enum class Caller {
  kUnknown,   // what has come could be several; more must come
  kTls,       // an agent or a command that can prove who it is: the first record of TLS
  kPlain,     // an agent or a command in clear: the preface of HTTP/2
  kStore,     // a rank: a client of torch's TCPStore, 2.2 or newer
  kStranger,  // none of them
};

// As many bytes are looked at, at most.
constexpr size_t kFirstBytes = 24;

// `bytes`: what has come since the connection was made, from its beginning; all of it or a part.
Caller WhoCalls(std::string_view bytes);

}  // namespace phalanx::master

// A connection of a simulated agent to a master, in clear or by TLS as an agent's own is.
#pragma once

#include <netinet/in.h>
#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.h"

namespace phalanx::master {

// What agents of a job with this token show and believe. Made once, before anything is measured: it takes some 40 ms.
class ScaleTls {
 public:
  explicit ScaleTls(const std::string& token);

 private:
  friend class ScaleLine;
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  std::unique_ptr<SSL_CTX, Free> context_;
};

// Waits for nothing. Handshakes as it sends and receives; whose certificate is not of the token's is not spoken to.
class ScaleLine {
 public:
  // Begins to connect. `tls`: null: in clear; outlives it.
  ScaleLine(const sockaddr_in& master, const ScaleTls* tls);

  int fd() const { return fd_.get(); }
  // How many bytes were taken or given: none where the socket is to be waited for; nullopt where it is broken or
  // closed.
  std::optional<size_t> Send(std::string_view bytes);
  std::optional<size_t> Receive(char* to, size_t bytes);
  // Of the last call: it waits until the socket takes more; otherwise it waits for bytes, or for nothing.
  bool waits_to_send() const { return waits_to_send_; }
  // Behind a Receive that gave `got` of `asked`. TLS keeps what the socket does not tell of any more.
  bool may_have_more(size_t got, size_t asked) const { return ssl_ == nullptr ? got == asked : got > 0; }

 private:
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };

  std::optional<size_t> Outcome(int returned, size_t done);

  Fd fd_;
  std::unique_ptr<SSL, Free> ssl_;  // null: in clear
  bool waits_to_send_ = true;       // until it is connected
};

}  // namespace phalanx::master

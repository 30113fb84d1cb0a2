// TLS 1.3 over a socket, between two that hold the same key (RFC 8446, 4.2.11: a pre-shared key, with a fresh
// Diffie-Hellman exchange). Whoever holds another key, or none, comes no farther than the handshake, and who listens
// learns nothing of what they say. There are no certificates. Neither class is for use by several threads at a time.
#pragma once

#include <openssl/ssl.h>

#include <cstddef>
#include <memory>
#include <string>

#include "base/status.h"
#include "checkpoint/remote/image_request.h"

namespace phalanx::checkpoint {

enum class ChannelEnd { kServer, kClient };

// What came of a call: kWantsRead and kWantsWrite: the same call again, once the socket can be read or written; it has
// done nothing yet.
struct ChannelResult {
  enum class State { kDone, kWantsRead, kWantsWrite, kClosed, kFailed };
  State state = State::kFailed;
  size_t bytes = 0;  // of kDone: at least 1
  std::string why;   // of kFailed
};

class SecureChannel {
 public:
  // At most so many; handshakes as it goes.
  ChannelResult Read(char* to, size_t bytes);
  ChannelResult Write(const char* from, size_t bytes);

 private:
  friend class ChannelKey;
  struct Free {
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  explicit SecureChannel(SSL* ssl) : ssl_(ssl) {}
  ChannelResult Outcome(int returned, size_t bytes);

  std::unique_ptr<SSL, Free> ssl_;
};

// Makes channels of one key. They may outlive it.
class ChannelKey {
 public:
  static StatusOr<ChannelKey> Of(const ImageKey& key, ChannelEnd end);
  // `socket` stays the caller's, and must outlive the channel.
  StatusOr<SecureChannel> Over(int socket) const;

 private:
  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  };
  ChannelKey(SSL_CTX* context, ChannelEnd end) : context_(context), end_(end) {}

  std::unique_ptr<SSL_CTX, Free> context_;
  ChannelEnd end_;
};

}  // namespace phalanx::checkpoint

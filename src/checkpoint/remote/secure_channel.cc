#include "checkpoint/remote/secure_channel.h"

#include <fmt/format.h>
#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>

#include "base/openssl_error.h"

namespace phalanx::checkpoint {
namespace {

// The one identity that there is: a port has one key.
constexpr unsigned char kIdentity[] = {'p', 'h', 'a', 'l', 'a', 'n', 'x', ' ', 'i', 'm', 'a', 'g', 'e', 's'};
// TLS_AES_128_GCM_SHA256, which a pre-shared key of 32 bytes is of.
constexpr char kCipher[] = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kCipherId[] = {0x13, 0x01};
constexpr size_t kReadAheadBytes = size_t{256} << 10;

std::string WhyFailed() { return TakeOpenSslError("TLS failed"); }

Status TlsStatus(const char* what) { return absl::InternalError(fmt::format("{}: {}", what, WhyFailed())); }

// --- the socket: as OpenSSL's own, but that a peer that has gone ends no process with SIGPIPE --------------------

int SocketOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int ReadSocket(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  ssize_t n = 0;
  do {
    n = recv(SocketOf(bio), to, static_cast<size_t>(bytes), 0);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) BIO_set_retry_read(bio);
  return static_cast<int>(n);
}

int WriteSocket(BIO* bio, const char* from, int bytes) {
  BIO_clear_retry_flags(bio);
  ssize_t n = 0;
  do {
    n = send(SocketOf(bio), from, static_cast<size_t>(bytes), MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n < 0 && errno == EAGAIN) BIO_set_retry_write(bio);
  return static_cast<int>(n);
}

long ControlSocket(BIO* /*bio*/, int command, long /*number*/, void* /*pointer*/) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* SocketMethod() {
  static const BIO_METHOD* const method = [] {
    BIO_METHOD* const made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket without SIGPIPE");
    if (made == nullptr) return made;
    BIO_meth_set_read(made, ReadSocket);
    BIO_meth_set_write(made, WriteSocket);
    BIO_meth_set_ctrl(made, ControlSocket);
    return made;
  }();
  return method;
}

// --- the key ------------------------------------------------------------------------------------------------------

int RefuseCertificate(int /*good*/, X509_STORE_CTX* /*chain*/) { return 0; }

void FreeKey(void* /*parent*/, void* data, CRYPTO_EX_DATA* /*all*/, int /*index*/, long /*number*/, void* /*more*/) {
  auto* const key = static_cast<ImageKey*>(data);
  if (key != nullptr) OPENSSL_cleanse(key->data(), key->size());
  delete key;
}

// Where a context keeps its key, as long as a channel of it is there.
int KeyIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeKey);
  return index;
}

// Null: it cannot be made, and the handshake fails.
SSL_SESSION* SessionOf(SSL* ssl) {
  const auto* const key = static_cast<const ImageKey*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), KeyIndex()));
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(ssl, kCipherId);
  SSL_SESSION* const session = SSL_SESSION_new();
  const bool made =
      session != nullptr && cipher != nullptr && SSL_SESSION_set1_master_key(session, key->data(), key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (made) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int FindSession(SSL* ssl, const unsigned char* identity, size_t bytes, SSL_SESSION** session) {
  const bool known = std::equal(identity, identity + bytes, std::begin(kIdentity), std::end(kIdentity));
  *session = known ? SessionOf(ssl) : nullptr;
  return 1;
}

int UseSession(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** identity, size_t* bytes, SSL_SESSION** session) {
  *identity = kIdentity;
  *bytes = sizeof kIdentity;
  *session = SessionOf(ssl);
  return *session != nullptr ? 1 : 0;
}

}  // namespace

StatusOr<ChannelKey> ChannelKey::Of(const ImageKey& key, ChannelEnd end) {
  // A user's openssl.cnf is for other programs.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  ERR_clear_error();
  ChannelKey made(SSL_CTX_new(TLS_method()), end);
  SSL_CTX* const context = made.context_.get();
  auto own = std::make_unique<ImageKey>(key);
  const bool kept =
      context != nullptr && SocketMethod() != nullptr && SSL_CTX_set_ex_data(context, KeyIndex(), own.get()) == 1;
  if (!kept) return TlsStatus("making a TLS context");
  static_cast<void>(own.release());  // FreeKey
  const bool set = SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) == 1 &&
                   SSL_CTX_set_ciphersuites(context, kCipher) == 1 && SSL_CTX_set_num_tickets(context, 0) == 1;
  if (!set) return TlsStatus("making a TLS context");
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  if (end == ChannelEnd::kServer) {
    SSL_CTX_set_psk_find_session_callback(context, FindSession);
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);  // a reader may keep its connection
  }
  if (end == ChannelEnd::kClient) {
    // Many records of 16 KiB with each call, not two calls a record.
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, kReadAheadBytes);
    SSL_CTX_set_psk_use_session_callback(context, UseSession);
    // A server that passes the key over may show a certificate in its place: none is good enough.
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, RefuseCertificate);
  }
  return made;
}

StatusOr<SecureChannel> ChannelKey::Over(int socket) const {
  ERR_clear_error();
  SecureChannel channel(SSL_new(context_.get()));
  BIO* const bio = channel.ssl_ == nullptr ? nullptr : BIO_new(SocketMethod());
  if (bio == nullptr) return TlsStatus("making a TLS session");
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  SSL_set_bio(channel.ssl_.get(), bio, bio);  // which owns it now
  if (end_ == ChannelEnd::kServer) SSL_set_accept_state(channel.ssl_.get());
  if (end_ == ChannelEnd::kClient) SSL_set_connect_state(channel.ssl_.get());
  return channel;
}

ChannelResult SecureChannel::Outcome(int returned, size_t bytes) {
  using State = ChannelResult::State;
  switch (SSL_get_error(ssl_.get(), returned)) {
    case SSL_ERROR_NONE:
      return {State::kDone, bytes, ""};
    case SSL_ERROR_WANT_READ:
      return {State::kWantsRead, 0, ""};
    case SSL_ERROR_WANT_WRITE:
      return {State::kWantsWrite, 0, ""};
    case SSL_ERROR_ZERO_RETURN:
    case SSL_ERROR_SYSCALL:  // also a connection that has ended without a word
      ERR_clear_error();
      return {State::kClosed, 0, ""};
    default:
      break;
  }
  const bool cut = ERR_GET_REASON(ERR_peek_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
  const std::string why = WhyFailed();
  return cut ? ChannelResult{State::kClosed, 0, ""} : ChannelResult{State::kFailed, 0, why};
}

ChannelResult SecureChannel::Read(char* to, size_t bytes) {
  ERR_clear_error();
  size_t done = 0;
  const int returned = SSL_read_ex(ssl_.get(), to, bytes, &done);
  return Outcome(returned, done);
}

ChannelResult SecureChannel::Write(const char* from, size_t bytes) {
  ERR_clear_error();
  size_t done = 0;
  const int returned = SSL_write_ex(ssl_.get(), from, bytes, &done);
  return Outcome(returned, done);
}

}  // namespace phalanx::checkpoint

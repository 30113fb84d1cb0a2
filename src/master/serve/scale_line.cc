#include "master/serve/scale_line.h"

#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "wire/identity.h"

namespace phalanx::master {
namespace {

// As gRPC asks for it: HTTP/2, and nothing else.
constexpr unsigned char kHttp2[] = {2, 'h', '2'};

struct FreeBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
using Bio = std::unique_ptr<BIO, FreeBio>;
struct FreeCertificate {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Certificate = std::unique_ptr<X509, FreeCertificate>;

Bio Reading(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

Certificate CertificateIn(const std::string& pem) {
  return Certificate(PEM_read_bio_X509(Reading(pem).get(), nullptr, nullptr, nullptr));
}

}  // namespace

ScaleTls::ScaleTls(const std::string& token) : context_(SSL_CTX_new(TLS_client_method())) {
  const StatusOr<wire::Identity> identity = wire::MakeIdentity(token, wire::Role::kAgent);
  PHX_CHECK(identity.ok(), "no credentials of a token");
  SSL_CTX* const context = context_.get();
  EVP_PKEY* const key = PEM_read_bio_PrivateKey(Reading(identity->key).get(), nullptr, nullptr, nullptr);
  const bool good =
      SSL_CTX_use_certificate(context, CertificateIn(identity->certificate).get()) == 1 &&
      SSL_CTX_use_PrivateKey(context, key) == 1 &&
      X509_STORE_add_cert(SSL_CTX_get_cert_store(context), CertificateIn(identity->authority).get()) == 1 &&
      SSL_CTX_set_alpn_protos(context, kHttp2, sizeof kHttp2) == 0;
  EVP_PKEY_free(key);
  PHX_CHECK(good, "TLS");
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context,
                   SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
}

ScaleLine::ScaleLine(const sockaddr_in& master, const ScaleTls* tls) {
  fd_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  PHX_CHECK(fd_.valid(), "socket");
  const int on = 1;
  setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  const int rc = connect(fd_.get(), reinterpret_cast<const sockaddr*>(&master), sizeof master);
  PHX_CHECK(rc == 0 || errno == EINPROGRESS, "connect");
  if (tls == nullptr) return;
  ssl_.reset(SSL_new(tls->context_.get()));
  PHX_CHECK(ssl_ != nullptr && SSL_set_fd(ssl_.get(), fd_.get()) == 1 &&
                SSL_set1_host(ssl_.get(), wire::kTokenMasterName) == 1 &&
                SSL_set_tlsext_host_name(ssl_.get(), wire::kTokenMasterName) == 1,
            "TLS");
  SSL_set_connect_state(ssl_.get());
}

std::optional<size_t> ScaleLine::Send(std::string_view bytes) {
  if (ssl_ == nullptr) {
    const ssize_t done = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (done < 0 && errno != EAGAIN) return std::nullopt;
    waits_to_send_ = done < static_cast<ssize_t>(bytes.size());
    return done < 0 ? 0 : static_cast<size_t>(done);
  }
  ERR_clear_error();
  size_t done = 0;
  const int returned = SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &done);
  return Outcome(returned, done);
}

std::optional<size_t> ScaleLine::Receive(char* to, size_t bytes) {
  if (ssl_ == nullptr) {
    const ssize_t done = recv(fd(), to, bytes, 0);
    if (done == 0 || (done < 0 && errno != EAGAIN)) return std::nullopt;
    return done < 0 ? 0 : static_cast<size_t>(done);
  }
  ERR_clear_error();
  size_t done = 0;
  const int returned = SSL_read_ex(ssl_.get(), to, bytes, &done);
  return Outcome(returned, done);
}

std::optional<size_t> ScaleLine::Outcome(int returned, size_t done) {
  waits_to_send_ = false;
  if (returned == 1) return done;
  const int why = SSL_get_error(ssl_.get(), returned);
  waits_to_send_ = why == SSL_ERROR_WANT_WRITE;
  if (waits_to_send_ || why == SSL_ERROR_WANT_READ) return 0;
  return std::nullopt;
}

}  // namespace phalanx::master

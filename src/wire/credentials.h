// What proves to a job's programs that another one belongs to it: TLS certificates, made from the job's token or read
// from files (docs/formats/credentials.md).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/tls_files.h"

namespace phalanx::wire {

enum class Role { kMaster, kAgent, kViewer };

// As certificates name it. Pure.
std::string_view NameOf(Role role);

// A certificate, its private key, and the authority whose certificates are believed; each PEM.
struct Identity {
  std::string certificate;
  std::string key;
  std::string authority;
};

// Of a token, as docs/formats/credentials.md has it: the same authority in each process, and a new key and certificate.
StatusOr<Identity> MakeIdentity(std::string_view token, Role role);

// What one program shows, and believes of others. Of a token: made in this process, which takes some 40 ms and 16 MiB.
// Copies share nothing; any thread.
class Credentials {
 public:
  // Nothing: connections are in clear, and nobody proves anything.
  Credentials() = default;
  // `token` is not empty. An error where OpenSSL refuses, which a machine without memory makes it do.
  static StatusOr<Credentials> FromToken(std::string_view token, Role role);
  // Reads them once, so that what cannot be used is known at once.
  static StatusOr<Credentials> FromFiles(TlsFiles files);

  bool given() const { return identity_.has_value() || files_.given(); }
  bool from_files() const { return files_.given(); }

  // A new channel: TLS where anything is given. Files are read again; an error where they cannot be.
  StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& address, grpc::ChannelArguments args) const;
  // Of a server that believes nobody without a certificate. Files are looked at again each second.
  std::shared_ptr<grpc::ServerCredentials> ForServer() const;

 private:
  std::optional<Identity> identity_;
  TlsFiles files_;
};

// Who is at a server's connection; none: it is in clear. A certificate from files that names no role is an agent's.
std::optional<Role> RoleOf(const grpc::AuthContext& peer);

}  // namespace phalanx::wire

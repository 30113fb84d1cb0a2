// What proves to a job's programs that another one belongs to it, as gRPC takes it (docs/formats/credentials.md).
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/tls_files.h"
#include "wire/identity.h"

namespace phalanx::wire {

// What one program shows, and believes of others. Copies share nothing; any thread.
class Credentials {
 public:
  // Nothing: connections are in clear, and nobody proves anything.
  Credentials() = default;
  // As MakeIdentity.
  static StatusOr<Credentials> FromToken(std::string_view token, Role role);
  // Reads them once, so that what cannot be used is known at once. `master_name`: of the two names that a master may be
  // dialled by, the one that its certificate is to have; empty: the one that is dialled.
  static StatusOr<Credentials> FromFiles(TlsFiles files, Side side, std::string master_name = "");

  bool given() const { return identity_.has_value() || files_.given(); }
  bool from_files() const { return files_.given(); }

  // A new channel: TLS where anything is given. Files are read again; an error where they cannot be.
  StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& address, grpc::ChannelArguments args) const;

  // Of a server that believes nobody without a certificate. Files are looked at again at each handshake; where they
  // cannot be used, those before go on to count, and `on_warning` is told once, on gRPC's threads. The result must
  // outlive the server: gRPC asks it, and keeps no reference.
  std::shared_ptr<grpc::ServerCredentials> ForServer(std::function<void(const std::string&)> on_warning = {}) const;

 private:
  std::optional<Identity> identity_;
  TlsFiles files_;
  std::string master_name_;
};

// Who is at a server's connection; none: it is in clear. A certificate from files that names no role is an agent's.
std::optional<Role> RoleOf(const grpc::AuthContext& peer);

}  // namespace phalanx::wire

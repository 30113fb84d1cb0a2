#include "wire/credentials.h"

#include <fmt/format.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <sys/stat.h>

#include <array>
#include <mutex>
#include <utility>

#include "wire/renewals.h"

namespace phalanx::wire {
namespace {

// What tells that a file is another one, or was written again.
struct Stamp {
  dev_t device = 0;
  ino_t inode = 0;
  off_t bytes = 0;
  timespec changed{};

  bool operator==(const Stamp& other) const {
    return device == other.device && inode == other.inode && bytes == other.bytes &&
           changed.tv_sec == other.changed.tv_sec && changed.tv_nsec == other.changed.tv_nsec;
  }
};
using Stamps = std::array<Stamp, 3>;

Stamps StampsOf(const TlsFiles& files) {
  Stamps stamps;
  size_t i = 0;
  for (const std::string* path : {&files.certificate, &files.key, &files.authority}) {
    struct stat info {};
    if (stat(path->c_str(), &info) == 0) stamps[i] = {info.st_dev, info.st_ino, info.st_size, info.st_ctim};
    ++i;
  }
  return stamps;
}

grpc_ssl_server_certificate_config* ConfigOf(const Identity& identity) {
  const grpc_ssl_pem_key_cert_pair pair{identity.key.c_str(), identity.certificate.c_str()};
  return grpc_ssl_server_certificate_config_create(identity.authority.c_str(), &pair, 1);
}

// gRPC's C++ has server credentials that ask for renewed certificates only as an experiment that reads a new
// certificate with an old key; its C has a question at each handshake.
class RenewedFromFiles final : public grpc::ServerCredentials {
 public:
  RenewedFromFiles(TlsFiles files, std::function<void(const std::string&)> on_warning)
      : files_(std::move(files)), on_warning_(std::move(on_warning)) {
    auto* options = grpc_ssl_server_credentials_create_options_using_config_fetcher(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &RenewedFromFiles::Fetch, this);
    credentials_ = grpc_ssl_server_credentials_create_with_options(options);
  }
  ~RenewedFromFiles() override { grpc_server_credentials_release(credentials_); }

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<RenewedFromFiles*>(self)->Renew(config);
  }

  grpc_ssl_certificate_config_reload_status Renew(grpc_ssl_server_certificate_config** config) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Stamps now = StampsOf(files_);
    if (!renewals_.AreDue(now)) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const StatusOr<Identity> identity = ReadIdentity(files_, Side::kMaster);
    if (identity.ok()) {
      renewals_.Take(now);
      *config = ConfigOf(*identity);
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
    if (renewals_.Refuse(now) && on_warning_) {
      on_warning_(fmt::format("{}; what was there before goes on to count", Message(identity.status())));
    }
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
  }

  const TlsFiles files_;
  const std::function<void(const std::string&)> on_warning_;
  grpc_server_credentials* credentials_ = nullptr;
  std::mutex mutex_;
  Renewals<Stamps> renewals_;
};

}  // namespace

StatusOr<Credentials> Credentials::FromToken(std::string_view token, Role role) {
  Credentials made;
  PHX_ASSIGN_OR_RETURN(made.identity_, MakeIdentity(token, role));
  return made;
}

StatusOr<Credentials> Credentials::FromFiles(TlsFiles files, Side side, std::string master_name) {
  PHX_RETURN_IF_ERROR(ReadIdentity(files, side).status());
  Credentials made;
  made.files_ = std::move(files);
  made.master_name_ = std::move(master_name);
  return made;
}

StatusOr<std::shared_ptr<grpc::Channel>> Credentials::Dial(const std::string& address,
                                                           grpc::ChannelArguments args) const {
  if (!given()) return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
  Identity identity;
  if (identity_) {
    identity = *identity_;
  } else {
    PHX_ASSIGN_OR_RETURN(identity, ReadIdentity(files_, Side::kCaller));
  }
  if (IsOfToken(identity)) {
    args.SetSslTargetNameOverride(kTokenMasterName);
  } else if (!master_name_.empty()) {
    args.SetSslTargetNameOverride(master_name_);
  }
  return grpc::CreateCustomChannel(
      address, grpc::SslCredentials({identity.authority, identity.key, identity.certificate}), args);
}

std::shared_ptr<grpc::ServerCredentials> Credentials::ForServer(
    std::function<void(const std::string&)> on_warning) const {
  if (!given()) return grpc::InsecureServerCredentials();
  if (!identity_) return std::make_shared<RenewedFromFiles>(files_, std::move(on_warning));
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = identity_->authority;
  options.pem_key_cert_pairs.push_back({identity_->key, identity_->certificate});
  return grpc::SslServerCredentials(options);
}

std::optional<Role> RoleOf(const grpc::AuthContext& peer) {
  const auto kind = peer.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (kind.empty() || kind.front() != GRPC_SSL_TRANSPORT_SECURITY_TYPE) return std::nullopt;
  for (const grpc::string_ref& uri : peer.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    const std::optional<Role> role = RoleOfUri({uri.data(), uri.size()});
    if (role) return role;
  }
  return Role::kAgent;
}

}  // namespace phalanx::wire

#include "wire/credentials.h"

#include <fmt/format.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bn.h>
#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/param_build.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <array>
#include <utility>
#include <vector>

#include "base/read_file.h"

namespace phalanx::wire {
namespace {

constexpr std::string_view kSalt = "phalanx credentials 1";
constexpr std::string_view kAuthorityPrefix = "phalanx job ";
constexpr const char* kMasterName = "phalanx-master";
constexpr std::string_view kRoleUri = "phalanx:role/";
constexpr uint64_t kScryptN = 16'384;
constexpr uint64_t kScryptR = 8;
constexpr uint64_t kScryptP = 1;
constexpr uint64_t kScryptBytesMax = uint64_t{64} << 20;
constexpr size_t kRootBytes = 32;
constexpr size_t kNameBytes = 8;
constexpr size_t kScalarBytes = 48;  // half as many again as the group's order: no number is likelier than another
constexpr int kSerialBytes = 16;
constexpr size_t kMaxFileBytes = 1 << 20;
constexpr unsigned kLookAtFilesS = 1;
constexpr std::array kRoles = {Role::kMaster, Role::kAgent, Role::kViewer};

template <auto kFree>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    kFree(object);
  }
};
template <typename T, auto kFree>
using Owned = std::unique_ptr<T, Freer<kFree>>;

using Key = Owned<EVP_PKEY, EVP_PKEY_free>;
using Certificate = Owned<X509, X509_free>;
using Bio = Owned<BIO, BIO_free_all>;
using Number = Owned<BIGNUM, BN_clear_free>;

// Bytes that nobody is to find in a core file.
class Secret {
 public:
  explicit Secret(size_t bytes) : bytes_(bytes) {}
  Secret(Secret&&) = default;
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;
  ~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
  unsigned char* data() { return bytes_.data(); }
  const unsigned char* data() const { return bytes_.data(); }
  size_t size() const { return bytes_.size(); }

 private:
  std::vector<unsigned char> bytes_;
};

Status Failed(const char* what) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const why = code == 0 ? nullptr : ERR_reason_error_string(code);
  return absl::InternalError(fmt::format("credentials: {}: {}", what, why == nullptr ? "OpenSSL refuses" : why));
}

// --- from a token -------------------------------------------------------------------------------------------------

StatusOr<Secret> RootOf(std::string_view token) {
  Secret root(kRootBytes);
  const int done =
      EVP_PBE_scrypt(token.data(), token.size(), reinterpret_cast<const unsigned char*>(kSalt.data()), kSalt.size(),
                     kScryptN, kScryptR, kScryptP, kScryptBytesMax, root.data(), root.size());
  if (done != 1) return Failed("scrypt");
  return root;
}

StatusOr<Secret> Expand(const Secret& root, std::string info, size_t bytes) {
  const Owned<EVP_KDF, EVP_KDF_free> kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  if (!kdf) return Failed("HKDF");
  const Owned<EVP_KDF_CTX, EVP_KDF_CTX_free> context(EVP_KDF_CTX_new(kdf.get()));
  if (!context) return Failed("HKDF");
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, const_cast<unsigned char*>(root.data()), root.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()), OSSL_PARAM_construct_end()};
  Secret out(bytes);
  if (EVP_KDF_derive(context.get(), out.data(), out.size(), params) != 1) return Failed("HKDF");
  return out;
}

// The private key that the bytes mean on P-256.
StatusOr<Key> KeyOf(const Secret& bytes) {
  const Owned<EC_GROUP, EC_GROUP_free> group(EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1));
  const Owned<BN_CTX, BN_CTX_free> context(BN_CTX_secure_new());
  const Number wide(BN_bin2bn(bytes.data(), static_cast<int>(bytes.size()), nullptr));
  const Number scalar(BN_secure_new());
  if (!group || !context || !wide || !scalar) return Failed("P-256");
  const Number range(BN_dup(EC_GROUP_get0_order(group.get())));
  const Owned<EC_POINT, EC_POINT_clear_free> point(EC_POINT_new(group.get()));
  if (!range || !point || BN_sub_word(range.get(), 1) != 1 ||
      BN_mod(scalar.get(), wide.get(), range.get(), context.get()) != 1 || BN_add_word(scalar.get(), 1) != 1 ||
      EC_POINT_mul(group.get(), point.get(), scalar.get(), nullptr, nullptr, context.get()) != 1) {
    return Failed("P-256");
  }
  std::array<unsigned char, 65> public_key{};
  const size_t size = EC_POINT_point2oct(group.get(), point.get(), POINT_CONVERSION_UNCOMPRESSED, public_key.data(),
                                         public_key.size(), context.get());
  const Owned<OSSL_PARAM_BLD, OSSL_PARAM_BLD_free> builder(OSSL_PARAM_BLD_new());
  if (size != public_key.size() || !builder ||
      OSSL_PARAM_BLD_push_utf8_string(builder.get(), OSSL_PKEY_PARAM_GROUP_NAME, SN_X9_62_prime256v1, 0) != 1 ||
      OSSL_PARAM_BLD_push_BN(builder.get(), OSSL_PKEY_PARAM_PRIV_KEY, scalar.get()) != 1 ||
      OSSL_PARAM_BLD_push_octet_string(builder.get(), OSSL_PKEY_PARAM_PUB_KEY, public_key.data(), size) != 1) {
    return Failed("P-256");
  }
  const Owned<OSSL_PARAM, OSSL_PARAM_free> params(OSSL_PARAM_BLD_to_param(builder.get()));
  const Owned<EVP_PKEY_CTX, EVP_PKEY_CTX_free> maker(EVP_PKEY_CTX_new_from_name(nullptr, "EC", nullptr));
  EVP_PKEY* key = nullptr;
  if (!params || !maker || EVP_PKEY_fromdata_init(maker.get()) != 1 ||
      EVP_PKEY_fromdata(maker.get(), &key, EVP_PKEY_KEYPAIR, params.get()) != 1) {
    return Failed("P-256");
  }
  return Key(key);
}

bool SetName(X509_NAME* name, std::string_view common_name) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

bool Extend(X509* certificate, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, certificate, certificate, nullptr, nullptr, 0);
  const Owned<X509_EXTENSION, X509_EXTENSION_free> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

struct Extension {
  int nid;
  std::string value;
};

struct Authority {
  std::string name;
  Key key;
};

StatusOr<Authority> AuthorityOf(std::string_view token) {
  PHX_ASSIGN_OR_RETURN(const Secret root, RootOf(token));
  PHX_ASSIGN_OR_RETURN(const Secret name, Expand(root, "name", kNameBytes));
  PHX_ASSIGN_OR_RETURN(const Secret scalar, Expand(root, "authority", kScalarBytes));
  Authority authority;
  authority.name = kAuthorityPrefix;
  for (size_t i = 0; i < name.size(); ++i) authority.name += fmt::format("{:02x}", name.data()[i]);
  PHX_ASSIGN_OR_RETURN(authority.key, KeyOf(scalar));
  return authority;
}

StatusOr<Certificate> Sign(EVP_PKEY* key, std::string_view name, const Authority& authority,
                           const std::vector<Extension>& extensions) {
  Certificate made(X509_new());
  std::array<unsigned char, kSerialBytes> serial{};
  if (!made || RAND_bytes(serial.data(), kSerialBytes) != 1) return Failed("certificate");
  serial[0] = (serial[0] & 0x7f) | 0x40;  // positive, and never zero
  const Number number(BN_bin2bn(serial.data(), kSerialBytes, nullptr));
  X509* const c = made.get();
  bool good = number && X509_set_version(c, X509_VERSION_3) == 1 &&
              BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(c)) != nullptr &&
              ASN1_TIME_set_string_X509(X509_getm_notBefore(c), "19700101000000Z") == 1 &&
              ASN1_TIME_set_string_X509(X509_getm_notAfter(c), "99991231235959Z") == 1 &&
              SetName(X509_get_subject_name(c), name) && SetName(X509_get_issuer_name(c), authority.name) &&
              X509_set_pubkey(c, key) == 1;
  for (const Extension& extension : extensions) good = good && Extend(c, extension.nid, extension.value);
  if (!good || X509_sign(c, authority.key.get(), EVP_sha256()) == 0) return Failed("certificate");
  return made;
}

StatusOr<std::string> TextOf(const Bio& bio) {
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  if (size <= 0) return Failed("PEM");
  return std::string(bytes, static_cast<size_t>(size));
}

StatusOr<std::string> PemOf(X509* certificate) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || PEM_write_bio_X509(bio.get(), certificate) != 1) return Failed("PEM");
  return TextOf(bio);
}

StatusOr<std::string> PemOf(EVP_PKEY* key) {
  const Bio bio(BIO_new(BIO_s_secmem()));
  if (!bio || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return Failed("PEM");
  }
  return TextOf(bio);
}

std::string UriOf(Role role) { return fmt::format("{}{}", kRoleUri, NameOf(role)); }

// --- from files ---------------------------------------------------------------------------------------------------

// The first one; null where there is none.
Certificate CertificateIn(const std::string& pem) {
  const Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  Certificate certificate(bio ? PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr) : nullptr);
  ERR_clear_error();
  return certificate;
}

// What cannot be used is said here, by name: gRPC would say only that no connection comes to be.
Status Check(const TlsFiles& files, const Identity& identity) {
  const Certificate own = CertificateIn(identity.certificate);
  if (!own) return absl::InvalidArgumentError(fmt::format("{}: no PEM certificate", files.certificate));
  if (!CertificateIn(identity.authority)) {
    return absl::InvalidArgumentError(fmt::format("{}: no PEM certificate", files.authority));
  }
  const Bio bio(BIO_new_mem_buf(identity.key.data(), static_cast<int>(identity.key.size())));
  // Without a callback OpenSSL would ask the terminal for a password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const Key key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr) : nullptr);
  ERR_clear_error();
  if (!key) return absl::InvalidArgumentError(fmt::format("{}: no PEM private key without a password", files.key));
  if (X509_check_private_key(own.get(), key.get()) == 1) return absl::OkStatus();
  ERR_clear_error();
  return absl::InvalidArgumentError(
      fmt::format("{}: not the private key of the certificate in {}", files.key, files.certificate));
}

StatusOr<Identity> Read(const TlsFiles& files) {
  Identity identity;
  PHX_ASSIGN_OR_RETURN(identity.certificate, ReadFile(files.certificate, kMaxFileBytes));
  PHX_ASSIGN_OR_RETURN(identity.key, ReadFile(files.key, kMaxFileBytes));
  PHX_ASSIGN_OR_RETURN(identity.authority, ReadFile(files.authority, kMaxFileBytes));
  PHX_RETURN_IF_ERROR(Check(files, identity));
  return identity;
}

// Whether it was made from a token: its masters have one name, wherever they are.
bool IsOfToken(const std::string& authority) {
  const Certificate certificate = CertificateIn(authority);
  std::array<char, 64> name{};
  if (!certificate) return false;
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name.data(), name.size());
  return std::string_view(name.data()).starts_with(kAuthorityPrefix);
}

}  // namespace

std::string_view NameOf(Role role) {
  switch (role) {
    case Role::kMaster:
      return "master";
    case Role::kAgent:
      return "agent";
    case Role::kViewer:
      return "viewer";
  }
  return "";
}

StatusOr<Identity> MakeIdentity(std::string_view token, Role role) {
  PHX_ASSIGN_OR_RETURN(const Authority authority, AuthorityOf(token));
  const std::vector<Extension> of_authority = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                               {NID_key_usage, "critical,keyCertSign"}};
  PHX_ASSIGN_OR_RETURN(const Certificate trusted, Sign(authority.key.get(), authority.name, authority, of_authority));
  const Key key(EVP_EC_gen(SN_X9_62_prime256v1));
  if (!key) return Failed("P-256");
  const bool serves = role == Role::kMaster;
  const std::string names =
      serves ? fmt::format("DNS:{},URI:{}", kMasterName, UriOf(role)) : fmt::format("URI:{}", UriOf(role));
  const std::vector<Extension> of_program = {{NID_basic_constraints, "critical,CA:FALSE"},
                                             {NID_key_usage, "critical,digitalSignature"},
                                             {NID_ext_key_usage, serves ? "serverAuth" : "clientAuth"},
                                             {NID_subject_alt_name, names}};
  PHX_ASSIGN_OR_RETURN(const Certificate own, Sign(key.get(), NameOf(role), authority, of_program));
  Identity identity;
  PHX_ASSIGN_OR_RETURN(identity.certificate, PemOf(own.get()));
  PHX_ASSIGN_OR_RETURN(identity.key, PemOf(key.get()));
  PHX_ASSIGN_OR_RETURN(identity.authority, PemOf(trusted.get()));
  return identity;
}

StatusOr<Credentials> Credentials::FromToken(std::string_view token, Role role) {
  Credentials made;
  PHX_ASSIGN_OR_RETURN(made.identity_, MakeIdentity(token, role));
  return made;
}

StatusOr<Credentials> Credentials::FromFiles(TlsFiles files) {
  PHX_RETURN_IF_ERROR(Read(files).status());
  Credentials made;
  made.files_ = std::move(files);
  return made;
}

StatusOr<std::shared_ptr<grpc::Channel>> Credentials::Dial(const std::string& address,
                                                           grpc::ChannelArguments args) const {
  if (!given()) return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
  Identity identity;
  if (identity_) identity = *identity_;
  if (!identity_) {
    PHX_ASSIGN_OR_RETURN(identity, Read(files_));
  }
  if (IsOfToken(identity.authority)) args.SetSslTargetNameOverride(kMasterName);
  return grpc::CreateCustomChannel(
      address, grpc::SslCredentials({identity.authority, identity.key, identity.certificate}), args);
}

std::shared_ptr<grpc::ServerCredentials> Credentials::ForServer() const {
  if (!given()) return grpc::InsecureServerCredentials();
  if (identity_) {
    grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = identity_->authority;
    options.pem_key_cert_pairs.push_back({identity_->key, identity_->certificate});
    return grpc::SslServerCredentials(options);
  }
  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions options(std::make_shared<tls::FileWatcherCertificateProvider>(
      files_.key, files_.certificate, files_.authority, kLookAtFilesS));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

std::optional<Role> RoleOf(const grpc::AuthContext& peer) {
  const auto kind = peer.FindPropertyValues(GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (kind.empty() ||
      (kind.front() != GRPC_SSL_TRANSPORT_SECURITY_TYPE && kind.front() != GRPC_TLS_TRANSPORT_SECURITY_TYPE)) {
    return std::nullopt;
  }
  for (const grpc::string_ref& uri : peer.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    for (const Role role : kRoles) {
      if (std::string_view(uri.data(), uri.size()) == UriOf(role)) return role;
    }
  }
  return Role::kAgent;
}

}  // namespace phalanx::wire

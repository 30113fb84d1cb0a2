#include "wire/identity.h"

#include <fmt/format.h>
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

#include <algorithm>
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/openssl_error.h"
#include "base/read_file.h"

namespace phalanx::wire {
namespace {

constexpr std::string_view kSalt = "phalanx credentials 1";
constexpr std::string_view kAuthorityPrefix = "phalanx job ";
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
constexpr std::array kRoles = {Role::kMaster, Role::kAgent, Role::kViewer, Role::kOperator, Role::kPlatform};

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
  return absl::InternalError(fmt::format("credentials: {}: {}", what, TakeOpenSslError("OpenSSL refuses")));
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
  authority.name += absl::BytesToHexString({reinterpret_cast<const char*>(name.data()), name.size()});
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

Status Unfit(const std::string& path, const std::string& why) {
  ERR_clear_error();
  return absl::InvalidArgumentError(fmt::format("{}: {}", path, why));
}

std::string TimeText(const ASN1_TIME* time) {
  const Bio bio(BIO_new(BIO_s_mem()));
  if (!bio || ASN1_TIME_print(bio.get(), time) != 1) return "?";
  char* bytes = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &bytes);
  return std::string(bytes, static_cast<size_t>(std::max(size, 0L)));
}

// Texts of its alternative names of that kind.
std::vector<std::string> UrisOf(X509* certificate) {
  std::vector<std::string> uris;
  const Owned<GENERAL_NAMES, GENERAL_NAMES_free> names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int n = 0; names && n < sk_GENERAL_NAME_num(names.get()); ++n) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), n);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                      static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return uris;
}

// What gRPC would not say, or only as a connection that never comes to be.
Status CheckCertificate(const std::string& path, X509* own, Side side) {
  if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0) {
    return Unfit(path, fmt::format("the certificate ended on {}", TimeText(X509_get0_notAfter(own))));
  }
  if (X509_cmp_current_time(X509_get0_notBefore(own)) > 0) {
    return Unfit(
        path, fmt::format("the certificate begins on {} by this machine's clock", TimeText(X509_get0_notBefore(own))));
  }
  const bool serves = side == Side::kMaster;
  if (X509_check_purpose(own, serves ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT, 0) != 1) {
    return Unfit(path, fmt::format("the certificate is not for a TLS {0} (its extended key usage lacks {0}Auth)",
                                   serves ? "server" : "client"));
  }
  for (const std::string& uri : UrisOf(own)) {
    const std::optional<Role> role = RoleOfUri(uri);
    if (role == Role::kUnknown)
      return Unfit(path, fmt::format("'{}' names no role: expected agent, viewer or master", uri));
    if (serves && role && *role != Role::kMaster && *role != Role::kAgent) {
      return Unfit(path, fmt::format("a {}'s certificate serves no job", NameOf(*role)));
    }
  }
  return absl::OkStatus();
}

Status Check(const TlsFiles& files, const Identity& identity, Side side) {
  const Certificate own = CertificateIn(identity.certificate);
  if (!own) return Unfit(files.certificate, "no PEM certificate");
  if (!CertificateIn(identity.authority)) return Unfit(files.authority, "no PEM certificate");
  const Bio bio(BIO_new_mem_buf(identity.key.data(), static_cast<int>(identity.key.size())));
  // Without a callback OpenSSL would ask the terminal for a password.
  const auto no_password = [](char*, int, int, void*) { return -1; };
  const Key key(bio ? PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr) : nullptr);
  if (!key) return Unfit(files.key, "no PEM private key without a password");
  if (X509_check_private_key(own.get(), key.get()) != 1) {
    return Unfit(files.key, fmt::format("not the private key of the certificate in {}", files.certificate));
  }
  return CheckCertificate(files.certificate, own.get(), side);
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
    case Role::kOperator:
      return "operator";
    case Role::kPlatform:
      return "platform";
    case Role::kUnknown:
      return "unknown role";
  }
  return "";
}

std::optional<Role> RoleOfUri(std::string_view uri) {
  if (!uri.starts_with(kRoleUri)) return std::nullopt;
  for (const Role role : kRoles) {
    if (uri.substr(kRoleUri.size()) == NameOf(role)) return role;
  }
  return Role::kUnknown;
}

StatusOr<Identity> MakeIdentity(std::string_view token, Role role) {
  // A user's openssl.cnf is for other programs.
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  PHX_ASSIGN_OR_RETURN(const Authority authority, AuthorityOf(token));
  const std::vector<Extension> of_authority = {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                               {NID_key_usage, "critical,keyCertSign"}};
  PHX_ASSIGN_OR_RETURN(const Certificate trusted, Sign(authority.key.get(), authority.name, authority, of_authority));
  const Key key(EVP_EC_gen(SN_X9_62_prime256v1));
  if (!key) return Failed("P-256");
  const bool serves = role == Role::kMaster;
  const std::string names =
      serves ? fmt::format("DNS:{},URI:{}", kTokenMasterName, UriOf(role)) : fmt::format("URI:{}", UriOf(role));
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

StatusOr<Identity> ReadIdentity(const TlsFiles& files, Side side) {
  OPENSSL_init_crypto(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
  Identity identity;
  PHX_ASSIGN_OR_RETURN(identity.certificate, ReadFile(files.certificate, kMaxFileBytes));
  PHX_ASSIGN_OR_RETURN(identity.key, ReadFile(files.key, kMaxFileBytes));
  PHX_ASSIGN_OR_RETURN(identity.authority, ReadFile(files.authority, kMaxFileBytes));
  PHX_RETURN_IF_ERROR(Check(files, identity, side));
  return identity;
}

bool IsOfToken(const Identity& identity) {
  const Certificate certificate = CertificateIn(identity.authority);
  std::array<char, 64> name{};
  if (!certificate) return false;
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name.data(), name.size());
  return std::string_view(name.data()).starts_with(kAuthorityPrefix);
}

bool HasName(const Identity& identity, const std::string& name) {
  const Certificate own = CertificateIn(identity.certificate);
  return own && (X509_check_ip_asc(own.get(), name.c_str(), 0) == 1 ||
                 X509_check_host(own.get(), name.data(), name.size(), 0, nullptr) == 1);
}

}  // namespace phalanx::wire

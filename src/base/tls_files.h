// Files of a TLS certificate, as --tls-cert, --tls-key and --tls-ca name them (docs/formats/credentials.md).
#pragma once

#include <string>

namespace phalanx {

// PEM, each.
struct TlsFiles {
  std::string certificate;  // with those between it and the authority
  std::string key;
  std::string authority;
  bool given() const { return !certificate.empty(); }
};

}  // namespace phalanx

// Files of a TLS certificate, as --tls-cert, --tls-key and --tls-ca name them (docs/formats/credentials.md).
#pragma once

#include <string>

#include "base/env.h"

namespace phalanx {

// PEM, each.
struct TlsFiles {
  std::string certificate;  // with those between it and the authority
  std::string key;
  std::string authority;
  bool given() const { return !certificate.empty(); }
  bool any() const { return given() || !key.empty() || !authority.empty(); }
  bool whole() const { return given() && !key.empty() && !authority.empty(); }
};

// As variables name them. Pure.
inline TlsFiles TlsFilesOf(const Environment& env) {
  return {env.NonEmptyOr("PHALANX_TLS_CERT", ""), env.NonEmptyOr("PHALANX_TLS_KEY", ""),
          env.NonEmptyOr("PHALANX_TLS_CA", "")};
}

}  // namespace phalanx

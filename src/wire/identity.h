// TLS certificates by which a job's programs know each other: made from the job's token, or read from files
// (docs/formats/credentials.md). PEM.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "base/tls_files.h"

namespace phalanx::wire {

// kOperator: changes a job by commands (LetIn), beside what a viewer does. kUnknown: a certificate names one that
// nobody knows; its holder may do nothing.
enum class Role { kMaster, kAgent, kViewer, kOperator, kPlatform, kUnknown };

// As certificates name it. Pure.
std::string_view NameOf(Role role);
// Of "phalanx:role/agent" and so on; none: it is a URI of something else. Pure.
std::optional<Role> RoleOfUri(std::string_view uri);

// Which end of a connection.
enum class Side { kMaster, kCaller };

// A certificate, its private key, and the authority whose certificates are believed.
struct Identity {
  std::string certificate;
  std::string key;
  std::string authority;
};

// Of a token, which is not empty: the same authority in each process, and a new key and certificate. Takes some 40 ms
// and 16 MiB. An error where OpenSSL refuses.
StatusOr<Identity> MakeIdentity(std::string_view token, Role role);

// Reads them, and checks what can be checked without the other side. The error names the file and what would be right.
StatusOr<Identity> ReadIdentity(const TlsFiles& files, Side side);

// Whether its authority was made from a token: its masters have one name, kTokenMasterName, wherever they are.
bool IsOfToken(const Identity& identity);
constexpr const char* kTokenMasterName = "phalanx-master";

// Whether it is among the certificate's alternative names: an IP address or a host's name.
bool HasName(const Identity& identity, const std::string& name);

}  // namespace phalanx::wire

#include "wire/node_key.h"

#include <fmt/format.h>
#include <openssl/sha.h>

#include "absl/strings/escaping.h"
#include "wire/protocol.h"

namespace phalanx::wire {
namespace {

constexpr std::string_view kPurpose = "phalanx node id 1:";  // so that a digest for another purpose is no id
constexpr size_t kIdBytes = 16;

}  // namespace

std::string NodeIdOf(std::string_view key) {
  const std::string text = fmt::format("{}{}", kPurpose, key);
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), kIdBytes});
}

void SetNode(v1::Hello& hello, const std::string& key) {
  hello.set_node_id(NodeIdOf(key));
  hello.set_node_key(key);
}

std::string NodeKeyFault(const v1::Hello& hello) {
  if (hello.protocol_version() != kProtocolVersion) return "";
  if (hello.node_key().size() != kNodeKeyBytes) {
    return fmt::format("node key of {} bytes: expected {}", hello.node_key().size(), kNodeKeyBytes);
  }
  if (hello.node_id() != NodeIdOf(hello.node_key()))
    return "the node id is not that of its node key: it is another node's";
  return "";
}

}  // namespace phalanx::wire

#include "agent/node/job_credentials.h"

namespace phalanx::agent {

StatusOr<wire::Credentials> CredentialsOf(const LaunchConfig& config) {
  if (config.tls.given()) {
    // Its own master is dialled by an address.
    return wire::Credentials::FromFiles(config.tls, wire::Side::kCaller, config.endpoint_host);
  }
  if (!config.token.empty()) return wire::Credentials::FromToken(config.token, wire::Role::kAgent);
  return wire::Credentials();
}

}  // namespace phalanx::agent

// Credentials of tests' jobs, made once a process: each takes some 40 ms.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "base/check.h"
#include "wire/credentials.h"

namespace phalanx::wire {

// Any thread.
inline const Credentials& TestCredentials(Role role, const std::string& token = "secret") {
  static std::mutex mutex;
  static std::map<std::pair<Role, std::string>, Credentials> made;
  const std::lock_guard<std::mutex> lock(mutex);
  Credentials& credentials = made[{role, token}];
  if (!credentials.given()) {
    StatusOr<Credentials> fresh = Credentials::FromToken(token, role);
    PHX_CHECK(fresh.ok(), "no credentials of a token");
    credentials = *std::move(fresh);
  }
  return credentials;
}

}  // namespace phalanx::wire

// What a socket that does not block says when it can do nothing now.
#pragma once

#include <cerrno>

namespace phalanx::store {

inline bool Transient(int error_number) { return error_number == EAGAIN || error_number == EINTR; }

}  // namespace phalanx::store

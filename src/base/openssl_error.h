// What OpenSSL says of a call that has failed.
#pragma once

#include <openssl/err.h>

#include <string>

namespace phalanx {

// The first reason of this thread's queue, which is empty behind that; `otherwise` where there is none.
inline std::string TakeOpenSslError(const char* otherwise) {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  const char* const why = code == 0 ? nullptr : ERR_reason_error_string(code);
  return why == nullptr ? otherwise : why;
}

}  // namespace phalanx

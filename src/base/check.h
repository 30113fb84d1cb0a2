// For what cannot happen unless the program or the system is broken: one line on stderr, then abort.
// Bad input is never a reason to check; it gets a Status.
#pragma once

namespace phalanx {

[[noreturn]] void CheckFailed(const char* file, int line, const char* what);

}  // namespace phalanx

#define PHX_CHECK(condition, what)                      \
  do {                                                  \
    if (!(condition)) [[unlikely]]                      \
      ::phalanx::CheckFailed(__FILE__, __LINE__, what); \
  } while (false)

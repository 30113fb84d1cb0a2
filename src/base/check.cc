#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace phalanx {

void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "phalanx: internal error at %s:%d: %s\n", file, line, what);
  std::abort();
}

}  // namespace phalanx

// Where tests find the sources and what was built beside them. One small file holds both paths: a path among a test's
// own flags would make it another file to the compiler's cache in each clone.
#pragma once

#include <string>

namespace phalanx {

std::string SourceDir();  // of the clone
std::string BuildDir();   // build/<preset>

}  // namespace phalanx

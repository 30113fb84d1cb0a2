// A file of learnt modules as anybody may have left it: what is taken of it is within its bounds, and is the same when
// it is written and read again.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "agent/workers/learnt.h"
#include "agent/workers/wire.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  const Learnt learnt = ParseLearnt({reinterpret_cast<const char*>(data), size});
  for (const auto* names : {&learnt.modules, &learnt.deny}) {
    PHX_CHECK(names->size() <= kModulesMax, "more modules than allowed");
    PHX_CHECK(std::all_of(names->begin(), names->end(),
                          [](const std::string& name) { return !name.empty() && name.size() <= kModuleNameMax; }),
              "a name beyond its bounds");
  }
  const Learnt again = ParseLearnt(LearntText(learnt));
  PHX_CHECK(again.modules == learnt.modules && again.deny == learnt.deny, "what was learnt is lost when it is kept");
  return 0;
}

// What a script's lives have taught: modules worth preloading (as told at the first step, in their order) and modules
// that must not be imported ahead of time. Kept in the state directory as learnt-<hash of interpreter and script>.json,
// 0600 (docs/formats/learnt-modules.md).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "agent/flags/config.h"

namespace phalanx::agent {

struct Learnt {
  std::vector<std::string> modules;
  std::vector<std::string> deny;
};

// Distrusts: names beyond the bounds of the worker socket, and all of what is no such file, are left out. Pure.
Learnt ParseLearnt(std::string_view text);
std::string LearntText(const Learnt& learnt);

// `cwd` makes a relative script's or a module's name unambiguous. Pure.
std::string LearntPath(const LaunchConfig& config, const std::string& cwd);

// Nothing where the file is missing, another user's, or unreadable: what is not known is learnt anew.
Learnt ReadLearnt(const std::string& path);
// Replaces the file, whole or not at all. What it denies already stays denied: another agent of this script may have
// found that. A file that cannot be written, or that another agent writes at this moment, is left alone.
void WriteLearnt(const std::string& path, const Learnt& learnt);

}  // namespace phalanx::agent

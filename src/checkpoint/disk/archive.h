// Which steps of a directory go to its archive, and which lie there already. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/steps.h"

namespace phalanx::checkpoint {

// One was copied from the other, or both were from a third: names of folders, and order in two directories, say
// nothing.
bool AreSameSave(const Manifest& one, const Manifest& other);

// Names, oldest first, of the steps that count here and not yet in the archive: with `every`, those that it divides,
// and else the newest alone. Both lists are newest first.
std::vector<std::string> StepsToArchive(const std::vector<FoundStep>& here, const std::vector<FoundStep>& archived,
                                        int64_t every);

}  // namespace phalanx::checkpoint

// A folder that is whole comes to its place, and into the file that names it: docs/formats/universal.md.
#pragma once

#include <string>
#include <string_view>

#include "checkpoint/universal/result.h"

namespace phalanx::universal {

struct Publication {
  std::string draft;   // the folder, whose files are on the disk
  std::string target;  // its place beside `draft`, in the same folder
  std::string manifest_name;
  std::string_view manifest;
  std::string tracker_name;  // in the folder of `target`: names the target; empty: none does
};

// Writes the manifest, moves the folder to its place, and then replaces the tracker, each on the disk before the next
// begins. What lay at `target` lies at `draft` behind it. Blocks for as long as storage takes.
Result<Done> Publish(const Publication& publication);

}  // namespace phalanx::universal

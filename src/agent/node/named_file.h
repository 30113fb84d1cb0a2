// Files that a person has named and that this program writes. None of them is waited for: a pipe that nobody reads,
// say.
#pragma once

#include <sys/types.h>

#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx::agent {

struct NamedFile {
  std::string path;
  bool append = false;        // else it is emptied
  bool follow_links = false;  // else a link is refused: another user may have put it there
  bool regular_only = true;   // else it may also be a terminal, or a pipe with a reader
  mode_t mode = 0600;         // of one that is made
};

// The errors name no path: "cannot be opened: <reason>", "is not a regular file".
StatusOr<Fd> OpenNamed(const NamedFile& file);

// The whole text, or "cannot be written: <reason>" and an empty file: nobody shall read the half of it.
Status WriteNamed(const NamedFile& file, const std::string& text);

}  // namespace phalanx::agent

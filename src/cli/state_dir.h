// Where a job's files are: `<root>/<job>/` with the event record, and, while its master runs, its address and token.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/status.h"

namespace phalanx::cli {

// ${XDG_STATE_HOME}/phalanx, ~/.local/state/phalanx, or /tmp/phalanx-<uid>.
std::string DefaultStateRoot(const Environment& env);

// Makes the folder and its parents, for this user alone.
Status MakePrivateFolder(const std::string& path);

// Writes the whole file or nothing, for this user alone.
Status WritePrivateFile(const std::string& path, const std::string& text);

// The first line, at most 4 KiB. NotFound where the file is not there; PermissionDenied where it is somebody else's.
StatusOr<std::string> ReadPrivateLine(const std::string& path);

// The same of a secret, a plain file of this user alone: PermissionDenied also where others may read it.
StatusOr<std::string> ReadSecretLine(const std::string& path);

// The token that lies in a state directory for all jobs there; empty: none does. An error where it is no secret.
StatusOr<std::string> SharedTokenIn(const std::string& root);
// The state directory that the folder of a job is in.
std::string StateRootOf(const std::string& job_folder);

// Marks the folder of a job whose id nobody chose.
void MarkUnnamed(const std::string& folder);

// Removes, under `root`, the folders that are marked so, whose record has not changed for `kept_for` and that hold no
// master's address. Only what a master writes is removed: a folder that holds anything else stays, with that.
void PruneUnnamedJobs(const std::string& root, std::chrono::hours kept_for);

// The folders of all jobs in `given`, or in the default root; the one changed last first. `given` itself where it is
// one.
std::vector<std::string> JobFolders(const Environment& env, const std::string& given);

// The folder that `phalanx status` and its like mean: `given` itself where it holds a record or an address, else the
// one of `job` in it (or in the default root), else, where no job is named, the one changed last. Of jobs that share an
// id that nobody chose, too, the one changed last.
StatusOr<std::string> FindJobFolder(const Environment& env, const std::string& given, const std::string& job);

}  // namespace phalanx::cli

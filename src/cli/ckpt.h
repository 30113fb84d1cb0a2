// What `phalanx ckpt` answers: about checkpoint directories, steps and images on disk, and about the memory of nodes.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace phalanx::cli {

struct CkptAnswer {
  std::string text;
  int exit_code = 0;  // 1: something is damaged, or differs
};

// The steps of a directory; of a node's memory folder, or of all of them below /dev/shm, the slots.
StatusOr<CkptAnswer> CkptList(const std::string& path, bool json, int64_t now_unix_ms);

// For programs, as JSON: the steps of a directory, newest first, or that of a name (empty: all), with all that the
// manifests of those that count list. Without a step where there is no such directory, or none of that name.
StatusOr<CkptAnswer> CkptSteps(const std::string& directory, const std::string& name);

// A step's folder, and the room that its files would be kept in for the next step; or what CkptDiscard removes.
StatusOr<CkptAnswer> CkptRemove(const std::string& path, bool json);

// Goes on with the deletion of a step that was cut off.
StatusOr<CkptAnswer> CkptDelete(const std::string& directory, const std::string& name);

// A step's manifest, or the records of an image.
StatusOr<CkptAnswer> CkptShow(const std::string& path, bool json);

// Reads every byte of a directory's committed steps, of one step, of an image or of the sealed slots of memory, and
// compares their CRCs.
StatusOr<CkptAnswer> CkptVerify(const std::string& path, bool json);

// The records in which two images, or the shards of two steps, differ: by name, size and CRC.
StatusOr<CkptAnswer> CkptDiff(const std::string& a, const std::string& b, bool json);

// Copies an image whose every record has its CRC to a new file.
StatusOr<CkptAnswer> CkptExport(const std::string& path, const std::string& to, bool json);

}  // namespace phalanx::cli

// The journal's file on the master's disk, and what may have become of it when the next master reads it.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "simulation/random.h"

namespace phalanx::simulation {

enum class JournalDamage {
  kNone,
  kLostTail,  // an earlier snapshot: the later ones had not come to the disk
  kTorn,      // half a file
  kGone,
};

class SimJournal {
 public:
  void Put(std::string payload);
  // What was put has come to the disk.
  void Flush();
  // --resume is not given: an earlier job's is removed.
  void Remove();
  // The payload that a new master finds.
  StatusOr<std::string> Read(JournalDamage damage, Random& random) const;

 private:
  std::vector<std::string> payloads_;  // that the file may hold; the last is the newest
};

}  // namespace phalanx::simulation

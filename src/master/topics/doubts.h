// Saves that lives went on from and that failed before a step: what they went on from may be why, a loss that was NaN
// by then, say. After some such lives in a row it is doubted, and passed over where an older save is on storage. Pure;
// a directory's, inside src/master/topics/checkpoints.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/save_key.h"

namespace phalanx::master {

// Of a directory: there is an end to going back. The oldest is forgotten for a further one.
constexpr size_t kMaxDoubted = 16;

struct Doubts {
  // What a new master must know.
  struct Kept {
    std::optional<SaveKey> resumed;  // by the last lives that failed without a step
    uint32_t failed_lives = 0;       // so many in a row
    // So many were too many. With the folder below the directory where storage has it; empty: it is not known to.
    std::map<SaveKey, std::string> saves;
    // Nothing else could be restored, and no step has been made since: none is doubted then.
    bool tried_all = false;
  };
  Kept kept;
  std::optional<Kept> before_failure;  // while the last round's failure may turn out to be a node's loss

  // Of the live round.
  std::optional<SaveKey> from;  // what all ranks restore by the newest decision; nothing: none of this job's saves
  std::set<size_t> told;        // group ranks that have been told
};

// How the life of a round ended.
enum class LifeEnd {
  kStepped,  // some rank had made a step
  kFailed,   // none had, and the script failed by itself
  kOther,    // nodes came or went, or a rank was killed: that says nothing of what it went on from
};

void BeginDoubts(Doubts& doubts);
// All ranks of the round are to restore this; nothing: they begin anew, or it is none of this job's saves.
void NoteDecided(Doubts& doubts, const std::optional<SaveKey>& from);
// Whether EndLife would come to doubt what the live round has restored, were its end kFailed. `counts`: all of its
// members have been told, and it has restored from no other directory.
bool WouldDoubt(const Doubts& doubts, bool counts, uint32_t lives);
// `lives`: so many in a row are too many; 0: none are. Returns whether what it went on from is doubted now.
bool EndLife(Doubts& doubts, LifeEnd end, bool counts, uint32_t lives);
// The last round's failure was a node's loss.
void ReturnLife(Doubts& doubts);
// Storage has it in that folder.
void NoteFolder(Doubts& doubts, const SaveKey& save, const std::string& folder);
// What is passed over is all that there is. False: nothing was.
bool TrustAgain(Doubts& doubts);
// That save is on storage now, in that folder: what only memory had before is in nobody's way any more.
void Lift(Doubts& doubts, const SaveKey& stored, const std::string& folder);

}  // namespace phalanx::master

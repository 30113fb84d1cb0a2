// The rank board of one epoch on this node, as the agent sees it: docs/formats/rank-board.md.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx::agent {

enum class RankPhase { kStarting = 0, kScript = 1, kStepping = 2, kExiting = 3 };

// A slot, checked. Numbers that cannot be are those of a slot nobody took.
struct BoardSlot {
  int64_t pid = 0;  // 0: not taken
  uint64_t optimizer_steps = 0;
  int64_t step = -1;  // -1: never set
  int64_t changed_ns = 0;
  int64_t started_ns = 0;
  int64_t first_step_ns = 0;
  RankPhase phase = RankPhase::kStarting;
  int64_t from_step = -1;       // -1: not told
  int64_t saving_ns = 0;        // in saves that are over
  int64_t saving_since_ns = 0;  // 0: none is under way
  int64_t caught_up_ns = 0;     // 0: not yet, or nothing to catch up with
  bool hears_rescale = false;   // phalanx.on_rescale was called, or saves are at most some seconds apart
  // Sums over the steps of which the rank knows what it worked by itself, and what it waited for others.
  uint64_t split_steps = 0;
  int64_t own_ns = 0;
  int64_t waited_ns = 0;
  bool counts_on = false;  // between two saves the step goes on with the optimizer's
};

// `bytes` is one slot of the format (192 bytes; fewer: an untaken slot). `now_ns`: nothing can have happened later.
// Pure.
BoardSlot ParseBoardSlot(const void* bytes, size_t size, int64_t now_ns);

// Where in the file the lock of that slot's rank is.
off_t BoardLockAt(int slot);

class Board {
 public:
  // A fresh file for `slots` ranks in /dev/shm, or in `fallback_dir` where that has no room. `redo_until`: the largest
  // step of earlier lives; -1: none is known.
  static StatusOr<std::unique_ptr<Board>> Create(uint64_t epoch, int slots, int64_t redo_until,
                                                 const std::string& fallback_dir);

  // Removes boards of this user in `dir` whose agents were killed: unlocked, and untouched for a minute.
  static void RemoveStale(const std::string& dir);

  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  // Removes the file. Ranks that have it mapped go on writing to memory nobody reads.
  ~Board();

  // Ranks that hear of rescales come to their safe point behind that step.
  Status AnnounceRescale(int64_t at_step, bool node_leaves);

  const std::string& path() const { return path_; }
  // What the rank wrote last; an untaken slot where there is none. Counters of one pid never decrease. Copies (no
  // mapping: a rank that truncates the file must not take the agent with it).
  BoardSlot Read(int slot);

 private:
  Board(std::string path, Fd file, int slots);

  std::string path_;
  Fd file_;
  std::vector<BoardSlot> last_;
};

}  // namespace phalanx::agent

// A traceback that several ranks of a life write is shown once: what the others write of it becomes one line that says
// who else has it. Nothing else of what ranks write is held or changed, and nothing at all before one rank has written
// a traceback: the first one passes as it comes. Another rank that is quicker with the same one waits for it, with what
// it writes behind, until the first has come to its end, has written something else, or has ended. Pure.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::agent {

class Tracebacks {
 public:
  // Longer ones, and more of them in one life, are not compared.
  static constexpr size_t kMaxLines = 512;
  static constexpr size_t kMaxBytes = 64 << 10;
  static constexpr size_t kMaxBlocks = 8;

  // What is to be shown now of what that rank of that life has written next to its stderr. What is held back comes with
  // a later call, or with End.
  std::string Feed(uint32_t life, int rank, std::string_view bytes);
  // Nothing more comes from it.
  std::string End(uint32_t life, int rank);

 private:
  // Lines of a traceback without their ends and torch's "[rank1]: ".
  struct Block {
    int rank = 0;
    std::vector<std::string> lines;
    size_t bytes = 0;
    bool whole = false;   // its exception's line is there
    bool growing = true;  // more lines may come
  };
  enum class State {
    kOutside,
    kShown,  // within a traceback that passes as it comes
    kHeld,   // within one that another rank has written, or may be about to write
    kWaits,  // behind one that another rank may be about to write
  };
  struct Stream {
    std::string partial;  // of the line that is not over; raw
    size_t emitted = 0;   // of that, what has been shown
    State state = State::kOutside;
    std::string held;                // raw, of whole lines
    std::vector<std::string> lines;  // held
    std::string behind;              // raw, what came behind them (kWaits)
    size_t block = 0;                // the one that it writes (kShown), or that it repeats
    bool over = false;               // nothing more comes
  };
  struct Life {
    std::map<int, Stream> streams;
    std::deque<Block> blocks;
  };

  Life& Of(uint32_t life);
  std::string OnLine(uint32_t number, Life& life, int rank, Stream& stream, const std::string& raw);
  // What is to be shown of what is held, now that a line more of it, or of the block that it repeats, is known.
  static std::string Settle(Life& life, int rank, Stream& stream);
  // The same for all that repeat the block which `rank` writes.
  std::string SettleOthers(uint32_t number, Life& life, int rank, size_t block);
  // The block of another rank that begins with what is held, or does so far; none: its number.
  static size_t Match(const Life& life, int rank, const Stream& stream);
  // What was held is shown after all, and its lines are a block of its own.
  static std::string LetGo(Life& life, int rank, Stream& stream);
  // The same of a line that is shown in any case.
  static void Follow(Life& life, int rank, Stream& stream, const std::string& line);
  static void Begin(Life& life, int rank, Stream& stream, const std::string& line);
  static void AddLine(Life& life, Stream& stream, const std::string& line);
  // The bytes of a line that is not over may be held as well.
  static bool MayBeHeld(const Life& life, int rank, const Stream& stream);

  std::map<uint32_t, Life> lives_;  // the newest two
};

}  // namespace phalanx::agent

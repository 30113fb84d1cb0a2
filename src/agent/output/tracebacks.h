// A traceback that several ranks of a life write is shown once: what the others write of it becomes one line that says
// who else has it. Nothing else of what ranks write is held or changed, and nothing at all before one rank has written
// a traceback: the first one passes as it comes. Pure.
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
    bool whole = false;  // its exception's line is there
  };
  enum class State {
    kOutside,
    kShown,  // within a traceback that passes as it comes
    kHeld,   // within one that another rank has written as far as it goes
  };
  struct Stream {
    std::string partial;  // of the line that is not over; raw
    size_t emitted = 0;   // of that, what has been shown
    State state = State::kOutside;
    std::string held;  // raw, of whole lines
    size_t lines = 0;  // held
    size_t block = 0;  // the one that it writes (kShown), or that it repeats (kHeld)
  };
  struct Life {
    std::map<int, Stream> streams;
    std::deque<Block> blocks;
  };

  Life& Of(uint32_t life);
  std::string OnLine(Life& life, int rank, Stream& stream, const std::string& raw);
  // The block of another rank that begins with `line`, at that place behind what is held; none: its number.
  static size_t Match(const Life& life, int rank, const Stream& stream, const std::string& line);
  // What was held is shown after all, with this line, and its lines are a block of its own.
  static std::string LetGo(Life& life, int rank, Stream& stream, const std::string& raw, const std::string& line);
  // The same of a line that is shown in any case.
  static void Follow(Life& life, int rank, Stream& stream, const std::string& line);
  static void Begin(Life& life, Stream& stream, Block block, const std::string& line);
  static void AddLine(Life& life, Stream& stream, const std::string& line);
  // The bytes of a line that is not over may be held as well.
  static bool MayBeHeld(const Life& life, int rank, const Stream& stream);

  std::map<uint32_t, Life> lives_;  // the newest two
};

}  // namespace phalanx::agent

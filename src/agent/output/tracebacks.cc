#include "agent/output/tracebacks.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/traceback_text.h"

namespace phalanx::agent {
namespace {

constexpr size_t kLives = 2;
constexpr size_t kShownBytes = 200;  // of an exception's line

// Such a line, or its beginning.
bool MayBeHeader(std::string_view partial) {
  const std::string_view bare = WithoutRank(partial);
  if (kTracebackHeader.substr(0, bare.size()) == bare) return true;
  return partial.starts_with("[rank") && partial.size() < std::string_view("[rank999999]: ").size();
}

}  // namespace

std::string Tracebacks::Feed(uint32_t life_number, int rank, std::string_view bytes) {
  Life& life = Of(life_number);
  Stream& stream = life.streams[rank];
  std::string shown;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == std::string_view::npos) {
      stream.partial.append(bytes);
      break;
    }
    stream.partial.append(bytes.substr(0, end + 1));
    bytes.remove_prefix(end + 1);
    const std::string raw = std::exchange(stream.partial, "");
    const size_t emitted = std::exchange(stream.emitted, 0);
    if (emitted > 0) {
      shown += raw.substr(emitted);
      Follow(life, rank, stream, std::string(WithoutRank(raw)));
    } else {
      shown += OnLine(life, rank, stream, raw);
    }
  }
  if (stream.partial.empty() || MayBeHeld(life, rank, stream)) return shown;
  if (stream.state == State::kHeld) {  // a line too long to be compared
    shown += std::exchange(stream.held, "");
    stream.lines = 0;
    stream.state = State::kOutside;
  }
  shown += stream.partial.substr(stream.emitted);
  if (stream.partial.size() > kMaxBytes) {  // a progress bar never ends its line
    stream.state = State::kOutside;
    stream.partial.resize(1);
  }
  stream.emitted = stream.partial.size();
  return shown;
}

std::string Tracebacks::End(uint32_t life_number, int rank) {
  const auto life = lives_.find(life_number);
  if (life == lives_.end()) return "";
  auto found = life->second.streams.extract(rank);
  if (found.empty()) return "";
  const Stream& stream = found.mapped();
  return stream.held + stream.partial.substr(stream.emitted);
}

Tracebacks::Life& Tracebacks::Of(uint32_t number) {
  Life& life = lives_[number];
  // Those of older lives end by themselves; what they still write is a new beginning.
  while (lives_.size() > kLives && lives_.begin()->first != number) lives_.erase(lives_.begin());
  return life;
}

std::string Tracebacks::OnLine(Life& life, int rank, Stream& stream, const std::string& raw) {
  const std::string line(WithoutRank(raw));
  if (stream.state == State::kShown || (stream.state == State::kOutside && line != kTracebackHeader)) {
    Follow(life, rank, stream, line);
    return raw;
  }
  const size_t match = Match(life, rank, stream, line);
  if (match == life.blocks.size()) return LetGo(life, rank, stream, raw, line);
  stream.state = State::kHeld;
  stream.block = match;
  stream.held += raw;
  ++stream.lines;
  const Block& block = life.blocks[match];
  if (!block.whole || stream.lines < block.lines.size()) return "";
  const std::string& error = block.lines.back();
  stream.state = State::kOutside;
  stream.held.clear();
  stream.lines = 0;
  return fmt::format("[phalanx: rank {} has the same traceback as rank {}: {}{}]\n", rank, block.rank,
                     error.substr(0, kShownBytes), error.size() > kShownBytes ? "..." : "");
}

size_t Tracebacks::Match(const Life& life, int rank, const Stream& stream, const std::string& line) {
  for (size_t i = 0; i < life.blocks.size(); ++i) {
    const Block& block = life.blocks[i];
    if (block.rank == rank || block.lines.size() <= stream.lines || block.lines[stream.lines] != line) continue;
    if (stream.lines == 0) return i;
    const std::vector<std::string>& held = life.blocks[stream.block].lines;
    const auto until = static_cast<std::ptrdiff_t>(stream.lines);
    if (std::equal(block.lines.begin(), block.lines.begin() + until, held.begin())) return i;
  }
  return life.blocks.size();
}

std::string Tracebacks::LetGo(Life& life, int rank, Stream& stream, const std::string& raw, const std::string& line) {
  std::string shown = std::exchange(stream.held, "") + raw;
  Block own{rank, {}, 0, false};
  if (const size_t lines = std::exchange(stream.lines, 0); lines > 0) {
    const std::vector<std::string>& same = life.blocks[stream.block].lines;
    own.lines.assign(same.begin(), same.begin() + static_cast<std::ptrdiff_t>(lines));
  }
  Begin(life, stream, std::move(own), line);
  return shown;
}

void Tracebacks::Follow(Life& life, int rank, Stream& stream, const std::string& line) {
  if (stream.state == State::kShown) return AddLine(life, stream, line);
  if (stream.state == State::kOutside && line == kTracebackHeader) Begin(life, stream, Block{rank, {}, 0, false}, line);
}

void Tracebacks::Begin(Life& life, Stream& stream, Block block, const std::string& line) {
  stream.state = State::kOutside;
  if (life.blocks.size() == kMaxBlocks) return;
  stream.block = life.blocks.size();
  stream.state = State::kShown;
  life.blocks.push_back(std::move(block));
  AddLine(life, stream, line);
}

void Tracebacks::AddLine(Life& life, Stream& stream, const std::string& line) {
  Block& block = life.blocks[stream.block];
  block.lines.push_back(line);
  block.bytes += line.size();
  const bool over = block.lines.size() > 1 && !line.starts_with(' ');
  block.whole = over && block.lines.size() <= kMaxLines && block.bytes <= kMaxBytes;
  if (over || block.lines.size() > kMaxLines || block.bytes > kMaxBytes) stream.state = State::kOutside;
}

bool Tracebacks::MayBeHeld(const Life& life, int rank, const Stream& stream) {
  if (stream.emitted > 0 || stream.state == State::kShown) return false;
  if (stream.state == State::kHeld) return stream.partial.size() < kMaxBytes;
  const bool any = std::ranges::any_of(life.blocks, [rank](const Block& block) { return block.rank != rank; });
  return any && MayBeHeader(stream.partial);
}

}  // namespace phalanx::agent

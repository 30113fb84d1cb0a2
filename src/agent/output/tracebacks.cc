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

// Its last line is its exception's.
bool IsOver(const std::vector<std::string>& lines) { return lines.size() > 1 && !lines.back().starts_with(' '); }

}  // namespace

std::string Tracebacks::Feed(uint32_t life_number, int rank, std::string_view bytes) {
  Life& life = Of(life_number);
  Stream& stream = life.streams[rank];
  std::string shown;
  if (stream.state == State::kWaits) {
    stream.behind.append(bytes);
    if (stream.behind.size() <= kMaxBytes) return "";
    const std::string behind = std::exchange(stream.behind, "");
    shown = LetGo(life, rank, stream);
    return shown + Feed(life_number, rank, behind);
  }
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
      const bool of_block = stream.state == State::kShown;
      shown += raw.substr(emitted);
      Follow(life, rank, stream, std::string(WithoutRank(raw)));
      if (of_block) shown += SettleOthers(life_number, life, rank, stream.block);
    } else {
      shown += OnLine(life_number, life, rank, stream, raw);
    }
    if (stream.state == State::kWaits) return shown + Feed(life_number, rank, bytes);
  }
  if (stream.partial.empty() || MayBeHeld(life, rank, stream)) return shown;
  if (stream.state == State::kHeld) {  // a line too long to be compared
    shown += std::exchange(stream.held, "");
    stream.lines.clear();
    stream.state = State::kOutside;
  }
  shown += stream.partial.substr(stream.emitted);
  if (stream.partial.size() > kMaxBytes) {  // a progress bar never ends its line
    const bool of_block = stream.state == State::kShown;
    stream.state = State::kOutside;
    stream.partial.resize(1);
    if (of_block) {
      life.blocks[stream.block].growing = false;
      shown += SettleOthers(life_number, life, rank, stream.block);
    }
  }
  stream.emitted = stream.partial.size();
  return shown;
}

std::string Tracebacks::End(uint32_t life_number, int rank) {
  const auto life = lives_.find(life_number);
  if (life == lives_.end()) return "";
  const auto found = life->second.streams.find(rank);
  if (found == life->second.streams.end() || found->second.over) return "";
  if (found->second.state == State::kWaits) {
    found->second.over = true;
    return "";
  }
  const Stream stream = std::move(life->second.streams.extract(found).mapped());
  std::string rest = stream.held + stream.partial.substr(stream.emitted);
  if (stream.state != State::kShown) return rest;
  life->second.blocks[stream.block].growing = false;
  return rest + SettleOthers(life_number, life->second, rank, stream.block);
}

Tracebacks::Life& Tracebacks::Of(uint32_t number) {
  Life& life = lives_[number];
  // Those of older lives end by themselves; what they still write is a new beginning.
  while (lives_.size() > kLives && lives_.begin()->first != number) lives_.erase(lives_.begin());
  return life;
}

std::string Tracebacks::OnLine(uint32_t number, Life& life, int rank, Stream& stream, const std::string& raw) {
  const std::string line(WithoutRank(raw));
  if (stream.state == State::kShown) {
    AddLine(life, stream, line);
    return raw + SettleOthers(number, life, rank, stream.block);
  }
  if (stream.state == State::kOutside && line != kTracebackHeader) return raw;
  stream.held += raw;
  stream.lines.push_back(line);
  return Settle(life, rank, stream);
}

std::string Tracebacks::Settle(Life& life, int rank, Stream& stream) {
  const size_t match = Match(life, rank, stream);
  const bool too_much = stream.lines.size() > kMaxLines || stream.held.size() > kMaxBytes;
  if (match == life.blocks.size() || too_much) return LetGo(life, rank, stream);
  stream.block = match;
  const Block& block = life.blocks[match];
  stream.state = IsOver(stream.lines) ? State::kWaits : State::kHeld;
  if (!block.whole || stream.lines.size() < block.lines.size()) return "";
  const std::string& error = block.lines.back();
  stream.state = State::kOutside;
  stream.held.clear();
  stream.lines.clear();
  return fmt::format("[phalanx: rank {} has the same traceback as rank {}: {}{}]\n", rank, block.rank,
                     error.substr(0, kShownBytes), error.size() > kShownBytes ? "..." : "");
}

std::string Tracebacks::SettleOthers(uint32_t number, Life& life, int rank, size_t block) {
  std::string shown;
  for (auto next = life.streams.begin(); next != life.streams.end();) {
    const auto at = next++;
    Stream& stream = at->second;
    const bool repeats = stream.state == State::kHeld || stream.state == State::kWaits;
    if (at->first == rank || !repeats || stream.block != block) continue;
    shown += Settle(life, at->first, stream);
    if (stream.state == State::kWaits || stream.state == State::kHeld) continue;
    if (!stream.behind.empty()) shown += Feed(number, at->first, std::exchange(stream.behind, ""));
    if (std::exchange(stream.over, false)) shown += End(number, at->first);
  }
  return shown;
}

size_t Tracebacks::Match(const Life& life, int rank, const Stream& stream) {
  for (size_t i = 0; i < life.blocks.size(); ++i) {
    const Block& block = life.blocks[i];
    const size_t both = std::min(block.lines.size(), stream.lines.size());
    if (block.rank == rank || (both < stream.lines.size() && !block.growing)) continue;
    if (both == block.lines.size() && IsOver(stream.lines) && !block.whole && !block.growing) continue;
    if (std::equal(block.lines.begin(), block.lines.begin() + static_cast<std::ptrdiff_t>(both), stream.lines.begin()))
      return i;
  }
  return life.blocks.size();
}

std::string Tracebacks::LetGo(Life& life, int rank, Stream& stream) {
  const std::vector<std::string> lines = std::exchange(stream.lines, {});
  Begin(life, rank, stream, lines.front());
  for (size_t i = 1; i < lines.size() && stream.state == State::kShown; ++i) AddLine(life, stream, lines[i]);
  return std::exchange(stream.held, "");
}

void Tracebacks::Follow(Life& life, int rank, Stream& stream, const std::string& line) {
  if (stream.state == State::kShown) return AddLine(life, stream, line);
  if (stream.state == State::kOutside && line == kTracebackHeader) Begin(life, rank, stream, line);
}

void Tracebacks::Begin(Life& life, int rank, Stream& stream, const std::string& line) {
  stream.state = State::kOutside;
  if (life.blocks.size() == kMaxBlocks) return;
  stream.block = life.blocks.size();
  stream.state = State::kShown;
  life.blocks.emplace_back().rank = rank;
  AddLine(life, stream, line);
}

void Tracebacks::AddLine(Life& life, Stream& stream, const std::string& line) {
  Block& block = life.blocks[stream.block];
  block.lines.push_back(line);
  block.bytes += line.size();
  const bool fits = block.lines.size() <= kMaxLines && block.bytes <= kMaxBytes;
  block.whole = IsOver(block.lines) && fits;
  block.growing = !IsOver(block.lines) && fits;
  if (!block.growing) stream.state = State::kOutside;
}

bool Tracebacks::MayBeHeld(const Life& life, int rank, const Stream& stream) {
  if (stream.emitted > 0 || stream.state == State::kShown) return false;
  if (stream.state == State::kHeld) return stream.partial.size() < kMaxBytes;
  const bool any = std::ranges::any_of(life.blocks, [rank](const Block& block) { return block.rank != rank; });
  return any && MayBeHeader(stream.partial);
}

}  // namespace phalanx::agent

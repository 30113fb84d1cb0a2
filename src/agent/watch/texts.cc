#include "agent/watch/texts.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <vector>

#include "agent/watch/kinds.h"

namespace phalanx::agent::watch {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// What stands before the first of `ends`; `text` goes on behind it.
std::string_view Take(std::string_view& text, std::string_view ends) {
  const size_t end = std::min(text.find_first_of(ends), text.size());
  const std::string_view taken = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return taken;
}

std::optional<int64_t> Bounded(std::string_view word, int64_t max) {
  const std::optional<int64_t> value = ParseCount(word);
  return value && *value <= max ? value : std::nullopt;
}

std::vector<std::string_view> Words(std::string_view line) {
  std::vector<std::string_view> words;
  while (!line.empty() && words.size() < 8) words.push_back(Take(line, " "));
  return words;
}

Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

StatusOr<GpuLine> ParseFound(const std::vector<std::string_view>& words) {
  const auto count = Bounded(words[1], kMaxGpus);
  if (!count || (words[2] != "events" && words[2] != "-")) return Bad("expected gpus COUNT events|-");
  return GpuLine(GpusFound{*count, words[2] == "events"});
}

StatusOr<GpuLine> ParseXid(const std::vector<std::string_view>& words) {
  const auto gpu = Bounded(words[1], kMaxGpus - 1);
  const auto number = Bounded(words[2], kMaxXid);
  const auto times = Bounded(words[3], kMaxCount);
  if (!gpu || !number || !times || *times < 1) return Bad("expected xid GPU NUMBER TIMES");
  return GpuLine(GpuXid{*gpu, *number, *times});
}

StatusOr<GpuLine> ParseValue(const std::vector<std::string_view>& words) {
  const auto gpu = Bounded(words[1], kMaxGpus - 1);
  const auto value = Bounded(words[3], kMaxCount);
  if (!gpu || !value || FindKind(words[2]) == nullptr) return Bad("expected value GPU NAME VALUE");
  return GpuLine(GpuValue{*gpu, std::string(words[2]), *value});
}

template <typename Line>
StatusOr<GpuLine> ParseWhy(std::string_view why) {
  const bool printable = std::all_of(why.begin(), why.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable) return Bad("expected printable ASCII");
  return GpuLine(Line{std::string(why)});
}

}  // namespace

std::optional<int64_t> ParseCount(std::string_view text) {
  text = Trim(text);
  int base = 10;
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return static_cast<int64_t>(std::min<uint64_t>(value, kMaxCount));
}

std::optional<int64_t> ParsePortState(std::string_view text) {
  const std::optional<int64_t> state = Bounded(Take(text, ":"), 7);
  if (!state) return std::nullopt;
  constexpr int64_t kActive = 4;
  return *state == kActive ? 1 : 0;
}

std::optional<int64_t> ParseNvmeState(std::string_view text) {
  text = Trim(text);
  if (text.empty()) return std::nullopt;
  return text == "live" ? 1 : 0;
}

std::optional<int64_t> ParseInterrupts(std::string_view text, std::string_view name) {
  while (!text.empty()) {
    std::string_view line = Take(text, "\n");
    if (Trim(Take(line, ":")) != name) continue;
    int64_t sum = 0;
    while (true) {
      line = Trim(line);
      const std::optional<int64_t> count = ParseCount(Take(line, " "));
      if (!count) return sum;
      sum = std::min(kMaxCount, sum + *count);
    }
  }
  return std::nullopt;
}

StatusOr<GpuLine> ParseGpuLine(std::string_view line) {
  if (line.size() > kMaxGpuLineBytes) return Bad("longer than any of its lines");
  if (line == "read") return GpuLine(GpusRead{});
  if (line.starts_with("deaf ")) return ParseWhy<GpusDeaf>(line.substr(5));
  if (line.starts_with("unwatched ")) return ParseWhy<GpusUnwatched>(line.substr(10));
  const std::vector<std::string_view> words = Words(line);
  if (words.size() == 3 && words[0] == "gpus") return ParseFound(words);
  if (words.size() == 4 && words[0] == "xid") return ParseXid(words);
  if (words.size() == 4 && words[0] == "value") return ParseValue(words);
  return Bad("no line that is known");
}

}  // namespace phalanx::agent::watch

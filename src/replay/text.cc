#include "replay/text.h"

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <utility>

#include "base/crc/crc32.h"

namespace phalanx::replay {

std::string OneLine(const google::protobuf::Message& message) {
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string line;
  printer.PrintToString(message, &line);
  if (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::string Clipped(std::string line) {
  if (line.size() <= kMaxLineBytes) return line;
  const size_t bytes = line.size();
  const uint32_t crc = Crc32(0, line.data(), bytes);
  line.resize(kMaxLineBytes);
  return line + fmt::format("... ({} bytes, CRC-32 {:08x})", bytes, crc);
}

v1::ReplayDecision DecisionOf(std::string action, const std::string& reason) {
  v1::ReplayDecision decision;
  decision.set_action(Clipped(std::move(action)));
  decision.set_reason(Clipped(reason));
  return decision;
}

std::optional<int> FirstDifference(const v1::ReplayDecisions& recorded, const v1::ReplayDecisions& replayed) {
  const int both = std::min(recorded.decisions_size(), replayed.decisions_size());
  for (int i = 0; i < both; ++i) {
    const v1::ReplayDecision& before = recorded.decisions(i);
    const v1::ReplayDecision& now = replayed.decisions(i);
    if (before.action() != now.action() || before.reason() != now.reason()) return i;
  }
  if (recorded.decisions_size() == replayed.decisions_size()) return std::nullopt;
  return both;
}

}  // namespace phalanx::replay

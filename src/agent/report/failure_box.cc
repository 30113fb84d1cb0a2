#include "agent/report/failure_box.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "agent/core/core.h"
#include "base/json_text.h"

namespace phalanx::agent {
namespace {

using nlohmann::json;

constexpr int kWidth = 100;
constexpr int kMaxTailLines = 20;
// As the master says it of a hang (src/master/core/stalls.cc).
constexpr const char* kHangTimeoutText = ": --hang-timeout=";

json ParseObject(const std::string& text) {
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  return parsed.is_object() ? parsed : json::object();
}

std::string TimeText(int64_t unix_ms) {
  const time_t seconds = unix_ms / 1000;
  tm parts{};
  gmtime_r(&seconds, &parts);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:03} UTC", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec, unix_ms % 1000);
}

std::string End(const v1::WorkerExited& e) {
  std::string text = e.signal() != 0
                         ? fmt::format("{} (signal {}), pid {}", DescribeEnd(0, e.signal()), e.signal(), e.pid())
                         : fmt::format("exit code {}, pid {}", e.exit_code(), e.pid());
  // With 0 it is told of as a cause alone: where it went is all that there is to know.
  if (e.signal() == 0 && e.exit_code() == 0 && e.steps() > 0) text += fmt::format(", after step {}", e.steps());
  if (!e.killed_by().empty()) text += fmt::format(", killed by {}", e.killed_by());
  return e.end_note().empty() ? text : fmt::format("{} ({})", text, e.end_note());
}

// The last lines of `text`, indented.
std::string Tail(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  size_t begin = text.size();
  for (int lines = 0; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && ++lines == kMaxTailLines) break;
  }
  std::string out;
  for (std::string_view rest = text.substr(begin); !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    out += fmt::format("    {}\n", rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return out;
}

std::string Where(const v1::Failure& f) {
  return fmt::format("rank {} (local rank {} of node {}, {})", f.rank(), f.local_rank(), f.group_rank(),
                     f.hostname().empty() ? f.address() : fmt::format("{} {}", f.hostname(), f.address()));
}

std::string Told(const std::string& which, const v1::Failure& f) {
  const v1::WorkerExited& e = f.exited();
  const RecordedError error = ParseErrorJson(e.error_json());
  std::string out = fmt::format("{}: {}\n  time:  {}\n  end:   {}\n", which, Where(f), TimeText(e.unix_ms()), End(e));
  if (!e.blamed_on().empty()) out += fmt::format("  blame: {}\n", e.blamed_on());
  if (!error.message.empty()) out += fmt::format("  error: {}\n", error.message);
  if (!error.traceback.empty()) {
    out += fmt::format("  traceback:\n{}", Tail(error.traceback));
  } else if (!e.last_words().empty()) {
    out += fmt::format("  last words on stderr:\n{}", Tail(e.last_words()));
  } else if (e.signal() == 0 && e.exit_code() != 0) {
    out += "  no traceback: decorate the script's main with torch.distributed.elastic's @record to keep one\n";
  }
  return out;
}

}  // namespace

RecordedError ParseErrorJson(const std::string& text) {
  const json object = ParseObject(text);
  auto it = object.find("message");
  if (it == object.end()) return {};
  if (it->is_string()) return {it->get<std::string>(), ""};
  if (!it->is_object()) return {};
  RecordedError error{TextIn(*it, "message"), ""};
  auto extra = it->find("extraInfo");
  if (extra != it->end() && extra->is_object()) error.traceback = TextIn(*extra, "py_callstack");
  return error;
}

std::string FailureBox(const v1::Finish& finish, const std::string& script) {
  const std::string bold(kWidth, '=');
  const std::string thin(kWidth, '-');
  std::string out = fmt::format("{}\n{} FAILED: {}\n", bold, script, finish.reason());
  if (finish.has_first_cause()) out += fmt::format("{}\n{}", thin, Told("First cause", finish.first_cause()));
  // One that ended well has nothing to say; who lost it may have.
  const v1::WorkerExited& cause = finish.first_cause().exited();
  const bool ended_early = finish.has_first_cause() && cause.exit_code() == 0 && cause.signal() == 0;
  if (ended_early && finish.others_size() > 0) out += fmt::format("{}\n{}", thin, Told("Then", finish.others(0)));
  const int told = ended_early ? 1 : 0;
  if (finish.others_size() > told) out += fmt::format("{}\nOthers of the same round:\n", thin);
  for (int i = told; i < finish.others_size(); ++i) {
    const v1::Failure& other = finish.others(i);
    const std::string& blame = other.exited().blamed_on();
    out += fmt::format("  {}: {}{}\n", Where(other), End(other.exited()), blame.empty() ? "" : "; blame: " + blame);
  }
  return out + bold + "\n";
}

bool IsHang(const v1::Finish& finish) {
  return finish.exit_code() != 0 && !finish.has_first_cause() &&
         finish.reason().find(kHangTimeoutText) != std::string::npos;
}

std::string HangBox(const v1::Finish& finish, const std::string& script, uint32_t rank_base,
                    const std::vector<v1::RankStatus>& ranks) {
  const std::string bold(kWidth, '=');
  std::string out = fmt::format("{}\n{} FAILED: {}\n", bold, script, finish.reason());
  if (!ranks.empty()) out += fmt::format("{}\nRanks of this node:\n", std::string(kWidth, '-'));
  int64_t foremost = 0;
  for (const v1::RankStatus& rank : ranks) foremost = std::max(foremost, rank.step());
  for (const v1::RankStatus& rank : ranks) {
    const std::string since = rank.quiet_ms() < 0 ? "it has not begun"
                                                  : fmt::format("no step for {}.{} s", rank.quiet_ms() / 1'000,
                                                                rank.quiet_ms() % 1'000 / 100);
    const std::string behind = rank.step() < foremost ? fmt::format(", {} behind", foremost - rank.step()) : "";
    out += fmt::format("  rank {} (local rank {}, pid {}): at step {}{}, {}\n", rank_base + rank.local_rank(),
                       rank.local_rank(), rank.pid(), rank.step(), behind, since);
  }
  return out + bold + "\n";
}

std::string OwnErrorJson(const v1::Finish& finish) {
  const v1::WorkerExited& e = finish.first_cause().exited();
  json object = ParseObject(e.error_json());
  int code = e.signal() != 0 ? -e.signal() : e.exit_code();
  if (code == 0) code = finish.exit_code();  // it ended early
  auto it = object.find("message");
  if (it == object.end()) {
    object["message"] = {{"message", finish.reason()},
                         {"extraInfo", {{"timestamp", std::to_string(e.unix_ms() / 1000)}, {"py_callstack", ""}}},
                         {"errorCode", code}};
  } else if (it->is_object()) {
    (*it)["errorCode"] = code;
  } else {
    object["errorCode"] = code;
  }
  return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace phalanx::agent

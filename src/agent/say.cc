#include "agent/say.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "agent/failure_box.h"

namespace phalanx::agent {
namespace {

using nlohmann::ordered_json;

const char* Name(Level level) {
  switch (level) {
    case Level::kInfo:
      return "info";
    case Level::kWarning:
      return "warning";
    case Level::kError:
      return "error";
  }
  return "";
}

ordered_json Object(const Speaker& speaker, Level level, std::string_view text, int64_t unix_ms) {
  return {{"unix_ms", unix_ms},       {"level", Name(level)},         {"program", "phalanx-run"},
          {"job_id", speaker.job_id}, {"hostname", speaker.hostname}, {"message", text}};
}

std::string Line(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json Failed(const v1::Failure& failure) {
  const v1::WorkerExited& exited = failure.exited();
  const RecordedError error = ParseErrorJson(exited.error_json());
  ordered_json object = {
      {"rank", failure.rank()},         {"local_rank", failure.local_rank()}, {"group_rank", failure.group_rank()},
      {"hostname", failure.hostname()}, {"address", failure.address()},       {"pid", exited.pid()},
      {"unix_ms", exited.unix_ms()}};
  if (exited.signal() != 0) {
    object["signal"] = exited.signal();
  } else {
    object["exit_code"] = exited.exit_code();
  }
  if (!error.message.empty()) object["error"] = error.message;
  if (!error.traceback.empty()) object["traceback"] = error.traceback;
  if (!exited.killed_by().empty()) object["killed_by"] = exited.killed_by();
  if (!exited.end_note().empty()) object["end_note"] = exited.end_note();
  if (!exited.last_words().empty()) object["last_words"] = exited.last_words();
  return object;
}

}  // namespace

std::string SayLine(const Speaker& speaker, Level level, std::string_view text, int64_t unix_ms) {
  if (speaker.format == LogFormat::kText) return fmt::format("phalanx-run: {}\n", text);
  return Line(Object(speaker, level, text, unix_ms));
}

std::string SayFailure(const Speaker& speaker, const v1::Finish& finish, const std::string& script, int64_t unix_ms) {
  if (speaker.format == LogFormat::kText) return FailureBox(finish, script);
  ordered_json object = Object(speaker, Level::kError, finish.reason(), unix_ms);
  object["script"] = script;
  object["first_cause"] = Failed(finish.first_cause());
  object["others"] = ordered_json::array();
  for (const v1::Failure& other : finish.others()) object["others"].push_back(Failed(other));
  return Line(object);
}

}  // namespace phalanx::agent

#include "agent/report/say.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "agent/report/failure_box.h"
#include "agent/report/failure_json.h"

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

ordered_json Failed(const v1::Failure& failure) {
  ordered_json object = FailureJson(failure);
  const RecordedError error = ParseErrorJson(failure.exited().error_json());
  if (!error.message.empty()) object["error"] = error.message;
  if (!error.traceback.empty()) object["traceback"] = error.traceback;
  return object;
}

}  // namespace

std::string SayLine(const Speaker& speaker, Level level, std::string_view text, int64_t unix_ms) {
  if (speaker.format == LogFormat::kText) return fmt::format("phalanx-run: {}\n", text);
  return JsonLine(Object(speaker, level, text, unix_ms));
}

std::string SayFailure(const Speaker& speaker, const v1::Finish& finish, const std::string& script, int64_t unix_ms) {
  if (speaker.format == LogFormat::kText) return FailureBox(finish, script);
  ordered_json object = Object(speaker, Level::kError, finish.reason(), unix_ms);
  object["script"] = script;
  object["first_cause"] = Failed(finish.first_cause());
  object["others"] = ordered_json::array();
  for (const v1::Failure& other : finish.others()) object["others"].push_back(Failed(other));
  return JsonLine(object);
}

std::string SayHang(const Speaker& speaker, const v1::Finish& finish, const std::string& script, uint32_t rank_base,
                    const std::vector<v1::RankStatus>& ranks, int64_t unix_ms) {
  if (speaker.format == LogFormat::kText) return HangBox(finish, script, rank_base, ranks);
  ordered_json object = Object(speaker, Level::kError, finish.reason(), unix_ms);
  object["script"] = script;
  object["ranks"] = ordered_json::array();
  for (const v1::RankStatus& rank : ranks) {
    object["ranks"].push_back({{"rank", rank_base + rank.local_rank()},
                               {"local_rank", rank.local_rank()},
                               {"pid", rank.pid()},
                               {"step", rank.step()},
                               {"quiet_ms", rank.quiet_ms()}});
  }
  return JsonLine(object);
}

}  // namespace phalanx::agent

#include "agent/report/failure_json.h"

namespace phalanx::agent {

using nlohmann::ordered_json;

ordered_json FailureJson(const v1::Failure& failure) {
  const v1::WorkerExited& exited = failure.exited();
  ordered_json object = {{"rank", failure.rank()},
                         {"local_rank", failure.local_rank()},
                         {"group_rank", failure.group_rank()},
                         {"hostname", failure.hostname()},
                         {"address", failure.address()},
                         {"pid", exited.pid()},
                         {"unix_ms", exited.unix_ms()},
                         {"exit_code", exited.signal() != 0 ? -exited.signal() : exited.exit_code()}};
  if (!exited.killed_by().empty()) object["killed_by"] = exited.killed_by();
  if (!exited.end_note().empty()) object["end_note"] = exited.end_note();
  if (!exited.blamed_on().empty()) object["blamed_on"] = exited.blamed_on();
  if (exited.peak_resident_bytes() > 0) object["peak_resident_bytes"] = exited.peak_resident_bytes();
  if (!exited.last_words().empty()) object["last_words"] = exited.last_words();
  return object;
}

std::string JsonLine(const ordered_json& object) {
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace phalanx::agent

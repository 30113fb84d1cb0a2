// What --report-file holds when phalanx-run ends (docs/formats/job-report.md), for programs that started it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// A worker of this node's last round.
struct LocalWorker {
  std::string error_file;
  int64_t pid = 0;          // 0: it has not ended by itself
  bool left_error = false;  // in error_file
};

struct JobEnd {
  int exit_code = 0;
  std::string job_id;
  std::string script;
  uint32_t local_world_size = 0;
  std::optional<v1::StartRound> round;  // the last one that this node took part in
  bool in_round = false;                // whether that was the job's last one, too; false: this node ends as a spare
  std::map<int, LocalWorker> workers;   // of that round, by local rank
  std::optional<v1::Finish> finish;     // what the master said of the end
};

std::string JobReport(const JobEnd& end);

}  // namespace phalanx::agent

// Where torchrun puts the files of a worker: <log dir>/<run id>_<random>/attempt_<N>/<local rank>/, with stdout.log,
// stderr.log and error.json in it; the run id as JobDirectoryName has it, which leaves a usual one as it is. Without
// --log-dir in a fresh directory torchelastic_<random> under TMPDIR.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "agent/flags/config.h"
#include "base/status.h"

namespace phalanx::agent {

class LogDirs {
 public:
  // `tmp_dir`: TMPDIR, or /tmp.
  LogDirs(const LaunchConfig& config, std::string tmp_dir);
  LogDirs(const LogDirs&) = delete;
  LogDirs& operator=(const LogDirs&) = delete;
  // Removes those directories of a self-made one that hold nothing.
  ~LogDirs();

  // --log-dir=/dev/null: no files at all.
  bool none() const { return log_dir_ == "/dev/null"; }

  // The directory of this run, made if need be; not where none().
  StatusOr<std::string> RunDir();

  // The worker's directory, made if need be. An error where it cannot be; not where none().
  StatusOr<std::string> Of(uint32_t restart_count, int local_rank);

 private:
  const std::string log_dir_;
  const std::string run_id_;
  const std::string tmp_dir_;
  std::string self_made_;  // torchelastic_<random>
  std::string run_dir_;
  std::set<std::string> made_;
};

}  // namespace phalanx::agent

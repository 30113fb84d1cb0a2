// Which failure was the first cause. Pure.
//
// When a rank dies, its peers fail in their next collective: they report broken connections, sometimes before the
// kernel has finished tearing down the one that died. Such collateral errors never outrank an own death. Among equals
// the one that was reported first counts: one clock (the master's order of arrival) instead of one for each node.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace phalanx::master {

constexpr size_t kMaxErrorJsonBytes = 64 * 1024;
constexpr size_t kMaxLastWordsBytes = 16 * 1024;
constexpr size_t kMaxEndTextBytes = 512;
// Failures of one round that are kept; more say nothing new.
constexpr size_t kMaxFailures = 17;

// How one worker ended by itself.
struct WorkerExit {
  uint32_t local_rank = 0;
  int64_t pid = 0;
  int32_t exit_code = 0;  // counts where signal is 0
  int32_t signal = 0;
  bool script_started = false;
  int64_t steps = 0;
  int64_t unix_ms = 0;
  std::string error_json;           // torch's error file as the worker left it
  std::string last_words;           // tail of its stderr
  int64_t peak_resident_bytes = 0;  // 0: not known
  std::string killed_by;            // "the out-of-memory killer ..."; empty: not known
  std::string end_note;             // a remark about the end
};

struct Failure {
  uint32_t rank = 0;
  uint32_t group_rank = 0;
  std::string node;  // as people know it
  std::string hostname;
  std::string address;
  WorkerExit exit;
  bool collateral = false;
};

// Whether the worker only suffered from another's end: a table of what torch, gloo and NCCL say when a peer is gone.
bool IsCollateral(const WorkerExit& exit);

// Adds `failure`, keeping at most kMaxFailures: an own death displaces the last collateral one.
void AddFailure(std::vector<Failure>& failures, Failure failure);

// Index of the first cause; `failures` is not empty.
size_t FirstCause(const std::vector<Failure>& failures);

bool AllCollateral(const std::vector<Failure>& failures);

// "rank 3 died (SIGKILL) on node 127.0.0.2", "rank 0 failed (exit code 3) on node a", "rank 1 was killed by the
// out-of-memory killer on node a"; a remark about the end follows in brackets.
std::string Describe(const Failure& failure);

}  // namespace phalanx::master

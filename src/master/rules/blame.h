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

#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

constexpr size_t kMaxErrorJsonBytes = 64 * 1024;
constexpr size_t kMaxLastWordsBytes = 16 * 1024;
constexpr size_t kMaxEndTextBytes = 512;
// Failures of one round that are kept; more say nothing new.
constexpr size_t kMaxFailures = 17;

// A worker's end that was not wanted.
struct Failure {
  v1::Failure told;  // as agents hear of it; what its agent said, within the bounds above
  std::string node;  // as people know it
  bool collateral = false;
};

// The message of torch's error file, all of it where that is another one's, "" where there is none.
std::string RecordedMessage(const std::string& error_json);

// Whether the worker only suffered from another's end: a table of what torch, gloo and NCCL say when a peer is gone.
bool IsCollateral(const v1::WorkerExited& exit);

// It has ended with 0. Where others trained on, they have lost it by that, and it did not fail: its failure is
// collateral, and goes before that of the others.
bool EndedEarly(const v1::WorkerExited& exit);

// Whether somebody else has ended the worker: a person, the kernel for want of memory, whoever runs the machine.
bool WasKilled(const v1::WorkerExited& exit);

// Adds `failure`, keeping at most kMaxFailures: an own death displaces the last collateral one.
void AddFailure(std::vector<Failure>& failures, Failure failure);

// Index of the first cause; `failures` is not empty. Where nobody failed by itself it is one whose node's hardware
// explains its end, else one that ended well before its peers were lost.
size_t FirstCause(const std::vector<Failure>& failures);

bool AllCollateral(const std::vector<Failure>& failures);

// "rank 3 died (SIGKILL) on node 127.0.0.2", "rank 0 failed (exit code 3) on node a", "rank 1 was killed by the
// out-of-memory killer on node a", "rank 1 ended early (exit code 0, after step 3) on node a", "rank 17 died (SIGABRT)
// on node a, 0.4 s after XID 79 (GPU has fallen off the bus) on GPU 3"; a remark about the end
// follows in brackets, then the exception: "...: ValueError: bad sample".
std::string Describe(const Failure& failure);
// ... without the exception, which costs the reading of what the worker has left.
std::string DescribeEnd(const Failure& failure);
// "rank 1 ended early (exit code 0, after step 3)". `steps`: 0: it has made none.
std::string EarlyEndText(int64_t rank, int64_t steps);
// "rank 1 ended early (exit code 0) on node a, then rank 0 failed (exit code 1) on node a: RuntimeError: ...": the
// first cause, and, where that did not fail itself, who did. `failures` is not empty.
std::string DescribeCause(const std::vector<Failure>& failures);

}  // namespace phalanx::master

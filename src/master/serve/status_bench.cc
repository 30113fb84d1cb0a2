// What `phalanx status` of a large job costs the master's one sequence.
//
//   phalanx-status-bench NODES RANKS_OF_NODE ROUNDS
//
// One line a round: microseconds until the reply is made of the job's state, until it is bytes, for an answer that has
// to be made, and for one that is given again.
#include <fmt/format.h>
#include <stdlib.h>

#include <string>

#include "base/check.h"
#include "base/clock.h"
#include "master/core/convert.h"
#include "master/serve/admin_desk.h"
#include "master/serve/large_job.h"

namespace phalanx::master {
namespace {

double MicrosecondsSince(int64_t begin_ns) { return static_cast<double>(MonotonicNs() - begin_ns) / 1e3; }

double Answer(AdminDesk& desk, Instant now) {
  grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer reply;
  const int64_t begin_ns = MonotonicNs();
  desk.AnswerStatus(
      {wire::Role::kViewer, ""}, request, reply,
      [](const grpc::Status& status) { PHX_CHECK(status.ok(), "no answer"); }, now);
  return MicrosecondsSince(begin_ns);
}

void OneRound(const JobState& job, AdminDesk& desk, Instant now) {
  int64_t begin_ns = MonotonicNs();
  const v1::StatusReply reply = StatusOf(job, now);
  const double reply_us = MicrosecondsSince(begin_ns);
  begin_ns = MonotonicNs();
  const std::string bytes = reply.SerializeAsString();
  const double bytes_us = MicrosecondsSince(begin_ns);
  const double made_us = Answer(desk, now);
  fmt::print("{:.1f} {:.1f} {:.1f} {:.1f} {}\n", reply_us, bytes_us, made_us, Answer(desk, now), bytes.size());
}

}  // namespace
}  // namespace phalanx::master

int main(int argc, char** argv) {
  PHX_CHECK(argc == 4, "usage: phalanx-status-bench NODES RANKS_OF_NODE ROUNDS");
  using namespace phalanx::master;
  const JobState job = LargeJob(static_cast<uint32_t>(atoi(argv[1])), static_cast<uint32_t>(atoi(argv[2])));
  const RecordKeeper record(0);
  AdminDesk desk("job", job, record);
  constexpr int64_t kApartMs = 3'600'000;  // each is made anew
  for (int round = 1; round <= atoi(argv[3]); ++round) OneRound(job, desk, round * kApartMs);
}

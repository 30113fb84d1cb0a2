// A journal as bytes: what is read from it must be a state that can be resumed, stepped, told and saved again. The
// checksum is left out: a fuzzer would not come past it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "master/core/admit.h"
#include "master/core/convert.h"
#include "master/core/test_hello.h"
#include "master/journal/journal.h"
#include "master/journal/snapshot.h"

namespace phalanx::master {
namespace {

constexpr Instant kNow = 1'000'000'000;

void Attach(JobState& state, uint64_t session, Instant now) {
  v1::Hello hello = TestHello("fuzzed", 1, *state.spec);
  if (state.round) hello.mutable_live_round()->set_epoch(state.round->epoch);
  hello.mutable_live_round()->set_group_world_size(1);
  Step(state, AttachedOf(session, FirstMessage(std::move(hello)), ""), now);
}

void Live(JobState state) {
  Resume(state, kNow);
  uint64_t session = 0;
  for (Instant now = kNow; now < kNow + 10'000; now += 1'500) {
    if (state.spec) Attach(state, ++session, now);
    Step(state, Tick{}, now);
    StatusOf(state, now);
    PHX_CHECK(NextDeadline(state) > now, "a deadline that a Tick does not consume");
  }
  PHX_CHECK(RestoreState(SaveState(state, kNow + 10'000), "job", kNow + 10'000).ok(), "a snapshot of its own");
}

}  // namespace
}  // namespace phalanx::master

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::master;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const phalanx::StatusOr<std::string> payload = UnwrapJournal(bytes);
  PHX_CHECK(!payload.ok() || WrapJournal(*payload) == bytes, "a journal that is written otherwise than it was read");
  const phalanx::StatusOr<JobState> state = RestoreState(bytes, "job", kNow);
  if (state.ok()) Live(*state);
  return 0;
}

#include "master/replay/start.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>

#include "master/core/admit.h"
#include "master/core/door.h"
#include "master/core/succession.h"
#include "master/journal/snapshot.h"

namespace phalanx::master {

void TakeOwnSpec(JobState& restored, const v1::JobSpec& own) {
  restored.SetSpec(own);
  restored.spec_of_first_node = false;
}

void TakeItsPlace(JobState& state, const v1::MasterStart& master, Instant now) {
  state.port = master.port();
  state.term = std::max(state.term, master.term());
  state.succession = master.succession();
  state.any_job_id = master.any_job_id();
  state.open = master.open();
  if (master.has_epoch()) state.epoch = master.epoch();
  state.at_endpoint = master.at_endpoint();
  if (state.at_endpoint) state.voters.CountEnded();
  if (master.await_platform_ms() > 0) state.platform.await_until = now + master.await_platform_ms();
  if (master.candidate_term() > 0) state.candidacy = CandidacyOf(master.candidate_term(), master.before_broke());
}

StatusOr<JobState> StateOf(const v1::ReplayStart& start) {
  const v1::MasterStart& master = start.master();
  std::optional<v1::JobSpec> own;
  if (master.has_spec()) AdmitSpec(own.emplace(master.spec()));
  if (const auto fault = own ? SpecFault(*own) : std::nullopt) {
    return absl::DataLossError(fmt::format("the log contradicts itself: {}", *fault));
  }
  JobState state;
  state.job_id = start.job_id();
  if (master.has_snapshot()) {
    PHX_ASSIGN_OR_RETURN(state, RestoreState(master.snapshot(), start.job_id(), start.now_ms()));
    if (own) TakeOwnSpec(state, *own);
  } else if (own) {
    state.SetSpec(*own);
  }
  state.master_id = master.master_id();
  if (master.has_before()) {
    PHX_ASSIGN_OR_RETURN(const JobState before, RestoreState(master.before(), start.job_id(), start.now_ms()));
    BewareOf(state, before, start.now_ms());
  }
  TakeItsPlace(state, master, start.now_ms());
  return state;
}

}  // namespace phalanx::master

#include "master/core/invariants.h"

#include <gtest/gtest.h>

#include "master/core/job_fixture.h"

namespace phalanx::master {
namespace {

TEST(InvariantsDeathTest, AContradictionEndsTheProgramWithItsValues) {
  JobFixture job(2, 2);
  job.Attach("a");
  job.Attach("b");
  CheckInvariants(job.state);

  JobState state = job.state;
  state.CountNode(state.nodes.begin()->second);
  EXPECT_DEATH(CheckInvariants(state), "3 candidates of 2 nodes");
  state = job.state;
  state.highest_epoch = 0;
  EXPECT_DEATH(Step(state, Tick{}, job.now), "epoch 1 is live, and 0 the highest");
  state = job.state;
  state.round.reset();
  EXPECT_DEATH(CheckInvariants(state), "the job runs without a round");
  state = job.state;
  state.phase = Phase::kBlaming;
  EXPECT_DEATH(CheckInvariants(state), "nothing has failed");
}

}  // namespace
}  // namespace phalanx::master

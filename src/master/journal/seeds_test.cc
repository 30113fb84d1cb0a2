// What journal_fuzzer begins with: what masters keep of jobs at several moments.
#include <gtest/gtest.h>

#include <string>

#include "base/test_seeds.h"
#include "master/core/job_fixture.h"
#include "master/core/test_random_life.h"
#include "master/journal/journal.h"
#include "master/journal/snapshot.h"

namespace phalanx::master {
namespace {

const char* const kCorpus = "master/journal/corpus";

void ExpectTaken(const std::string& name, const JobState& state, Instant now) {
  const StatusOr<JobState> restored = RestoreState(SeedOf(kCorpus, name, SaveState(state, now)), "job", now);
  ASSERT_TRUE(restored.ok()) << name << ": " << restored.status();
  EXPECT_EQ(restored->highest_epoch, state.highest_epoch) << name;
}

JobFixture Training() {
  JobFixture job(2, 3, 2);
  for (const char* name : {"a", "b", "c"}) job.Attach(name);
  job.AllStep();
  return job;
}

TEST(JournalSeeds, OfAJobThatTrains) {
  const JobFixture job = Training();
  ExpectTaken("trains", job.state, job.now);
  const std::string file = SeedOf(kCorpus, "file", WrapJournal(SaveState(job.state, job.now)));
  const StatusOr<std::string> payload = UnwrapJournal(file);
  ASSERT_TRUE(payload.ok()) << payload.status();
  EXPECT_EQ(WrapJournal(*payload), file);
}

TEST(JournalSeeds, OfAJobThatLostARankAndANode) {
  JobFixture job = Training();
  job.Kill(1, 0);
  job.AllStep();
  job.Detach(2);
  job.Pass(60'000);
  ExpectTaken("lost_a_node", job.state, job.now);
}

TEST(JournalSeeds, OfAJobThatFailed) {
  JobFixture job(1, 1, 0);
  const uint64_t only = job.Attach("a");
  job.Exit(only, JobFixture::Ended(0, 3));
  job.Pass(1'000);
  ExpectTaken("failed", job.state, job.now);
}

TEST(JournalSeeds, OfALifeByChance) {
  RandomLife life(11);
  for (int i = 0; i < 200; ++i) life.Act();
  ExpectTaken("by_chance", life.job().state, life.job().now);
}

}  // namespace
}  // namespace phalanx::master

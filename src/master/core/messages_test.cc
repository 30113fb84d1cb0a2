#include "master/core/messages.h"

#include <gtest/gtest.h>

#include <memory>

namespace phalanx::master {
namespace {

TEST(Messages, CarryWhatWasDecided) {
  JobState job("job", DefaultSpec());
  job.master_id = "master";
  Node node;
  node.lease_ms = 3'000;
  node.beat_interval_ms = 1'000;
  const v1::Welcome welcome = WelcomeTo(job, node).welcome();
  EXPECT_EQ(welcome.master_id(), "master");
  EXPECT_EQ(welcome.job_id(), "job");
  EXPECT_EQ(welcome.lease_ms(), 3'000);
  EXPECT_EQ(welcome.beat_interval_ms(), 1'000);

  EXPECT_EQ(RefusedFor("why").refused().sentence(), "why");
  EXPECT_EQ(NoticeOf("text").notice().text(), "text");

  const v1::HoldRound hold = HoldOf(4, "why").hold_round();
  EXPECT_EQ(hold.epoch(), 4U);
  EXPECT_EQ(hold.reason(), "why");

  Round round;
  round.epoch = 4;
  round.rescale_why = "why";
  round.safe_step = 120;
  const v1::AnnounceRescale announce = AnnouncementOf(round, false).announce_rescale();
  EXPECT_EQ(announce.epoch(), 4U);
  EXPECT_EQ(announce.reason(), "why");
  EXPECT_EQ(announce.at_step(), 120);
  EXPECT_FALSE(announce.node_leaves());
  EXPECT_TRUE(AnnouncementOf(round, true).announce_rescale().node_leaves());

  Outcome outcome;
  outcome.exit_code = 7;
  outcome.reason = "why";
  outcome.failures.resize(3);
  outcome.failures[0].told.set_rank(5);
  const v1::Finish finish = FinishOf(outcome).finish();
  EXPECT_EQ(finish.exit_code(), 7);
  EXPECT_EQ(finish.reason(), "why");
  EXPECT_EQ(finish.first_cause().rank(), 5U);
  EXPECT_EQ(finish.others_size(), 2);
}

TEST(Messages, AreKnownByWhatTheyTell) {
  v1::MasterMessage start;
  start.mutable_start_round()->set_epoch(4);
  const Action round = Send{7, std::make_shared<const v1::MasterMessage>(start)};
  EXPECT_EQ(StartRoundIn(round)->epoch(), 4U);
  EXPECT_EQ(FinishIn(round), nullptr);
  EXPECT_EQ(StartRoundIn(Drop{7}), nullptr);
  EXPECT_FALSE(EndsStream(start));
  EXPECT_TRUE(EndsStream(RefusedFor("why")));
  EXPECT_TRUE(EndsStream(FinishOf(Outcome())));
}

}  // namespace
}  // namespace phalanx::master

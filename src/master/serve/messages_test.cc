#include "master/serve/messages.h"

#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

TEST(Messages, CarryTheDecisionAndItsReason) {
  const v1::Welcome welcome = MessageOf(SendWelcome{7, 3'000, 1'000}, "master", "job").welcome();
  EXPECT_EQ(welcome.master_id(), "master");
  EXPECT_EQ(welcome.job_id(), "job");
  EXPECT_EQ(welcome.lease_ms(), 3'000);
  EXPECT_EQ(welcome.beat_interval_ms(), 1'000);

  EXPECT_EQ(MessageOf(SendRefused{7}, "why").refused().sentence(), "why");
  EXPECT_EQ(MessageOf(SendNotice{7}, "text").notice().text(), "text");

  const v1::HoldRound hold = MessageOf(SendHold{7, 4}, "why").hold_round();
  EXPECT_EQ(hold.epoch(), 4U);
  EXPECT_EQ(hold.reason(), "why");

  const v1::AnnounceRescale announce = MessageOf(SendAnnounceRescale{7, 4, 120}, "why").announce_rescale();
  EXPECT_EQ(announce.epoch(), 4U);
  EXPECT_EQ(announce.reason(), "why");
  EXPECT_EQ(announce.at_step(), 120);

  SendCheckpoint order{7, {}};
  order.order.set_dir("/data/run7");
  EXPECT_EQ(MessageOf(order, "").checkpoint().dir(), "/data/run7");
}

}  // namespace
}  // namespace phalanx::master

#include "agent/watch/blame.h"

#include <gtest/gtest.h>

#include <string>

namespace phalanx::agent::watch {
namespace {

class BlameTest : public testing::Test {
 protected:
  void Xid(int64_t gpu, int64_t number, Instant at) {
    for (const Found& found : OnXid(differ_, gpu, number, 1, at, 0)) recent_.Note(found);
  }
  void Read(const char* name, const std::string& device, int64_t value, Instant at) {
    for (const Found& found : Compare(differ_, {{FindKind(name), device, "/sys/x", value}}, at, 0)) recent_.Note(found);
  }

  Differ differ_;
  Recent recent_{15'000};
};

TEST_F(BlameTest, AnXidShortlyBeforeExplainsAnEnd) {
  Xid(3, 79, 10'000);
  EXPECT_EQ(recent_.Explain(10'400), "XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  EXPECT_EQ(recent_.Explain(10'000 + kExplainsMs), "XID 79 (GPU has fallen off the bus) on GPU 3, 30.0 s before");
  EXPECT_EQ(recent_.Explain(10'001 + kExplainsMs), "") << "that is too long ago";
}

TEST_F(BlameTest, WhatIsHeardAMomentBehindTheEndCounts) {
  Xid(3, 79, 10'000);
  EXPECT_EQ(recent_.Explain(9'900), "XID 79 (GPU has fallen off the bus) on GPU 3, 0.0 s before");
  EXPECT_EQ(recent_.Explain(10'000 - kBehindMs - 1), "");
}

TEST_F(BlameTest, WhatAProgramBringsAboutItselfExplainsNothing) {
  Xid(3, 31, 10'000);
  Xid(3, 43, 10'000);
  Xid(3, 500, 10'000);
  Read("symbol_error", "mlx5_0 port 1", 0, 9'000);
  Read("symbol_error", "mlx5_0 port 1", 100'000, 10'000);
  EXPECT_EQ(recent_.Explain(10'400), "");
}

TEST_F(BlameTest, WhatIsReadFromTimeToTimeSaysHowLongAgoAtMost) {
  Read("link_downed", "mlx5_0 port 1", 4, 1'000);
  Read("link_downed", "mlx5_0 port 1", 5, 16'000);
  EXPECT_EQ(recent_.Explain(16'000),
            "times that the link went down (1 more within 15 s) on mlx5_0 port 1, at most 15.0 s before");
}

TEST_F(BlameTest, AStateExplainsAsLongAsItStands) {
  Read("state", "mlx5_0 port 1", 1, 1'000);
  Read("state", "mlx5_0 port 1", 0, 16'000);
  for (Instant at = 31'000; at <= 601'000; at += 15'000) Read("state", "mlx5_0 port 1", 0, at);
  EXPECT_EQ(recent_.Explain(601'000),
            "a link that is down (it was not so before) on mlx5_0 port 1, at most 600.0 s before");
  Read("state", "mlx5_0 port 1", 1, 616'000);
  EXPECT_EQ(recent_.Explain(601'001 + kExplainsMs), "") << "it is up again";
}

TEST_F(BlameTest, AStateThatIsReadEachMinuteExplainsBetweenTwoReadings) {
  recent_ = Recent(60'000);
  Read("state", "mlx5_0 port 1", 1, 0);
  Read("state", "mlx5_0 port 1", 0, 60'000);
  EXPECT_NE(recent_.Explain(119'000), "") << "the next reading has not been";
  EXPECT_NE(recent_.Explain(180'000), "");
  EXPECT_EQ(recent_.Explain(180'001), "");
  Read("state", "mlx5_0 port 1", 1, 120'000);
  EXPECT_EQ(recent_.Explain(119'000), "") << "it was well then, for all that is known";
  EXPECT_NE(recent_.Explain(60'000 + kExplainsMs), "");
}

TEST_F(BlameTest, OfSeveralTheKindThatExplainsMostCountsAndThenTheLatest) {
  Read("link_downed", "mlx5_0 port 1", 0, 9'000);
  Xid(1, 79, 10'000);
  Xid(2, 94, 11'000);
  Read("link_downed", "mlx5_0 port 1", 1, 12'000);
  EXPECT_EQ(recent_.Explain(12'000), "XID 94 (contained uncorrectable ECC error) on GPU 2, 1.0 s before");
}

TEST_F(BlameTest, ManyDevicesAreKeptWithinBounds) {
  for (int64_t i = 0; i < 2'000; ++i) {
    Read("ecc_uncorrected", std::to_string(i), 0, 1'000);
    Read("ecc_uncorrected", std::to_string(i), 1, 1'000 + i);
  }
  EXPECT_NE(recent_.Explain(3'000).find("on 1999"), std::string::npos);
}

TEST_F(BlameTest, TheTextFitsItsField) {
  for (const watch::Xid& xid : Xids()) {
    BlameTest::Xid(255, xid.number, 10'000);
    EXPECT_LE(recent_.Explain(10'000).size(), 512u);
  }
}

}  // namespace
}  // namespace phalanx::agent::watch

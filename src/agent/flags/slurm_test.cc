#include "agent/flags/slurm.h"

#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

std::string First(std::string_view list) {
  StatusOr<std::string> host = FirstHost(list);
  return host.ok() ? *host : Message(host.status());
}

TEST(Slurm, TheFirstHostOfAList) {
  EXPECT_EQ(First("tux"), "tux");
  EXPECT_EQ(First("tux1,tux2"), "tux1");
  EXPECT_EQ(First("tux[1-4]"), "tux1");
  EXPECT_EQ(First("tux[007,9-11],gpu"), "tux007");
  EXPECT_EQ(First("a,tux[1-4]"), "a");
  EXPECT_EQ(First("rack[2-3]node[04-05]"), "rack2node04");
  EXPECT_EQ(First("rack[2]node-x,y"), "rack2node-x");
  EXPECT_EQ(First("127.0.0.[1-2]"), "127.0.0.1");
}

TEST(Slurm, ListsThatAreNone) {
  for (const char* wrong : {"", ",", "tux[", "tux[]", "tux[a-b]", "tux[,1]", "rack[1]x[", "[1-2", ",tux[1]"}) {
    EXPECT_FALSE(FirstHost(wrong).ok()) << wrong;
  }
}

TEST(Slurm, AHugeIdStillGivesAPort) {
  Environment env({{"SLURM_JOB_ID", "4294967295"},
                   {"SLURM_STEP_ID", "4294967290"},
                   {"SLURM_STEP_NUM_NODES", "2"},
                   {"SLURM_STEP_NODELIST", "n[1-2]"},
                   {"SLURM_NODEID", "0"}});
  const auto step = ReadSlurmStep(env);
  ASSERT_TRUE(step.ok() && step->has_value());
  EXPECT_GE((*step)->port, 20'000);
  EXPECT_LT((*step)->port, 30'000);
}

}  // namespace
}  // namespace phalanx::agent

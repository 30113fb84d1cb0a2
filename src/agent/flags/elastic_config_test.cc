#include "agent/flags/elastic_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace phalanx::agent {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

TEST(ReadConfigFile, ReadsItWholeOrSaysWhyNot) {
  const fs::path folder = fs::path(testing::TempDir()) / fmt::format("elastic_config_test-{}", getpid());
  fs::create_directories(folder);
  const std::string path = folder / "ds.json";
  std::ofstream(path) << "{\"a\": 1}\n";
  EXPECT_EQ(*ReadConfigFile(path), "{\"a\": 1}\n");
  EXPECT_EQ(Message(ReadConfigFile(folder / "none").status()), "cannot be read: No such file or directory");
  EXPECT_EQ(Message(ReadConfigFile(folder).status()), "cannot be read: Is a directory");
  std::ofstream(path) << std::string(1'100'000, ' ');
  EXPECT_EQ(Message(ReadConfigFile(path).status()), "expected at most 1048576 bytes");
  fs::remove_all(folder);
}

TEST(ElasticBlock, IsRefusedInASentence) {
  EXPECT_EQ(*ElasticBlock(R"({"elasticity": {"enabled": 1}})"), R"({"enabled":1})");
  EXPECT_THAT(Message(ElasticBlock("{\n,}").status()), HasSubstr("JSONDecodeError: "));
  EXPECT_THAT(Message(ElasticBlock("").status()), HasSubstr("JSONDecodeError: "));
  EXPECT_THAT(Message(ElasticBlock(R"({"elasticity": {}})").status()), HasSubstr("Elasticity is disabled"));
}

TEST(CheckElasticSizes, ShowsWhatIsGranted) {
  LaunchConfig config;
  EXPECT_TRUE(CheckElasticSizes(config).ok());
  config.elastic_config =
      R"({"enabled":true,"max_train_batch_size":720720,"micro_batch_sizes":[1],"version":0.1,"min_gpus":4})";
  EXPECT_EQ(Message(CheckElasticSizes(config)),
            "no valid world size is --nnodes=1 times --nproc-per-node=1: it grants none up to 1 ranks");
  config.max_nodes = 13;
  config.min_nodes = 13;
  config.nproc_per_node = 4;
  EXPECT_TRUE(CheckElasticSizes(config).ok());
  config.min_nodes = config.max_nodes = 17;
  EXPECT_EQ(
      Message(CheckElasticSizes(config)),
      "no valid world size is --nnodes=17 times --nproc-per-node=4: up to 68 ranks it grants 4, 5, 6, 7, 8, 9, 10, "
      "11, ..");
  config.min_nodes = 16;
  config.node_unit = 2;  // not that of 17
  EXPECT_FALSE(CheckElasticSizes(config).ok());
}

}  // namespace
}  // namespace phalanx::agent

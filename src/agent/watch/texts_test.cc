#include "agent/watch/texts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

namespace phalanx::agent::watch {
namespace {

TEST(TextsTest, Counts) {
  const struct {
    const char* text;
    std::optional<int64_t> value;
  } cases[] = {{"0\n", 0},
               {"12\n", 12},
               {"  7 ", 7},
               {"0x1f\n", 31},
               {"18446744073709551615\n", kMaxCount},
               {"18446744073709551616\n", std::nullopt},
               {"", std::nullopt},
               {"\n", std::nullopt},
               {"0x", std::nullopt},
               {"-1", std::nullopt},
               {"+1", std::nullopt},
               {"1 2", std::nullopt},
               {"N/A (no PMA)\n", std::nullopt}};
  for (const auto& c : cases) EXPECT_EQ(ParseCount(c.text), c.value) << c.text;
}

TEST(TextsTest, States) {
  EXPECT_EQ(ParsePortState("4: ACTIVE\n"), 1);
  EXPECT_EQ(ParsePortState("1: DOWN\n"), 0);
  EXPECT_EQ(ParsePortState("2: INIT\n"), 0);
  EXPECT_EQ(ParsePortState("9: NEW\n"), std::nullopt);
  EXPECT_EQ(ParsePortState("ACTIVE\n"), std::nullopt);
  EXPECT_EQ(ParsePortState(""), std::nullopt);
  EXPECT_EQ(ParseNvmeState("live\n"), 1);
  EXPECT_EQ(ParseNvmeState("dead\n"), 0);
  EXPECT_EQ(ParseNvmeState("\n"), std::nullopt) << "it was being written";
}

TEST(TextsTest, InterruptsAreAddedUp) {
  const std::string text =
      "            CPU0       CPU1\n"
      "   0:         30          0   IO-APIC    2-edge      timer\n"
      " MCE:          2          3   Machine check exceptions\n"
      " MCP:         10         10   Machine check polls\n";
  EXPECT_EQ(ParseInterrupts(text, "MCE"), 5);
  EXPECT_EQ(ParseInterrupts(text, "MCP"), 20);
  EXPECT_EQ(ParseInterrupts(text, "THR"), std::nullopt);
  EXPECT_EQ(ParseInterrupts("", "MCE"), std::nullopt);
  EXPECT_EQ(ParseInterrupts(" MCE:", "MCE"), 0);
}

TEST(TextsTest, LinesOfTheHelper) {
  auto found = ParseGpuLine("gpus 8 events");
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(std::get<GpusFound>(*found).count, 8);
  EXPECT_TRUE(std::get<GpusFound>(*found).events);
  EXPECT_FALSE(std::get<GpusFound>(*ParseGpuLine("gpus 1 -")).events);
  const auto xid = std::get<GpuXid>(*ParseGpuLine("xid 3 79 2"));
  EXPECT_EQ(xid.gpu, 3);
  EXPECT_EQ(xid.number, 79);
  EXPECT_EQ(xid.times, 2);
  const auto value = std::get<GpuValue>(*ParseGpuLine("value 0 ecc_uncorrected 4"));
  EXPECT_EQ(value.name, "ecc_uncorrected");
  EXPECT_EQ(value.value, 4);
  EXPECT_TRUE(std::holds_alternative<GpusRead>(*ParseGpuLine("read")));
  EXPECT_EQ(std::get<GpusUnwatched>(*ParseGpuLine("unwatched no GPU")).why, "no GPU");
  EXPECT_EQ(std::get<GpusDeaf>(*ParseGpuLine("deaf a GPU is lost")).why, "a GPU is lost");
}

TEST(TextsTest, OtherLinesAreRefused) {
  for (const std::string line : {"",
                                 "gpus",
                                 "gpus 300 events",
                                 "gpus 1 maybe",
                                 "xid 3 79",
                                 "xid 3 79 0",
                                 "xid 3 79 1 1",
                                 "xid 256 79 1",
                                 "xid 3 1024 1",
                                 "xid -1 79 1",
                                 "xid 3 79 x",
                                 "value 0 made_up 4",
                                 "value 0 ecc_uncorrected -4",
                                 "value  ecc_uncorrected 4",
                                 "unwatched a\x1b[2J",
                                 "unwatched \xff",
                                 "deaf",
                                 "deaf \xff",
                                 "read ",
                                 "Traceback (most recent call last):"}) {
    EXPECT_FALSE(ParseGpuLine(line).ok()) << line;
  }
  EXPECT_FALSE(ParseGpuLine("unwatched " + std::string(kMaxGpuLineBytes, 'x')).ok());
}

}  // namespace
}  // namespace phalanx::agent::watch

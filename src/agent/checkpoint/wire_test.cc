#include "agent/checkpoint/wire.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/test_seeds.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;

template <typename T>
T Parsed(const std::string& json) {
  const StatusOr<RankPacket> packet = ParseRankPacket(json);
  EXPECT_TRUE(packet.ok()) << packet.status();
  if (!packet.ok() || !std::holds_alternative<T>(*packet)) {
    ADD_FAILURE() << json;
    return T{};
  }
  return std::get<T>(*packet);
}

TEST(CheckpointWire, TakesTheSeedsOfItsFuzzer) {
  for (const auto& [name, packet] : SeedsIn("agent/checkpoint/corpus")) {
    const StatusOr<RankPacket> parsed = ParseRankPacket(packet);
    EXPECT_TRUE(parsed.ok()) << name << ": " << parsed.status();
  }
}

TEST(CheckpointWire, ReadsWhatRanksSay) {
  const auto open =
      Parsed<OpenPacket>(R"({"type":"open","id":1,"dir":"/d","kind":"ddp","keep_last":3,"keep_every":100,)"
                         R"("archive":"/a","archive_every":7,)"
                         R"("save_at_breakpoint":true,"trackers":["latest"],"slots_wanted":3,"memory_budget":null})");
  EXPECT_EQ(open.dir, "/d");
  EXPECT_EQ(open.options.form, kDdpForm);
  EXPECT_EQ(open.options.keep_last, 3);
  EXPECT_EQ(open.options.keep_every, 100);
  EXPECT_EQ(open.options.archive, "/a");
  EXPECT_EQ(open.options.archive_every, 7);
  EXPECT_TRUE(open.options.at_breakpoint);
  EXPECT_EQ(open.options.trackers, std::vector<std::string>{"latest"});

  EXPECT_EQ(Parsed<OpenPacket>(R"({"type":"open","id":1,"dir":"/d","kind":"dcp"})").options.form, kDcpForm);

  const auto prepare =
      Parsed<PreparePacket>(R"({"type":"prepare","id":2,"dir":"/d","page":"main","bytes":8192,"slots":3})");
  EXPECT_TRUE(prepare.main);
  EXPECT_EQ(prepare.bytes, 8192U);

  const auto sealed =
      Parsed<SealedPacket>(R"({"type":"sealed","dir":"/d","page":"own","step":7,"slot":1,"disk":true})");
  EXPECT_TRUE(sealed.store);
  EXPECT_EQ(sealed.save.step, 7);
  EXPECT_EQ(sealed.save.branch, 0U);
  EXPECT_TRUE(sealed.values.empty());
  const auto compared =
      Parsed<SealedPacket>(R"({"type":"sealed","dir":"/d","step":7,"values":{"best":4294967295,"step":0}})");
  EXPECT_EQ(compared.values, (std::map<std::string, uint32_t>{{"best", 4294967295}, {"step", 0}}));

  EXPECT_EQ(Parsed<SkippedPacket>(R"({"type":"skipped","dir":"/d","step":7,"why":"no slot"})").why, "no slot");
  EXPECT_TRUE(Parsed<WaitPacket>(R"({"type":"wait","id":3,"dir":"/d","step":7,"until":"stored"})").until_stored);
  EXPECT_EQ(Parsed<RestorePacket>(R"({"type":"restore","id":4,"dir":"/d","branch":2})").branch, 2U);
  const auto images = Parsed<ImagesPacket>(R"({"type":"images","id":5,"dir":"/d","branch":2,"ranks":[0,7]})");
  EXPECT_EQ(images.branch, 2U);
  EXPECT_EQ(images.parts, (ImageParts{{0, {}}, {7, {}}}));
  const auto parts = Parsed<ImagesPacket>(
      R"({"type":"images","id":5,"dir":"/d","branch":2,"ranks":[0,7],"ranges":{"7":[[0,5],[9,12]]}})");
  EXPECT_EQ(parts.parts, (ImageParts{{0, {}}, {7, checkpoint::ByteRanges({{0, 5}, {9, 12}})}}));
  const auto restored = Parsed<RestoredPacket>(R"({"type":"restored","dir":"/d","branch":2})");
  EXPECT_EQ(restored.dir, "/d");
  EXPECT_EQ(restored.branch, 2U);
  const auto absent = Parsed<AbsentPacket>(R"({"type":"absent","id":5,"dir":"/d","step":7,"branch":2})");
  EXPECT_EQ(absent.id, 5);
  EXPECT_EQ(absent.save.step, 7);
  EXPECT_EQ(absent.save.branch, 2U);
}

// What it is put into for the master takes nothing but UTF-8.
TEST(CheckpointWire, CutsAReasonBetweenCharacters) {
  const auto packet = [](size_t letters) {
    return fmt::format(R"({{"type":"skipped","dir":"/d","step":7,"why":"{}\u20ac"}})", std::string(letters, 'a'));
  };
  EXPECT_EQ(Parsed<SkippedPacket>(packet(509)).why, std::string(509, 'a') + "\xe2\x82\xac");
  for (const size_t letters : {510, 511, 512, 600}) {
    EXPECT_EQ(Parsed<SkippedPacket>(packet(letters)).why, std::string(std::min<size_t>(letters, 512), 'a')) << letters;
  }
}

TEST(CheckpointWire, RefusesTheRestByName) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no JSON object"},
      {"[1]", "no JSON object"},
      {R"({"id":1})", "type"},
      {R"({"type":"dance","id":1})", "type"},
      {R"({"type":"restore","id":"x","dir":"/d"})", "id"},
      {R"({"type":"restore","id":1,"dir":"relative"})", "dir"},
      {R"({"type":"open","id":1,"dir":"/d","kind":"full","archive":"far"})", "archive"},
      {R"({"type":"open","id":1,"dir":"/d","kind":"full","archive":"/d"})", "archive"},
      {R"({"type":"open","id":1,"dir":"/d","kind":"full","archive":"/a","archive_every":-1})", "archive_every"},
      {R"({"type":"images","id":1,"dir":"/d"})", "ranks"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[]})", "ranks"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[-1]})", "ranks"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[2147483648]})", "ranks"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":[]})", "ranges"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":{"2":[[0,1]]}})", "ranges"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":{"x":[[0,1]]}})", "ranges"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":{"1":[]}})", "ranges"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":{"1":[[1,1]]}})", "ranges"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":{"1":[[-1,1]]}})", "ranges"},
      {R"({"type":"images","id":1,"dir":"/d","ranks":[1],"ranges":{"1":[[0]]}})", "ranges"},
      {R"({"type":"restore","id":1,"dir":"/d\u0000e"})", "dir"},
      {R"({"type":"prepare","id":1,"dir":"/d","page":"own","bytes":0,"slots":3})", "bytes"},
      {R"({"type":"prepare","id":1,"dir":"/d","page":"own","bytes":18446744073709551615,"slots":3})", "bytes"},
      {R"({"type":"prepare","id":1,"dir":"/d","page":"own","bytes":1,"slots":4})", "slots"},
      {R"({"type":"prepare","id":1,"dir":"/d","page":"other","bytes":1,"slots":3})", "page"},
      {R"({"type":"sealed","dir":"/d","page":"own","step":-1})", "step"},
      {R"({"type":"sealed","dir":"/d","page":"own","step":1,"branch":4294967296})", "branch"},
      {R"({"type":"sealed","dir":"/d","step":1,"values":[]})", "values"},
      {R"({"type":"sealed","dir":"/d","step":1,"values":{"a":-1}})", "values"},
      {R"({"type":"sealed","dir":"/d","step":1,"values":{"a":4294967296}})", "values"},
      {R"({"type":"sealed","dir":"/d","step":1,"values":{"a":"b"}})", "values"},
      {R"({"type":"wait","id":1,"dir":"/d","step":1,"until":"tomorrow"})", "until"},
      {R"({"type":"open","id":1,"dir":"/d","kind":"other"})", "kind"},
      {R"({"type":"open","id":1,"dir":"/d","kind":"full","trackers":[1]})", "trackers"},
  };
  for (const auto& [json, names] : cases) {
    const StatusOr<RankPacket> packet = ParseRankPacket(json);
    ASSERT_FALSE(packet.ok()) << json;
    EXPECT_THAT(Message(packet.status()), HasSubstr(names)) << json;
  }
}

}  // namespace
}  // namespace phalanx::agent

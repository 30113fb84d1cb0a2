#include "checkpoint/disk/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/crc/crc32.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

Manifest Sample() {
  return {.step = 1200,
          .epoch = 4,
          .world_size = 2,
          .kind = "full",
          .layout = "torch-zip",
          .job_id = "job \"7\"\n\xc3\xa4",
          .written_unix_ms = 1'700'000'000'000,
          .shards = {{.rank = 0, .file = "rank_0.pt", .bytes = uint64_t{5} << 40, .crc32 = 0xffffffff},
                     {.rank = 1, .file = "rank_1.pt", .bytes = 4096, .crc32 = 0}}};
}

std::string Signed(const std::string& body) {
  return body + fmt::format("crc32 {:08x}\n", Crc32(0, body.data(), body.size()));
}

// The sample's text with the first `from` replaced, under a CRC that is right.
std::string Changed(const std::string& from, const std::string& to) {
  std::string text = ManifestText(Sample());
  std::string body = text.substr(0, text.rfind("crc32 "));
  const size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return Signed(body.replace(at, from.size(), to));
}

TEST(Manifest, ComesBackAsItWas) {
  const StatusOr<Manifest> read = ParseManifest(ManifestText(Sample()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Sample());
}

TEST(Manifest, SaysWhatItGoesOnFromWhereThatIsKnown) {
  EXPECT_EQ(ManifestText(Sample()).find("goes_on_from"), std::string::npos);
  for (const uint64_t sequence : {0, 7}) {
    Manifest manifest = Sample();
    manifest.goes_on_from = sequence;
    EXPECT_EQ(ParseManifest(ManifestText(manifest))->goes_on_from, sequence);
  }
  EXPECT_THAT(Message(ParseManifest(Changed("\"epoch\"", "\"goes_on_from\": -1, \"epoch\"")).status()),
              HasSubstr("goes_on_from"));
}

TEST(Manifest, ItsLastLineIsTheZipCrcOfTheRest) {
  const std::string text = ManifestText(Sample());
  EXPECT_EQ(text, Signed(text.substr(0, text.rfind("crc32 "))));
  EXPECT_EQ(Crc32(0, "123456789", 9), 0xcbf43926);
}

TEST(Manifest, IsRefusedWithAnyByteChangedOrCutOff) {
  const std::string text = ManifestText(Sample());
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    EXPECT_TRUE(absl::IsDataLoss(ParseManifest(changed).status())) << i;
    EXPECT_TRUE(absl::IsDataLoss(ParseManifest(text.substr(0, i)).status())) << i;
  }
  EXPECT_TRUE(absl::IsDataLoss(ParseManifest(text + "\n").status()));
}

TEST(Manifest, IgnoresFieldsThatItDoesNotKnow) {
  EXPECT_TRUE(ParseManifest(Changed("\"epoch\"", "\"later\": [{}], \"epoch\"")).ok());
}

TEST(Manifest, OfTheFirstVersionSaysByItsKindWhoNeedsWhat) {
  const struct {
    const char* kind;
    FileNeed own;
  } kCases[] = {{"full", FileNeed::kOwner}, {"ddp", FileNeed::kNobody}, {"dcp", FileNeed::kAnyRank}};
  for (const auto& [kind, own] : kCases) {
    Manifest manifest = Sample();
    manifest.kind = kind;
    manifest.shards[1] = {.rank = kMainRank, .file = "main.pt", .bytes = 4096, .crc32 = 0};
    manifest.shards[0].needed_by = own;
    manifest.shards[1].needed_by = FileNeed::kEveryRank;
    std::string body = ManifestJson(manifest) + "\n";
    body.replace(body.find("\"version\": 2"), 12, "\"version\": 1");
    for (size_t at; (at = body.find("\"needed_by\"")) != std::string::npos;) body.replace(at, 11, "\"once\"");
    const StatusOr<Manifest> read = ParseManifest(Signed(body));
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(*read, manifest) << kind;
  }
}

TEST(Manifest, OfANewerVersionSaysSo) {
  const Status status = ParseManifest(Changed("\"version\": 2", "\"version\": 3")).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(Message(status), HasSubstr("newer Phalanx (version 3"));
}

TEST(Manifest, RefusesFieldsWithTheirNameAndValue) {
  const struct {
    const char *from, *to, *said;
  } kCases[] = {
      {"phalanx-manifest", "other", "'format'"},
      {"\"version\": 2", "\"version\": 0", "'version' is 0"},
      {"\"step\": 1200", "\"step\": -1", "'step' is -1"},
      {"\"step\": 1200", "\"step\": 1.5", "'step' is missing or not a whole number"},
      {"\"step\": 1200", "\"step\": 9223372036854775808", "'step' is 9223372036854775808"},
      {"\"epoch\": 4", "\"epoch\": -4", "'epoch' is -4"},
      {"\"epoch\": 4", "\"epoc\": 4", "'epoch' is missing"},
      {"\"world_size\": 2", "\"world_size\": 0", "'world_size' is 0"},
      {"\"world_size\": 2", "\"world_size\": 1", "a shard of rank 1 in a world of 1"},
      {"\"world_size\": 2", "\"world_size\": 4294967296", "'world_size' is 4294967296"},
      {"\"kind\": \"full\"", "\"kind\": \"Full\"", "'kind'"},
      {"\"kind\": \"full\"", "\"kind\": 7", "'kind' is missing or not a text"},
      {"\"needed_by\": \"owner\"", "\"needed_by\": \"nobody\"", "what all ranks share is not among the shards"},
      {"\"needed_by\": \"owner\"", "\"needed_by\": \"all\"",
       "'needed_by' is none of owner, every-rank, any-rank, nobody"},
      {"\"needed_by\": \"owner\"", "\"needed\": \"owner\"", "'needed_by' is missing"},
      {"\"needed_by\": \"owner\"", "\"needed_by\": \"every-rank\"",
       "'rank_0.pt' is of rank 0, and needed by every-rank"},
      {"\"rank\": 0", "\"rank\": -1", "'rank_0.pt' is of rank -1, and needed by owner"},
      {"torch-zip", "dcp", "what all ranks share is not among the shards"},
      {"torch-zip", "tar", "'layout'"},
      {"\"crc32\": 0", "\"crc32\": 4294967296", "'crc32' is 4294967296"},
      {"rank_1.pt", "rank_0.pt", "two shards are 'rank_0.pt'"},
      {"rank_1.pt", "../rank_1.pt", "no plain file name"},
      {"rank_1.pt", "manifest.json", "no plain file name"},
      {"rank_1.pt", "", "no plain file name"},
      {"\"shards\": [", "\"shards\": [7, ", "'shards'"},
  };
  for (const auto& [from, to, said] : kCases) {
    const Status status = ParseManifest(Changed(from, to)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << from << " -> " << to;
    EXPECT_THAT(Message(status), HasSubstr(said)) << from << " -> " << to;
  }
  for (const char* body : {"[]\n", "{\n", "7\n", "\n"}) {
    EXPECT_THAT(Message(ParseManifest(Signed(body)).status()), HasSubstr("no JSON object")) << body;
  }
  Manifest none = Sample();
  none.shards.clear();
  EXPECT_THAT(Message(ParseManifest(ManifestText(none)).status()), HasSubstr("'shards' is empty"));
}

TEST(Manifest, KnowsTheLayoutsAndTheirNames) {
  for (const char* layout : {"files", "safetensors"}) {
    EXPECT_TRUE(ParseManifest(Changed("torch-zip", layout)).ok()) << layout;
  }
  EXPECT_EQ(ShardName(kTorchLayout, 3), "rank_3.pt");
  EXPECT_EQ(ShardName(kTorchLayout, kMainRank), "main.pt");
  EXPECT_EQ(ShardName(kNamedLayout, 3), "rank_3.safetensors");
  EXPECT_EQ(ShardName(kNamedLayout, kMainRank), "main.safetensors");
  EXPECT_EQ(ShardName(kDcpLayout, 3), "__3_0.distcp");
  EXPECT_EQ(ShardName(kDcpLayout, kMainRank), ".metadata");
  for (const char* layout : {kTorchLayout, kNamedLayout, kDcpLayout}) {
    EXPECT_TRUE(IsShardName(ShardName(layout, 12)));
    EXPECT_TRUE(IsShardName(ShardName(layout, kMainRank)));
  }
  for (const char* other : {"rank_.pt", "rank_x.pt", "rank_1.pt.old", "main", "__0_1.distcp", "config.json"}) {
    EXPECT_FALSE(IsShardName(other)) << other;
  }
}

TEST(Manifest, OfAJobWhoseIdIsNoTextCanBeRead) {
  Manifest manifest = Sample();
  manifest.job_id = "\xff\xfe";
  const StatusOr<Manifest> read = ParseManifest(ManifestText(manifest));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job_id, "\xef\xbf\xbd\xef\xbf\xbd");
}

}  // namespace
}  // namespace phalanx::checkpoint

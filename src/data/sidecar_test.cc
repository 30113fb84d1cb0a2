#include "data/sidecar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::data {
namespace {

using nlohmann::ordered_json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Sidecar Example(const std::string& fingerprint = "sha256:00") {
  Sidecar sidecar;
  sidecar.counts = {Dtype::kUint16, 3, 4, 6, 12, 114, 0xDEADBEEF, 7};
  sidecar.tokenizer = Tokenizer{"HFTokenizer", fingerprint, 50257, 0};
  sidecar.options = {{"append_eod", true}};
  sidecar.inputs = ordered_json::array({{{"path", "in.jsonl"}}});
  sidecar.versions = {{"phalanx", "0.1.0"}};
  sidecar.errors = 2;
  sidecar.written_unix_ms = 1700000000000;
  return sidecar;
}

std::string Refusal(const char* field, const ordered_json& value) {
  ordered_json object = ordered_json::parse(SidecarText(Example()));
  object[field] = value;
  return std::string(ParseSidecar(object.dump()).status().message());
}

TEST(Sidecar, ComesBackAsItWasWritten) {
  const std::string text = SidecarText(Example());
  const StatusOr<Sidecar> parsed = ParseSidecar(text);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(SidecarText(*parsed), text);
  EXPECT_EQ(parsed->tokenizer, Example().tokenizer);
  EXPECT_EQ(parsed->counts.bin_crc32, 0xDEADBEEF);
}

TEST(Sidecar, RefusesWithASentence) {
  EXPECT_THAT(ParseSidecar("[1]").status().message(), HasSubstr("no JSON object"));
  EXPECT_THAT(ParseSidecar("{\"a\": ").status().message(), HasSubstr("no JSON object"));
  EXPECT_THAT(ParseSidecar(std::string(1000, '[')).status().message(), HasSubstr("more than 32 levels"));
  EXPECT_THAT(Refusal("format", "x"), HasSubstr("'format' is 'x' instead of 'phalanx-dataset'"));
  EXPECT_THAT(Refusal("version", 2), HasSubstr("version 2, where 1 is known"));
  EXPECT_THAT(Refusal("tokens", 1.5), HasSubstr("'tokens' is missing or not a whole number"));
  EXPECT_THAT(Refusal("errors", -1), HasSubstr("'errors' is -1, out of its range"));
  EXPECT_THAT(Refusal("idx", {{"bytes", 1}, {"crc32", 1ULL << 32}}), HasSubstr("'crc32' is 4294967296"));
  EXPECT_THAT(Refusal("dtype", "float32"), HasSubstr("which no tokens have"));
  EXPECT_THAT(Refusal("dataset_impl", "cached"), HasSubstr("mmap and lazy are known"));
  EXPECT_THAT(Refusal("tokenizer", "gpt2"), HasSubstr("'tokenizer' is missing or not an object or null"));
  EXPECT_THAT(Refusal("inputs", ordered_json::object()), HasSubstr("'inputs' is missing or not a list"));
}

TEST(Sidecar, SaysWhatIsOtherwise) {
  const Sidecar sidecar = Example();
  JoinCounts found = sidecar.counts;
  EXPECT_THAT(Contradictions(sidecar, Layout::kMmap, found, true), IsEmpty());
  found.idx_crc32 = 8;
  EXPECT_THAT(Contradictions(sidecar, Layout::kMmap, found, false), IsEmpty());
  EXPECT_THAT(Contradictions(sidecar, Layout::kMmap, found, true),
              ElementsAre("the CRC of .idx is 00000008 instead of 00000007: it is damaged"));
  found.documents = 2;
  found.dtype = Dtype::kInt32;
  EXPECT_THAT(Contradictions(sidecar, Layout::kLazy, found, true),
              ElementsAre("the layout is lazy instead of mmap", "tokens are int32 instead of uint16",
                          "2 documents are there instead of 3"));
}

TEST(Sidecar, OneTokenizerForAll) {
  const std::vector<std::string> names = {"a.json", "b.json"};
  const StatusOr<std::optional<Tokenizer>> same = CommonTokenizer({Example(), Example()}, names);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(*same, Example().tokenizer);
  const StatusOr<std::optional<Tokenizer>> unknown = CommonTokenizer({Example(), std::nullopt}, names);
  ASSERT_TRUE(unknown.ok());
  EXPECT_EQ(*unknown, std::nullopt);
  EXPECT_THAT(CommonTokenizer({Example(), Example("sha256:11")}, names).status().message(),
              HasSubstr("a.json and b.json were made by different tokenizers, HFTokenizer (sha256:00)"));
}

}  // namespace
}  // namespace phalanx::data

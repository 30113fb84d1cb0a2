#include "data/join_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::data {
namespace {

using testing::HasSubstr;

Source Dataset(const std::string& name, uint64_t documents, uint64_t sequences, uint64_t tokens) {
  Source source;
  source.tokens_path = name + ".bin";
  source.tables_path = name + ".idx";
  source.dtype = Dtype::kInt32;
  source.documents = documents;
  source.sequences = sequences;
  source.tokens = tokens;
  return source;
}

Source Part(uint64_t number, uint64_t parts) {
  Source source = Dataset("part" + std::to_string(number), 1, 1, 1);
  source.part = PartHeader{.number = number, .parts = parts};
  return source;
}

std::string Refusal(const std::vector<Source>& sources, Layout layout = Layout::kMmap) {
  const Result<JoinPlan> plan = PlanJoin(sources, layout);
  return plan.ok() ? "" : plan.error().message;
}

TEST(JoinPlan, AddsUp) {
  const Result<JoinPlan> plan = PlanJoin({Dataset("a", 1, 2, 30), Dataset("b", 4, 5, 6)}, Layout::kLazy);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->index.layout, Layout::kLazy);
  EXPECT_EQ(plan->index.documents, 5U);
  EXPECT_EQ(plan->index.sequences, 7U);
  EXPECT_EQ(plan->tokens, 36U);
  EXPECT_EQ(plan->bin_bytes, 144U);
}

TEST(JoinPlan, PartsAreAllOfOneRunInOrder) {
  EXPECT_EQ(Refusal({Part(0, 2), Part(1, 2)}), "");
  EXPECT_THAT(Refusal({Part(0, 3), Part(1, 3)}), HasSubstr("part0.idx is part 0 of 3, where part 0 of 2 was to come"));
  EXPECT_THAT(Refusal({Part(1, 2), Part(0, 2)}), HasSubstr("part 1 of 2, where part 0 of 2"));
  Source other = Part(1, 2);
  other.part->fingerprint[0] = 1;
  EXPECT_THAT(Refusal({Part(0, 2), other}), HasSubstr("part1.idx was made with other options than part0.idx"));
  EXPECT_THAT(Refusal({Part(0, 2), Dataset("a", 1, 1, 1)}), HasSubstr("one is a part, the other a whole dataset"));
  EXPECT_THAT(Refusal({}), HasSubstr("nothing to join"));
}

TEST(JoinPlan, TokensAreOfOneType) {
  Source other = Dataset("b", 1, 1, 1);
  other.dtype = Dtype::kUint16;
  EXPECT_THAT(Refusal({Dataset("a", 1, 1, 1), other}),
              HasSubstr("b.bin has tokens of type uint16, a.bin of type int32"));
}

TEST(JoinPlan, ModesAreInAllOrNone) {
  Source modal = Dataset("m", 1, 1, 1);
  modal.modes = {0, 1, 1};
  EXPECT_THAT(Refusal({Dataset("a", 1, 1, 1), modal}), HasSubstr("one has modes (multimodal)"));
  EXPECT_THAT(Refusal({modal}, Layout::kLazy), HasSubstr("which `lazy` and `cached` cannot hold"));
  const Result<JoinPlan> plan = PlanJoin({Dataset("empty", 1, 0, 0), modal}, Layout::kMmap);
  ASSERT_TRUE(plan.ok()) << plan.error().message;
  EXPECT_TRUE(plan->index.has_modes);
}

TEST(JoinPlan, NothingOverflows) {
  const Source large = Dataset("a", 1, 1, uint64_t{1} << 60);
  EXPECT_EQ(Refusal({large}), "");
  EXPECT_THAT(Refusal({large, large}), HasSubstr("larger than a file can be"));
}

}  // namespace
}  // namespace phalanx::data

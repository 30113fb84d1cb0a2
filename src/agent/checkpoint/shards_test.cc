// What ranks ask about shards, on its way through their agent.
#include "agent/checkpoint/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "agent/checkpoint/wire.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;

v1::ShardRequest Take(uint64_t request) {
  v1::ShardRequest take;
  take.set_dataset("data");
  take.set_request(request);
  take.mutable_take();
  return take;
}

v1::ShardReply ReplyTo(const v1::ShardRequest& request) {
  v1::ShardReply reply;
  reply.set_epoch(request.epoch());
  reply.set_local_rank(request.local_rank());
  reply.set_request(request.request());
  reply.set_dataset(request.dataset());
  reply.set_ledger(7);
  return reply;
}

class ShardRelayTest : public testing::Test {
 protected:
  ShardRelayTest() { relay_.OnRound(3); }

  v1::ShardRequest Ask(int local_rank, int64_t packet, uint64_t request) {
    auto told = relay_.OnAsked(local_rank, packet, Take(request));
    EXPECT_TRUE(told.ok());
    return *told;
  }

  ShardRelay relay_;
};

TEST_F(ShardRelayTest, TheAnswerGoesToWhoAsked) {
  const v1::ShardRequest one = Ask(0, 10, 1);
  const v1::ShardRequest other = Ask(1, 20, 1);
  EXPECT_EQ(one.epoch(), 3U);
  const auto asker = relay_.OnReply(ReplyTo(other));
  ASSERT_TRUE(asker);
  EXPECT_EQ(asker->local_rank, 1);
  EXPECT_EQ(asker->packet, 20);
  EXPECT_FALSE(relay_.OnReply(ReplyTo(other))) << "it was answered";
}

TEST_F(ShardRelayTest, ANewMasterIsAskedAgainWhatIsNotAnswered) {
  const v1::ShardRequest one = Ask(0, 10, 1);
  Ask(0, 11, 2);
  relay_.OnReply(ReplyTo(one));
  ASSERT_EQ(relay_.OnAttached().size(), 1U);
  EXPECT_EQ(relay_.OnAttached()[0].request(), 2U);
}

TEST_F(ShardRelayTest, NobodyWaitsForAMasterThatIsSilent) {
  Ask(0, 10, 1);
  Ask(1, 20, 1);
  const auto askers = relay_.OnMasterSilent("it is away");
  ASSERT_EQ(askers.size(), 2U);
  EXPECT_EQ(askers[1].local_rank, 1);
  EXPECT_EQ(askers[1].packet, 20);
  v1::ShardRequest request;
  request.set_dataset("data");
  EXPECT_EQ(Message(relay_.OnAsked(0, 11, request).status()), "it is away");
  EXPECT_TRUE(relay_.OnAttached().empty()) << "they have been answered";
  EXPECT_TRUE(relay_.OnAsked(0, 12, request).ok());
}

TEST_F(ShardRelayTest, WhoAsksAgainIsAnsweredThere) {
  const v1::ShardRequest one = Ask(0, 10, 1);
  Ask(0, 11, 1);
  EXPECT_EQ(relay_.OnAttached().size(), 1U);
  EXPECT_EQ(relay_.OnReply(ReplyTo(one))->packet, 11);
}

TEST_F(ShardRelayTest, NobodyOfAnOldRoundIsAnswered) {
  const v1::ShardRequest one = Ask(0, 10, 1);
  Ask(1, 20, 1);
  relay_.OnRankGone(1);
  EXPECT_EQ(relay_.OnAttached().size(), 1U);
  relay_.OnRound(4);
  EXPECT_TRUE(relay_.OnAttached().empty());
  Ask(0, 12, 1);
  EXPECT_FALSE(relay_.OnReply(ReplyTo(one)));
}

// So that a master that has lost its journal does not begin it anew.
TEST_F(ShardRelayTest, WhatBeginningItWasOutlivesARound) {
  EXPECT_EQ(Ask(0, 10, 1).ledger(), 0U);
  relay_.OnReply(ReplyTo(Ask(0, 10, 1)));
  relay_.OnRound(4);
  EXPECT_EQ(Ask(0, 11, 1).ledger(), 7U);
}

TEST_F(ShardRelayTest, ARankWaitsForSoManyAnswers) {
  for (uint64_t request = 1; request <= kShardRequestsMax; ++request) Ask(0, 1, request);
  EXPECT_THAT(std::string(relay_.OnAsked(0, 1, Take(1'000)).status().message()), HasSubstr("waits for 64 answers"));
  Ask(1, 1, 1);
}

TEST(ShardAnswer, IsOnePacket) {
  v1::ShardReply reply;
  EXPECT_EQ(ShardAnswer(5, reply), R"({"id":5,"shard":null})");
  reply.set_shard(9);
  EXPECT_EQ(ShardAnswer(5, reply), R"({"id":5,"shard":9})");
  reply.mutable_state()->set_next(3);
  reply.mutable_state()->add_undone_gaps(2);
  EXPECT_EQ(ShardAnswer(5, reply), R"({"id":5,"next":3,"undone_gaps":[2]})");
  for (int i = 0; i < 8'192; ++i) reply.mutable_state()->add_undone_gaps(1'000'000'000);
  EXPECT_THAT(ShardAnswer(5, reply), HasSubstr("too many shards"));
  reply.set_refused("no");
  EXPECT_EQ(ShardAnswer(5, reply), R"({"error":"no","id":5})");
}

v1::ShardRequest Parsed(const std::string& text) {
  const auto packet = ParseRankPacket(text);
  EXPECT_TRUE(packet.ok()) << packet.status();
  return packet.ok() ? std::get<ShardsPacket>(*packet).request : v1::ShardRequest();
}

TEST(ShardsPacket, EachAskIsRead) {
  const std::string head = R"({"type":"shards","id":1,"dataset":"data","request":2,)";
  EXPECT_TRUE(Parsed(head + R"("ask":"take"})").has_take());
  EXPECT_TRUE(Parsed(head + R"("ask":"read"})").has_read());
  EXPECT_EQ(Parsed(head + R"("ask":"done","shards":[4,5]})").done().shards(1), 5U);
  EXPECT_EQ(Parsed(head + R"("ask":"back","shards":[4]})").back().shards(0), 4U);
  const std::string spec = R"("size":10,"shard_size":3,"passes":2,"seed":7,"order":"records")";
  const v1::ShardRequest open = Parsed(head + R"("ask":"open",)" + spec + "}");
  EXPECT_EQ(open.open().order(), v1::DatasetSpec::SHUFFLED_RECORDS);
  EXPECT_EQ(open.open().seed(), 7U);
  EXPECT_EQ(open.request(), 2U);
  const v1::ShardRequest restore = Parsed(head + R"("ask":"restore","next":4,"undone_gaps":[1,2],)" + spec + "}");
  EXPECT_EQ(restore.restore().next(), 4U);
  EXPECT_EQ(restore.restore().undone_gaps(1), 2U);
}

TEST(ShardsPacket, WhatIsNoneIsRefused) {
  for (const char* text :
       {R"({"type":"shards","id":1,"dataset":"","request":2,"ask":"take"})",
        R"({"type":"shards","id":1,"dataset":"data","request":-2,"ask":"take"})",
        R"({"type":"shards","id":1,"dataset":"data","request":2,"ask":"steal"})",
        R"({"type":"shards","id":1,"dataset":"data","request":2,"ask":"done","shards":4})",
        R"({"type":"shards","id":1,"dataset":"data","request":2,"ask":"done","shards":[-4]})",
        R"({"type":"shards","id":1,"dataset":"data","request":2,"ask":"open","size":1,"shard_size":1,"passes":1,)"
        R"("seed":0,"order":"any"})"}) {
    EXPECT_FALSE(ParseRankPacket(text).ok()) << text;
  }
}

}  // namespace
}  // namespace phalanx::agent

#include "master/serve/admin_desk.h"

#include <gtest/gtest.h>

#include "master/serve/large_job.h"
#include "master/serve/shell_decisions.h"

namespace phalanx::master {
namespace {

class AdminDeskTest : public ::testing::Test {
 protected:
  grpc::Status Ask(std::optional<wire::Role> role, Instant now) {
    const v1::StatusRequest request;
    grpc::ByteBuffer asked;
    grpc::ByteBuffer told;
    bool owned = false;
    EXPECT_TRUE(grpc::SerializationTraits<v1::StatusRequest>::Serialize(request, &asked, &owned).ok());
    grpc::Status status;
    desk_.AnswerStatus(
        {role, ""}, asked, told, [&status](const grpc::Status& answer) { status = answer; }, now);
    if (!status.ok()) return status;
    return grpc::SerializationTraits<v1::StatusReply>::Deserialize(&told, &reply_);
  }
  std::string ReasonAt(Instant now) {
    EXPECT_TRUE(Ask(wire::Role::kViewer, now).ok());
    return reply_.reason();
  }

  JobState job_ = LargeJob(2, 8);
  RecordKeeper record_{1'000};
  AdminDesk desk_{"job", job_, record_};
  v1::StatusReply reply_;
};

TEST_F(AdminDeskTest, TellsASmallJobAsItIs) {
  job_.reason = "first";
  EXPECT_EQ(ReasonAt(10), "first");
  job_.reason = "second";
  EXPECT_EQ(ReasonAt(10), "second");
  EXPECT_EQ(reply_.nodes_size(), 2);
  EXPECT_EQ(reply_.world_size(), 16U);
  EXPECT_EQ(reply_.started_unix_ms(), 1'000);
  EXPECT_GE(reply_.now_unix_ms(), 1'000);
}

TEST_F(AdminDeskTest, GivesTheAnswerOfALargeJobAgainForAWhile) {
  constexpr uint32_t kNodes = 10'000;
  job_ = LargeJob(kNodes, 8);
  job_.reason = "first";
  EXPECT_EQ(ReasonAt(10), "first");
  job_.reason = "second";
  const int64_t kept_ms = StatusKeptMs(kNodes);
  EXPECT_EQ(ReasonAt(10 + kept_ms - 1), "first");
  EXPECT_EQ(reply_.nodes_size(), static_cast<int>(kNodes));
  EXPECT_EQ(ReasonAt(10 + kept_ms), "second");
}

TEST_F(AdminDeskTest, GivesNothingAgainToWhoProvesNothing) {
  job_ = LargeJob(1'000, 8);
  ReasonAt(10);
  EXPECT_EQ(Ask(std::nullopt, 10).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Ask(wire::Role::kUnknown, 10).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(Ask(wire::Role::kAgent, 10).ok());
}

TEST_F(AdminDeskTest, RefusesWhatIsNoRequest) {
  const grpc::Slice garbage("\xff\xff\xff");
  const grpc::ByteBuffer asked(&garbage, 1);
  grpc::ByteBuffer told;
  desk_.AnswerStatus(
      {wire::Role::kAgent, ""}, asked, told, [](const grpc::Status& status) { EXPECT_FALSE(status.ok()); }, 10);
}

TEST_F(AdminDeskTest, LetsInWhomItKnowsForAnOperator) {
  LeaveOut(job_.health, {1, "b", "host-b", "10.0.0.2"}, "slow", /*needs_others=*/true, 60'000, 10);
  v1::LetInRequest request;
  request.set_node("b");
  v1::LetInReply reply;
  using Role = wire::Role;
  for (const std::optional<Role> role : std::initializer_list<std::optional<Role>>{
           Role::kMaster, Role::kAgent, Role::kViewer, Role::kPlatform, Role::kUnknown, std::nullopt}) {
    EXPECT_EQ(desk_.AnswerLetIn({role, ""}, request, reply, 10).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  }
  EXPECT_EQ(reply.nodes_size(), 0);
  for (const char* name : {"b", "host-b", "10.0.0.2"}) {
    reply.Clear();
    request.set_node(name);
    EXPECT_TRUE(desk_.AnswerLetIn({Role::kOperator, ""}, request, reply, 10).ok());
    ASSERT_EQ(reply.nodes_size(), 1) << name;
    EXPECT_EQ(reply.nodes(0), "b");
  }
  reply.Clear();
  request.set_node("c");
  EXPECT_TRUE(desk_.AnswerLetIn({Role::kOperator, ""}, request, reply, 10).ok());
  EXPECT_EQ(reply.nodes_size(), 0);
  ASSERT_EQ(reply.left_out_size(), 1);
  EXPECT_EQ(reply.left_out(0).node(), "b");
}

}  // namespace
}  // namespace phalanx::master

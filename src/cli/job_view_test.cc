// What is known of a job, asked of a real gRPC server that stands in for its master.
#include "cli/job_view.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/state_dir.h"
#include "phalanx/v1/admin.grpc.pb.h"
#include "wire/test_credentials.h"

namespace phalanx::cli {
namespace {

using Row = master::RecordRow;

Row RowOf(int64_t id, int64_t unix_ms, const std::string& kind = "first-step") {
  return {id, unix_ms, 1, kind, "a", -1, "it did", "{}"};
}

class FakeMaster : public v1::Admin::Service {
 public:
  FakeMaster() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", wire::TestCredentials(wire::Role::kMaster).ForServer(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~FakeMaster() override { server_->Shutdown(); }

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

  std::vector<Row> rows;
  grpc::Status refusal;  // of Events
  std::atomic<int> events_calls{0};

 private:
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*, v1::StatusReply* reply) override {
    reply->set_phase("running");
    return grpc::Status::OK;
  }
  grpc::Status Events(grpc::ServerContext*, const v1::EventsRequest* request, v1::EventsReply* reply) override {
    ++events_calls;
    if (!refusal.ok()) return refusal;
    for (const Row& row : rows) {
      if (row.id <= request->after_id()) continue;
      v1::EventRecord& event = *reply->add_events();
      event.set_id(row.id);
      event.set_unix_ms(row.unix_ms);
      event.set_epoch(row.epoch);
      event.set_kind(row.kind);
    }
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class ViewJobTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fmt::format("{}phalanx-job-view-test-{}", ::testing::TempDir(), getpid());
    std::filesystem::create_directories(folder_);
    ASSERT_TRUE(WritePrivateFile(folder_ + "/address", master_.address() + "\n").ok());
    ASSERT_TRUE(WritePrivateFile(folder_ + "/token", "secret\n").ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void WriteRecord(const std::vector<Row>& rows) {
    master::RecordWriter writer(folder_ + "/events.db", {0, "m", "job", "", 1, 0}, 1, [](const std::string&) {});
    for (const Row& row : rows) writer.Append(row, master::RowWeight::kTelling);
    ASSERT_TRUE(writer.Close(10'000));
  }
  JobView View(JobQuery query = {}) {
    query.state_dir = folder_;
    const StatusOr<JobView> view =
        ViewJob(query, Environment(std::map<std::string, std::string>{{"PHALANX_TOKEN", "secret"}}));
    EXPECT_TRUE(view.ok()) << view.status();
    return view.ok() ? *view : JobView();
  }

  FakeMaster master_;
  std::string folder_;
};

TEST_F(ViewJobTest, TheRecordKnowsWhatALiveMasterHasForgotten) {
  WriteRecord({RowOf(1, 1'000), RowOf(2, 2'000), RowOf(3, 3'000)});
  master_.rows = {RowOf(1, 1'000), RowOf(3, 3'000)};
  const JobView view = View();
  EXPECT_TRUE(view.live);
  EXPECT_TRUE(view.recorded);
  EXPECT_EQ(view.rows.size(), 3U);
}

TEST_F(ViewJobTest, AsksNoRowsWhereTheStatusIsEnough) {
  WriteRecord({RowOf(1, 1'000), RowOf(2, 2'000), RowOf(3, 3'000)});
  master_.rows = {RowOf(1, 1'000), RowOf(3, 3'000)};
  master_.refusal = grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "64 questions are answered already");
  for (const std::string& address : {std::string(), master_.address()}) {
    JobQuery query;
    query.master = address;
    query.rows = false;
    const JobView view = View(query);
    EXPECT_TRUE(view.live);
    EXPECT_EQ(view.status.phase(), "running");
    EXPECT_FALSE(view.recorded);
    EXPECT_TRUE(view.rows.empty());
  }
  EXPECT_EQ(master_.events_calls, 0);
}

TEST_F(ViewJobTest, ReadsTheStatusOfAJobWhoseMasterIsGone) {
  WriteRecord({RowOf(1, 10), RowOf(2, 20, "job-finished")});
  std::filesystem::remove(folder_ + "/address");
  JobQuery query;
  query.rows = false;
  const JobView view = View(query);
  EXPECT_FALSE(view.live);
  EXPECT_EQ(view.status.phase(), "finished");
}

TEST_F(ViewJobTest, AnEarlierRunsRecordTellsNothingOfALiveMastersJob) {
  WriteRecord({RowOf(1, 10), RowOf(2, 20), RowOf(3, 30)});
  master_.rows = {RowOf(1, 1'000), RowOf(3, 3'000)};
  const JobView view = View();
  EXPECT_TRUE(view.live);
  EXPECT_FALSE(view.recorded);
  ASSERT_EQ(view.rows.size(), 2U);
  EXPECT_EQ(view.rows[0].unix_ms, 1'000);
}

}  // namespace
}  // namespace phalanx::cli

#include "master/record/record.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>

#include "base/test_threads.h"
#include "master/record/lost_rows.h"
#include "master/record/sqlite.h"

namespace phalanx::master {
namespace {

class RecordTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fmt::format("{}phalanx-record-test-{}", ::testing::TempDir(), getpid());
    std::filesystem::create_directories(folder_);
    path_ = fmt::format("{}/events.db", folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<RecordWriter> Writer(const std::string& job = "job") {
    RecordRun run;
    run.master_id = "m";
    run.job_id = job;
    run.started_unix_ms = 1;
    return Writer(run, 1);
  }
  std::unique_ptr<RecordWriter> Writer(const RecordRun& run, int64_t now_unix_ms) {
    return std::make_unique<RecordWriter>(path_, run, now_unix_ms, [this](const std::string&) { ++warnings_; });
  }
  static RecordRow Row(int64_t id) {
    return {id, 0, 7, "node-joined", "a", 3, "it's a \"reason\"; DROP TABLE events", "{\"x\":1}"};
  }
  // None where the record cannot be read yet.
  std::vector<RecordRow> Rows() {
    auto reader = RecordReader::Open(path_);
    if (!reader.ok()) return {};
    const auto run = reader->LastRun("");
    if (!run.ok() || !run->has_value()) return {};
    auto rows = reader->Rows((*run)->run, 0, 10);
    return rows.ok() ? *rows : std::vector<RecordRow>();
  }
  std::vector<RecordRow> Read(const std::string& job = "") {
    auto reader = RecordReader::Open(path_);
    EXPECT_TRUE(reader.ok()) << reader.status();
    const auto run = reader->LastRun(job);
    EXPECT_TRUE(run.ok() && run->has_value());
    return *reader->Rows((*run)->run, 0, 1'000'000);
  }

  std::string folder_;
  std::string path_;
  std::atomic<int> warnings_ = 0;
};

TEST_F(RecordTest, SaysThatNoThreadWritesItAndIsClosedAtOnce) {
  const NoThreads full;
  auto writer = Writer();
  writer->Append({}, RowWeight::kTelling);
  EXPECT_EQ(warnings_, 1);
  EXPECT_TRUE(writer->Close(60'000));
}

TEST_F(RecordTest, KeepsRowsInOrder) {
  auto writer = Writer();
  for (int64_t id = 1; id <= 500; ++id) writer->Append(Row(id), RowWeight::kTelling);
  EXPECT_TRUE(writer->Close(10'000));
  const auto rows = Read();
  ASSERT_EQ(rows.size(), 500U);
  EXPECT_EQ(rows[499].id, 500);
  EXPECT_EQ(rows[0].reason, Row(1).reason);
  EXPECT_EQ(rows[0].epoch, 7U);
  EXPECT_EQ(rows[0].rank, 3);
  EXPECT_EQ(rows[0].detail_json, "{\"x\":1}");
  EXPECT_EQ(warnings_, 0);
  struct stat info {};
  stat(path_.c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
}

TEST_F(RecordTest, TellsTheNewestRows) {
  auto writer = Writer();
  for (int64_t id = 1; id <= 50; ++id) writer->Append(Row(id), RowWeight::kTelling);
  EXPECT_TRUE(writer->Close(10'000));
  auto reader = RecordReader::Open(path_);
  ASSERT_TRUE(reader.ok()) << reader.status();
  const auto newest = reader->LastRows(1, 3);
  ASSERT_TRUE(newest.ok() && newest->size() == 3U);
  EXPECT_EQ(newest->front().id, 48);
  EXPECT_EQ(newest->back().id, 50);
  EXPECT_EQ(reader->LastRows(1, 100)->size(), 50U);
  EXPECT_TRUE(reader->LastRows(2, 100)->empty());
}

TEST_F(RecordTest, KeepsRunsApartAndForgetsOldOnes) {
  for (int i = 0; i < RecordWriter::kRunsKept + 3; ++i) {
    auto writer = Writer(i == 5 ? "other" : "job");
    writer->Append(Row(i + 1), RowWeight::kTelling);
    EXPECT_TRUE(writer->Close(10'000));
  }
  EXPECT_EQ(Read("job").at(0).id, RecordWriter::kRunsKept + 3);
  EXPECT_EQ(Read("other").at(0).id, 6);
  auto db = Sqlite::Open(path_, SQLITE_OPEN_READWRITE);
  EXPECT_EQ(*db->Number("SELECT count(*) FROM runs"), RecordWriter::kRunsKept);
  EXPECT_EQ(*db->Number("SELECT count(*) FROM events"), RecordWriter::kRunsKept);
}

TEST_F(RecordTest, ARunThatIsGoneOnWithEndsByTheClockOfItsRows) {
  const auto read = [this] { return **RecordReader::Open(path_)->LastRun("job"); };
  EXPECT_TRUE(Writer()->Close(10'000));
  constexpr int64_t kLater = 100'000'000;
  EXPECT_TRUE(Writer(read(), kLater)->Close(10'000));
  EXPECT_EQ(read().run, 1);
  EXPECT_EQ(read().started_unix_ms, 1);
  EXPECT_GE(read().ended_unix_ms, kLater);
}

TEST_F(RecordTest, IsReadableAfterAKill) {
  // What a killed master leaves: no close, so a WAL lies beside the file.
  const pid_t child = fork();
  if (child == 0) {
    auto writer = Writer();
    writer->Append(Row(1), RowWeight::kTelling);
    while (Rows().empty()) {
    }
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(Read().size(), 1U);
}

TEST_F(RecordTest, ADiskThatTakesNoMoreCostsRowsAndOneWarning) {
  auto writer = Writer();
  writer->Append(Row(1), RowWeight::kTelling);
  while (!std::filesystem::exists(path_) || Rows().empty()) {
  }
  // Files of this process may not grow for a while, as on a full disk.
  signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit none{1, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  int64_t id = 2;
  while (warnings_ == 0) {  // far fewer than may be queued: the last row must find room
    if (id < 1'000) writer->Append(Row(id++), RowWeight::kTelling);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  writer->Append(Row(id), RowWeight::kTelling);
  EXPECT_TRUE(writer->Close(10'000));
  EXPECT_EQ(warnings_, 1);
  const auto rows = Read();
  EXPECT_EQ(rows.front().id, 1);
  EXPECT_EQ(rows.back().id, id);
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), [](const RecordRow& r) { return r.kind == "record-lost"; }));
}

TEST_F(RecordTest, ABurstCostsRowsOfManyAndNotTheStory) {
  auto writer = Writer();
  writer->Append(Row(1), RowWeight::kTelling);
  while (!std::filesystem::exists(path_) || Rows().empty()) {
  }
  auto other = Sqlite::Open(path_, SQLITE_OPEN_READWRITE);
  ASSERT_TRUE(other.ok() && other->Run("BEGIN IMMEDIATE").ok());  // nobody else may write meanwhile
  constexpr int64_t kMany = 3 * static_cast<int64_t>(RecordWriter::kMaxQueued);
  constexpr int64_t kTelling = 100;
  int64_t id = 1;
  while (id <= kMany) writer->Append(Row(++id), RowWeight::kFurther);
  while (id <= kMany + kTelling) writer->Append(Row(++id), RowWeight::kTelling);
  ASSERT_TRUE(other->Run("COMMIT").ok());
  EXPECT_TRUE(writer->Close(10'000));

  EXPECT_EQ(warnings_, 1);
  const auto rows = Read();
  int64_t told = 0, lost = 0;
  for (const RecordRow& row : rows) {  // one that the file kept waiting for too long is lost with those of its write
    if (IsLostRow(row))
      lost += LostCount(row);
    else
      ++told;
  }
  EXPECT_LT(told, kMany);
  EXPECT_EQ(lost, id - told);
  for (int64_t i = 0; i < kTelling; ++i) EXPECT_EQ(rows[rows.size() - 1 - static_cast<size_t>(i)].id, id - i);
}

TEST_F(RecordTest, AFolderThatIsGoneNeverFailsTheCaller) {
  path_ = fmt::format("{}/missing/events.db", folder_);
  auto writer = Writer();
  for (int64_t id = 1; id <= 100; ++id) writer->Append(Row(id), RowWeight::kTelling);
  EXPECT_TRUE(writer->Close(10'000));
  EXPECT_EQ(warnings_, 1);
}

TEST_F(RecordTest, ADamagedFileIsPutAside) {
  std::ofstream(path_) << std::string(8'192, 'x');
  auto writer = Writer();
  writer->Append(Row(1), RowWeight::kTelling);
  EXPECT_TRUE(writer->Close(10'000));
  EXPECT_EQ(Read().size(), 1U);
  EXPECT_EQ(warnings_, 1);
  EXPECT_TRUE(std::filesystem::exists(path_ + ".damaged"));
}

TEST_F(RecordTest, RefusesWhatIsNotOurs) {
  EXPECT_EQ(RecordReader::Open(path_).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(path_) << std::string(8'192, 'x');
  EXPECT_EQ(RecordReader::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(path_);
  {
    auto db = Sqlite::Open(path_, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    ASSERT_TRUE(db->Run("CREATE TABLE t (x); PRAGMA application_id=99").ok());
  }
  EXPECT_EQ(RecordReader::Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  {
    auto db = Sqlite::Open(path_, SQLITE_OPEN_READWRITE);
    ASSERT_TRUE(db->Run("PRAGMA application_id=1346915416; PRAGMA user_version=2").ok());
  }
  const Status newer = RecordReader::Open(path_).status();
  EXPECT_NE(std::string(newer.message()).find("newer Phalanx"), std::string::npos) << newer;
}

}  // namespace
}  // namespace phalanx::master

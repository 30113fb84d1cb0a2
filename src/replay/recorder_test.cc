#include "replay/recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/test_folder.h"

namespace phalanx::replay {
namespace {

using ::testing::HasSubstr;

v1::ReplayStart Start() {
  v1::ReplayStart start;
  start.mutable_agent()->set_node_id("node");
  return start;
}

v1::ReplayFrame Event(int64_t now_ms) {
  v1::ReplayFrame frame;
  frame.mutable_event()->set_now_ms(now_ms);
  frame.mutable_event()->mutable_agent()->mutable_tick();
  return frame;
}

v1::ReplayFrame Decided() {
  v1::ReplayFrame frame;
  frame.mutable_decisions()->add_decisions()->set_action("a");
  return frame;
}

class ReplayRecorder : public ::testing::Test {
 protected:
  StatusOr<std::unique_ptr<Recorder>> Open(uint64_t max_bytes = kMaxLogBytes) {
    return Recorder::Open(
        folder_, "agent-1", Start(), [this](const std::string& text) { warnings_.push_back(text); }, max_bytes);
  }

  std::string Log() const { return parent_.Read("logs/agent-1.replay"); }

  static mode_t ModeOf(const std::string& path) {
    struct stat info {};
    stat(path.c_str(), &info);
    return info.st_mode & 0777;
  }

  const TestFolder parent_;
  std::string folder_ = parent_ / "logs";
  std::vector<std::string> warnings_;
};

TEST_F(ReplayRecorder, WhatItWritesIsForItsUserAndIsRead) {
  {
    auto recorder = Open();
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    (*recorder)->Add(Event(5));
    (*recorder)->Add(Decided());
    const std::string log = Log();  // at once: what ends the process is in it
    auto reader = LogReader::Open(log);
    ASSERT_TRUE(reader.ok()) << reader.status();
    ASSERT_TRUE((*reader->Next()).has_value());
  }
  EXPECT_EQ(ModeOf(folder_), 0700u);
  EXPECT_EQ(ModeOf(folder_ + "/agent-1.replay"), 0600u);
  const std::string log = Log();
  auto reader = LogReader::Open(log);
  ASSERT_TRUE(reader.ok()) << reader.status();
  ASSERT_TRUE((*reader->Next()).has_value());
  EXPECT_FALSE((*reader->Next()).has_value());
  EXPECT_EQ(reader->end(), LogEnd::kClosed);
}

TEST_F(ReplayRecorder, ALogThatIsThereIsNotWrittenOver) {
  ASSERT_TRUE(Open().ok());
  const std::string log = Log();
  EXPECT_TRUE(absl::IsAlreadyExists(Open().status()));
  EXPECT_EQ(Log(), log);
  folder_ += "/no/such";
  EXPECT_THAT(Message(Open().status()), HasSubstr("/no/such"));
}

TEST_F(ReplayRecorder, StopsAtItsBoundAndSaysSo) {
  constexpr uint64_t kBound = 300;
  {
    auto recorder = Open(kBound);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    for (int64_t now = 0; now < 100; ++now) {
      (*recorder)->Add(Event(now));
      (*recorder)->Add(Decided());
    }
  }
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("bound of 300 bytes"));
  const std::string log = Log();
  EXPECT_LE(log.size(), kBound);
  EXPECT_GT(log.size(), kBound - 50);
  auto reader = LogReader::Open(log);
  ASSERT_TRUE(reader.ok()) << reader.status();
  while (true) {
    const auto step = reader->Next();
    ASSERT_TRUE(step.ok()) << step.status();
    if (!*step) break;
  }
  EXPECT_EQ(reader->end(), LogEnd::kFull);
}

TEST_F(ReplayRecorder, ADiskThatTakesNothingMoreEndsTheLogAlone) {
  auto recorder = Open();
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  const rlimit none{Log().size() + 20, RLIM_INFINITY};
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &none);
  for (int64_t now = 0; now < 5; ++now) {
    (*recorder)->Add(Event(now));
    (*recorder)->Add(Decided());
  }
  setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("nothing more is recorded"));
}

}  // namespace
}  // namespace phalanx::replay

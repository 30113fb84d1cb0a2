#include "replay/log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace phalanx::replay {
namespace {

using ::testing::HasSubstr;

v1::ReplayFrame Start(int64_t now_ms = 1'000) {
  v1::ReplayFrame frame;
  frame.mutable_start()->set_job_id("job");
  frame.mutable_start()->set_now_ms(now_ms);
  frame.mutable_start()->mutable_agent()->set_node_id("node");
  return frame;
}

v1::ReplayFrame TickAt(int64_t now_ms) {
  v1::ReplayFrame frame;
  frame.mutable_event()->set_now_ms(now_ms);
  frame.mutable_event()->mutable_agent()->mutable_tick();
  return frame;
}

v1::ReplayFrame Decided(const std::string& action) {
  v1::ReplayFrame frame;
  frame.mutable_decisions()->add_decisions()->set_action(action);
  return frame;
}

v1::ReplayFrame End(bool full = false) {
  v1::ReplayFrame frame;
  frame.mutable_end()->set_full(full);
  return frame;
}

std::string LogOf(const std::vector<v1::ReplayFrame>& frames) {
  std::string log = LogHeader();
  for (const v1::ReplayFrame& frame : frames) log += FrameBytes(frame);
  return log;
}

struct Read {
  std::vector<RecordedStep> steps;
  Status status;
  LogEnd end = LogEnd::kClosed;
  uint64_t torn_bytes = 0;
};

Read ReadAll(const std::string& log) {
  Read read;
  StatusOr<LogReader> reader = LogReader::Open(log);
  read.status = reader.status();
  while (reader.ok()) {
    StatusOr<std::optional<RecordedStep>> step = reader->Next();
    read.status = step.status();
    if (!step.ok() || !*step) break;
    read.steps.push_back(**step);
  }
  if (!reader.ok()) return read;
  read.end = reader->end();
  read.torn_bytes = reader->torn_bytes();
  return read;
}

const std::vector<v1::ReplayFrame> kWhole = {Start(), TickAt(1'000), Decided("a"), TickAt(1'005), Decided("b"), End()};

TEST(ReplayLog, IsReadAsItWasWritten) {
  const Read read = ReadAll(LogOf(kWhole));
  ASSERT_TRUE(read.status.ok()) << read.status;
  ASSERT_EQ(read.steps.size(), 2u);
  EXPECT_EQ(read.steps[1].event.now_ms(), 1'005);
  ASSERT_TRUE(read.steps[1].decisions);
  EXPECT_EQ(read.steps[1].decisions->decisions(0).action(), "b");
  EXPECT_EQ(read.end, LogEnd::kClosed);
  EXPECT_EQ(read.torn_bytes, 0u);
}

TEST(ReplayLog, EveryChangedBitIsSeen) {
  const std::string whole = LogOf(kWhole);
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string log = whole;
    log[bit / 8] = static_cast<char>(log[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(ReadAll(log).status.ok()) << "bit " << bit;
  }
}

TEST(ReplayLog, OfAKilledProcessIsReadAsFarAsItGoes) {
  const std::string whole = LogOf(kWhole);
  const size_t header = LogOf({Start()}).size();
  size_t most = 0;
  for (size_t bytes = header; bytes < whole.size(); ++bytes) {
    const Read read = ReadAll(whole.substr(0, bytes));
    ASSERT_TRUE(read.status.ok()) << read.status;
    EXPECT_EQ(read.end, LogEnd::kCutOff);
    EXPECT_GE(read.steps.size(), most);
    most = read.steps.size();
  }
  EXPECT_EQ(most, 2u);
  EXPECT_FALSE(ReadAll(whole.substr(0, header - 1)).status.ok());
}

TEST(ReplayLog, AStepThatEndedTheProcessHasNoDecisions) {
  const Read read = ReadAll(LogOf({Start(), TickAt(1'000), Decided("a"), TickAt(1'001)}));
  ASSERT_EQ(read.steps.size(), 2u);
  EXPECT_FALSE(read.steps[1].decisions);
}

TEST(ReplayLog, ThatIsFullSaysSo) {
  const Read read = ReadAll(LogOf({Start(), TickAt(1'000), End(true)}));
  EXPECT_EQ(read.end, LogEnd::kFull);
  EXPECT_EQ(read.steps.size(), 1u);
}

TEST(ReplayLog, FramesStandWhereTheyMay) {
  const v1::ReplayFrame nothing;
  const std::vector<std::vector<v1::ReplayFrame>> wrong = {
      {TickAt(1'000)},                                      // no start
      {Start(), Start()},                                   // two of them
      {Start(), Decided("a")},                              // decided without an event
      {Start(), TickAt(1'000), TickAt(1'000)},              // an event without decisions, and more behind it
      {Start(), TickAt(1'000), Decided("a"), TickAt(999)},  // time goes back
      {Start(), TickAt(999)},                               // ... behind the start
      {Start(int64_t{1} << 60)},                            // no machine runs so long
      {Start(), TickAt(int64_t{1} << 60)},
      {Start(), nothing},
      {Start(), End(), TickAt(1'000)},  // behind the end
  };
  for (size_t i = 0; i < wrong.size(); ++i) {
    EXPECT_TRUE(absl::IsDataLoss(ReadAll(LogOf(wrong[i])).status)) << "log " << i;
  }
}

TEST(ReplayLog, SaysWhichByteIsWrong) {
  std::string log = LogOf(kWhole);
  const size_t at = LogOf({Start(), TickAt(1'000)}).size();
  log[at + 12] = static_cast<char>(log[at + 12] ^ 1);
  const Read read = ReadAll(log);
  EXPECT_THAT(Message(read.status), HasSubstr(fmt::format("damaged at byte {}", at)));
}

TEST(ReplayLog, OfANewerLayoutIsRefusedByName) {
  std::string log = LogOf(kWhole);
  log[8] = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(ReadAll(log).status));
  EXPECT_TRUE(absl::IsDataLoss(ReadAll("").status));
  EXPECT_TRUE(absl::IsDataLoss(ReadAll("PHLXJRNL........................").status));
}

}  // namespace
}  // namespace phalanx::replay

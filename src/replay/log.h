// A replay log as bytes (docs/formats/replay-log.md), and back: frames with checksums, steps of them. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::replay {

// A longer log, or frame, is none.
constexpr uint64_t kMaxLogBytes = uint64_t{256} << 20;

// What a log begins with.
std::string LogHeader();

// `frame` as it stands in a log.
std::string FrameBytes(const v1::ReplayFrame& frame);

// One step of the core, as it was recorded.
struct RecordedStep {
  v1::ReplayEvent event;
  std::optional<v1::ReplayDecisions> decisions;  // absent: the step did not come to an end, or is not in the log
};

enum class LogEnd {
  kClosed,  // the process ended, and its log with it
  kFull,    // the log came to its bound; the process went on
  kCutOff,  // the process was killed, or lives
};

// Reads a log that lies in memory, once. It distrusts the bytes: what it returns is in the order that a recorder keeps,
// with times that do not go back.
class LogReader {
 public:
  // `bytes` must outlive the reader. DataLoss where they are no log with a start, FailedPrecondition where a newer
  // Phalanx wrote them.
  static StatusOr<LogReader> Open(std::string_view bytes);

  const v1::ReplayStart& start() const { return start_; }

  // The next step; absent: there is none. DataLoss where the log is damaged, with the byte; not to be asked again then.
  StatusOr<std::optional<RecordedStep>> Next();

  // Once Next has said that there is no step.
  LogEnd end() const { return end_; }
  // Bytes of a frame that the log ends in.
  uint64_t torn_bytes() const { return torn_bytes_; }

 private:
  explicit LogReader(std::string_view bytes) : bytes_(bytes) {}
  StatusOr<std::optional<v1::ReplayFrame>> NextFrame();
  Status Damage(const std::string& what) const;
  Status CheckTime(int64_t now_ms);
  v1::ReplayEvent TakeEvent();

  std::string_view bytes_;
  uint64_t frame_at_ = 0;  // where the frame that was read last begins
  uint64_t next_at_ = 0;
  uint64_t torn_bytes_ = 0;
  v1::ReplayStart start_;
  std::optional<v1::ReplayEvent> event_;  // whose decisions are to come
  int64_t now_ms_ = 0;
  bool over_ = false;
  LogEnd end_ = LogEnd::kCutOff;
};

}  // namespace phalanx::replay

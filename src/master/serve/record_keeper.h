// The job's rows, on their way from decisions to the record on disk and to those who ask a live master. Belongs to the
// master's sequence; the record is written on a thread of its own, and nothing waits for it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "master/core/core.h"
#include "master/record/recent_rows.h"
#include "master/record/record.h"
#include "phalanx/v1/admin.pb.h"

namespace phalanx::master {

// What the threads that write to the disk have to say, until the master's own sequence takes it.
class DiskWarnings {
 public:
  void Add(const std::string& text);
  bool empty();
  std::vector<std::string> Take();

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

class RecordKeeper {
 public:
  // Rows of an earlier master that are read again: a job whose world is large has some rounds in them. What they cost a
  // start is some ten milliseconds.
  static constexpr int64_t kRowsReadBack = 32'768;

  // `started_unix_ms`: the wall clock at this moment.
  explicit RecordKeeper(int64_t started_unix_ms) : started_unix_ms_(started_unix_ms) {}

  // Writes to `path` from now on, as `run`; where `resume`, or where its master is called `before_id`, behind the last
  // row of the job's last run there.
  void Open(const std::string& path, RecordRun run, bool resume, const std::string& before_id);
  // Writes what is queued, waiting for a bounded time.
  void Close();

  // The wall clock as it was at the start, going on evenly: times of rows never go back, and their sums are right.
  int64_t UnixNow() const;
  // When the job's first master began, of those whose rows these follow.
  int64_t began_unix_ms() const { return began_unix_ms_; }
  void Add(const Record& action, const std::string& reason);
  // What is remembered of the rows with an id above `after_id`, by id, at most `limit`. All of them are in the record;
  // who asks sees by the ids how many are not here.
  v1::EventsReply After(int64_t after_id, uint32_t limit) const;

  // For threads that write to the disk: what they warn of goes to the log at once, and into warnings(). Any thread, and
  // longer than this object.
  std::function<void(const std::string&)> Warner(const char* kind) const;
  DiskWarnings& warnings() { return *warnings_; }

 private:
  void Continue(const std::string& path, RecordRun& run, const std::string& before_id);

  const int64_t started_unix_ms_;
  const Instant started_ = MonotonicMs();
  int64_t began_unix_ms_ = started_unix_ms_;
  int64_t earlier_unix_ms_ = 0;  // of the last row of an earlier master
  int64_t next_row_ = 1;
  RecentRows recent_;
  const std::shared_ptr<DiskWarnings> warnings_ = std::make_shared<DiskWarnings>();  // those threads may stay
  std::unique_ptr<RecordWriter> writer_;
};

}  // namespace phalanx::master

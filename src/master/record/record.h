// The event record (docs/formats/event-record.md): every event and decision with its reason, in SQLite.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"

namespace phalanx::master {

struct RecordRow {
  int64_t id = 0;
  int64_t unix_ms = 0;
  uint64_t epoch = 0;
  std::string kind;
  std::string node;
  int64_t rank = -1;
  std::string reason;
  std::string detail_json = "{}";
};

// Whether a row tells what has become of a round, or is one of many of its sort (recent_rows.h).
enum class RowWeight { kTelling, kFurther };

struct RecordRun {
  int64_t run = 0;  // 0: a new one, chosen by the writer; else rows are added to that one
  std::string master_id;
  std::string job_id;
  std::string software_version;
  int64_t started_unix_ms = 0;
  int64_t ended_unix_ms = 0;  // 0: not ended
};

// Writes on a thread of its own. Nothing here blocks its caller or fails the job: what cannot be written is counted,
// said once through `warn` (called from the writer's thread), and recorded as lost when writing works again.
class RecordWriter {
 public:
  // Rows that may wait for the disk. A world of 10,000 nodes writes as many at a time; what tells the story of a round
  // has room behind them.
  static constexpr size_t kMaxQueued = 16'384;
  static constexpr size_t kRoomForTelling = 4'096;
  static constexpr int kRunsKept = 16;

  // `now_unix_ms`: the time by the clock that dates the rows. A run that is gone on with has begun long before.
  RecordWriter(const std::string& path, const RecordRun& run, int64_t now_unix_ms,
               std::function<void(const std::string&)> warn);
  RecordWriter(const RecordWriter&) = delete;
  RecordWriter& operator=(const RecordWriter&) = delete;
  // As Close(kCloseMs).
  ~RecordWriter();

  // Queues the row; ids increase. Drops it where kMaxQueued wait already, a telling one where kRoomForTelling more do.
  // Any thread.
  void Append(RecordRow row, RowWeight weight);

  // Writes what is queued and ends the run, waiting at most `timeout_ms`; false where the disk did not answer in time
  // (the thread is then left behind). Nothing may be appended afterwards.
  bool Close(int64_t timeout_ms);

  static constexpr int64_t kCloseMs = 2'000;

 private:
  struct Shared;
  static void Write(const std::shared_ptr<Shared>& shared);
  std::shared_ptr<Shared> shared_;
  bool closed_ = false;
};

// Reads a record, also while it is being written.
class RecordReader {
 public:
  // NotFound where there is none, FailedPrecondition where the file is none of ours or newer than this program.
  static StatusOr<RecordReader> Open(const std::string& path);
  RecordReader(RecordReader&&) noexcept;
  RecordReader& operator=(RecordReader&&) noexcept;
  ~RecordReader();

  // The last run, of job `job_id` where that is not empty. Empty optional: the record holds none.
  StatusOr<std::optional<RecordRun>> LastRun(const std::string& job_id);
  // The newest rows of the run, by id, at most `limit`.
  StatusOr<std::vector<RecordRow>> LastRows(int64_t run, int64_t limit);
  // Rows of the run with an id above `after_id`, by id, at most `limit`.
  StatusOr<std::vector<RecordRow>> Rows(int64_t run, int64_t after_id, int64_t limit);

 private:
  struct Db;
  explicit RecordReader(std::unique_ptr<Db> db);
  std::unique_ptr<Db> db_;
};

}  // namespace phalanx::master

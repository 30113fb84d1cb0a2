#include "master/record/record.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/thread.h"
#include "master/record/lost_rows.h"
#include "master/record/sqlite.h"

namespace phalanx::master {
namespace {

constexpr int64_t kApplicationId = 0x50484C58;  // PHLX
constexpr int64_t kVersion = 1;

constexpr const char* kSchema = R"(
  CREATE TABLE IF NOT EXISTS runs (
    run INTEGER PRIMARY KEY, master_id TEXT NOT NULL, job_id TEXT NOT NULL, software_version TEXT NOT NULL,
    started_unix_ms INTEGER NOT NULL, ended_unix_ms INTEGER);
  CREATE TABLE IF NOT EXISTS events (
    run INTEGER NOT NULL, id INTEGER NOT NULL, unix_ms INTEGER NOT NULL, epoch INTEGER NOT NULL, kind TEXT NOT NULL,
    node TEXT NOT NULL, rank INTEGER NOT NULL, reason TEXT NOT NULL, detail TEXT NOT NULL,
    PRIMARY KEY (run, id)) WITHOUT ROWID;
)";

// An empty file passes: it becomes a record.
Status CheckIdentity(Sqlite& db, const std::string& path) {
  PHX_ASSIGN_OR_RETURN(const int64_t id, db.Number("PRAGMA application_id"));
  PHX_ASSIGN_OR_RETURN(const int64_t version, db.Number("PRAGMA user_version"));
  if (id != 0 && id != kApplicationId) {
    return absl::FailedPreconditionError(fmt::format("{}: not an event record of Phalanx", path));
  }
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        fmt::format("{}: written by a newer Phalanx (layout {}, this one knows {})", path, version, kVersion));
  }
  return absl::OkStatus();
}

// The database with a row for this run.
class Log {
 public:
  static StatusOr<Log> Open(const std::string& path, const RecordRun& run) {
    // SQLite gives its other files the mode of this one.
    StatusOr<Sqlite> db = Sqlite::Open(path, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE);
    if (!db.ok()) return db.status();
    chmod(path.c_str(), 0600);
    PHX_RETURN_IF_ERROR(db->Run("PRAGMA busy_timeout=1000"));
    PHX_RETURN_IF_ERROR(CheckIdentity(*db, path));
    PHX_RETURN_IF_ERROR(db->Run("PRAGMA journal_mode=WAL"));
    PHX_RETURN_IF_ERROR(db->Run("PRAGMA synchronous=NORMAL"));
    PHX_RETURN_IF_ERROR(db->Run(fmt::format("PRAGMA application_id={}", kApplicationId)));
    PHX_RETURN_IF_ERROR(db->Run(fmt::format("PRAGMA user_version={}", kVersion)));
    PHX_RETURN_IF_ERROR(db->Run(kSchema));
    Log log(*std::move(db));
    PHX_RETURN_IF_ERROR(log.BeginRun(run));
    return log;
  }

  Status Write(const std::deque<RecordRow>& rows) {
    PHX_RETURN_IF_ERROR(db_.Run("BEGIN IMMEDIATE"));
    Status written = Insert(rows);
    if (written.ok()) return db_.Run("COMMIT");
    db_.Run("ROLLBACK").IgnoreError();
    return written;
  }

  Status EndRun(int64_t unix_ms) {
    return db_.Run(fmt::format("UPDATE runs SET ended_unix_ms={} WHERE run={}", unix_ms, run_));
  }

 private:
  explicit Log(Sqlite db) : db_(std::move(db)) {}

  Status BeginRun(const RecordRun& run) {
    if (run.run > 0) {
      run_ = run.run;
      return db_.Run(fmt::format("UPDATE runs SET ended_unix_ms=NULL WHERE run={}", run_));
    }
    PHX_ASSIGN_OR_RETURN(
        SqliteStatement insert,
        db_.Prepare("INSERT INTO runs (master_id, job_id, software_version, started_unix_ms) VALUES (?, ?, ?, ?)"));
    insert.Bind(run.master_id).Bind(run.job_id).Bind(run.software_version).Bind(run.started_unix_ms);
    PHX_RETURN_IF_ERROR(insert.Finish());
    run_ = db_.LastRowId();
    const int64_t oldest = run_ - RecordWriter::kRunsKept;
    PHX_RETURN_IF_ERROR(db_.Run(fmt::format("DELETE FROM runs WHERE run <= {}", oldest)));
    return db_.Run(fmt::format("DELETE FROM events WHERE run <= {}", oldest));
  }

  Status Insert(const std::deque<RecordRow>& rows) {
    PHX_ASSIGN_OR_RETURN(SqliteStatement insert,
                         db_.Prepare("INSERT OR REPLACE INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"));
    for (const RecordRow& row : rows) {
      insert.Bind(run_).Bind(row.id).Bind(row.unix_ms).Bind(static_cast<int64_t>(row.epoch)).Bind(row.kind);
      insert.Bind(row.node).Bind(row.rank).Bind(row.reason).Bind(row.detail_json);
      PHX_RETURN_IF_ERROR(insert.Finish());
    }
    return absl::OkStatus();
  }

  Sqlite db_;
  int64_t run_ = 0;
};

}  // namespace

struct RecordWriter::Shared {
  std::string path;
  RecordRun run;
  std::function<void(const std::string&)> warn;
  Instant begun_at = 0;
  int64_t begun_unix_ms = 0;
  // As the rows' times: the wall clock as it was at the start, going on evenly.
  int64_t UnixNow() const { return begun_unix_ms + (MonotonicMs() - begun_at); }

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<RecordRow> queued;
  int64_t lost = 0;        // rows since the last that was written
  int64_t first_lost = 0;  // id of the first of them
  bool closing = false;
  bool ended = false;
};

RecordWriter::RecordWriter(const std::string& path, const RecordRun& run, int64_t now_unix_ms,
                           std::function<void(const std::string&)> warn)
    : shared_(std::make_shared<Shared>()) {
  shared_->path = path;
  shared_->run = run;
  shared_->warn = std::move(warn);
  shared_->begun_at = MonotonicMs();
  shared_->begun_unix_ms = now_unix_ms;
  // Detached: a disk that hangs for ever must not keep the master from ending.
  StatusOr<std::thread> thread = StartThread([shared = shared_] { Write(shared); });
  if (thread.ok()) {
    thread->detach();
    return;
  }
  shared_->ended = true;
  shared_->warn(fmt::format("no event record: {}", Message(thread.status())));
}

RecordWriter::~RecordWriter() { Close(kCloseMs); }

void RecordWriter::Append(RecordRow row, RowWeight weight) {
  const size_t room = kMaxQueued + (weight == RowWeight::kTelling ? kRoomForTelling : 0);
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->ended) return;
  if (shared_->queued.size() >= room) {
    if (shared_->lost++ == 0) shared_->first_lost = row.id;
    return;
  }
  shared_->queued.push_back(std::move(row));
  shared_->changed.notify_all();
}

bool RecordWriter::Close(int64_t timeout_ms) {
  if (std::exchange(closed_, true)) return true;
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->closing = true;
  shared_->changed.notify_all();
  return shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return shared_->ended; });
}

void RecordWriter::Write(const std::shared_ptr<Shared>& shared) {
  Shared& s = *shared;
  StatusOr<Log> log = Log::Open(s.path, s.run);
  if (log.status().code() == absl::StatusCode::kDataLoss) {
    s.warn(fmt::format("{}; kept as events.db.damaged, a new record begins", Message(log.status())));
    rename(s.path.c_str(), (s.path + ".damaged").c_str());
    unlink((s.path + "-wal").c_str());
    log = Log::Open(s.path, s.run);
  }
  if (!log.ok()) s.warn(fmt::format("no event record: {}", Message(log.status())));
  bool warned = !log.ok();
  std::unique_lock<std::mutex> lock(s.mutex);
  while (true) {
    s.changed.wait(lock, [&s] { return s.closing || !s.queued.empty(); });
    if (s.queued.empty()) break;
    std::deque<RecordRow> rows = std::exchange(s.queued, {});
    const int64_t lost = std::exchange(s.lost, 0);
    const int64_t first_lost = s.first_lost;
    if (lost > 0) rows.push_back(LostRow(first_lost, lost, s.UnixNow()));
    lock.unlock();
    if (lost > 0 && !std::exchange(warned, true)) {
      s.warn(fmt::format("the event record has gaps from now on: {} rows came faster than the disk took them", lost));
    }
    const Status written = log.ok() ? log->Write(rows) : log.status();
    if (!written.ok() && !std::exchange(warned, true)) {
      s.warn(fmt::format("the event record has gaps from now on: {}", Message(written)));
    }
    lock.lock();
    if (written.ok()) continue;
    s.first_lost = lost > 0 ? std::min(first_lost, rows.front().id) : rows.front().id;
    s.lost += static_cast<int64_t>(rows.size()) - (lost > 0 ? 1 : 0) + lost;
  }
  const int64_t lost = s.lost;
  lock.unlock();
  if (log.ok() && lost > 0) log->Write({LostRow(s.first_lost, lost, s.UnixNow())}).IgnoreError();
  if (log.ok()) log->EndRun(s.UnixNow()).IgnoreError();
  log = absl::CancelledError("closed");  // closes the file, which empties the WAL
  lock.lock();
  s.ended = true;
  s.changed.notify_all();
}

// --- reading ------------------------------------------------------------------------------------------------------

struct RecordReader::Db {
  Sqlite sqlite;
};

RecordReader::RecordReader(std::unique_ptr<Db> db) : db_(std::move(db)) {}
RecordReader::RecordReader(RecordReader&&) noexcept = default;
RecordReader& RecordReader::operator=(RecordReader&&) noexcept = default;
RecordReader::~RecordReader() = default;

StatusOr<RecordReader> RecordReader::Open(const std::string& path) {
  if (access(path.c_str(), F_OK) != 0) return absl::NotFoundError(fmt::format("no event record at {}", path));
  // A killed master leaves a WAL behind, and reading that needs writing; where we may not, what is in the file must do.
  StatusOr<Sqlite> db = Sqlite::Open(path, SQLITE_OPEN_READWRITE);
  if (!db.ok()) db = Sqlite::Open(path, SQLITE_OPEN_READONLY);
  if (!db.ok()) return db.status();
  PHX_RETURN_IF_ERROR(db->Run("PRAGMA busy_timeout=2000"));
  const Status ours = CheckIdentity(*db, path);
  if (ours.code() == absl::StatusCode::kDataLoss) {
    return absl::FailedPreconditionError(fmt::format("{}: not an event record of Phalanx, or damaged", path));
  }
  PHX_RETURN_IF_ERROR(ours);
  PHX_ASSIGN_OR_RETURN(const int64_t tables,
                       db->Number("SELECT count(*) FROM sqlite_master WHERE name IN ('runs', 'events')"));
  if (tables != 2) return absl::NotFoundError(fmt::format("{}: nothing has been recorded yet", path));
  return RecordReader(std::make_unique<Db>(Db{*std::move(db)}));
}

StatusOr<std::optional<RecordRun>> RecordReader::LastRun(const std::string& job_id) {
  PHX_ASSIGN_OR_RETURN(
      SqliteStatement select,
      db_->sqlite.Prepare("SELECT run, master_id, job_id, software_version, started_unix_ms, "
                          "ended_unix_ms FROM runs WHERE ?1 = '' OR job_id = ?1 ORDER BY run DESC LIMIT 1"));
  select.Bind(job_id);
  PHX_ASSIGN_OR_RETURN(const bool row, select.Step());
  if (!row) return std::optional<RecordRun>();
  return std::optional<RecordRun>(
      {select.Int(0), select.Text(1), select.Text(2), select.Text(3), select.Int(4), select.Int(5)});
}

StatusOr<std::vector<RecordRow>> RecordReader::LastRows(int64_t run, int64_t limit) {
  PHX_ASSIGN_OR_RETURN(const int64_t last,
                       db_->sqlite.Number(fmt::format("SELECT COALESCE(MAX(id), 0) FROM events WHERE run={}", run)));
  return Rows(run, last - limit, limit);
}

StatusOr<std::vector<RecordRow>> RecordReader::Rows(int64_t run, int64_t after_id, int64_t limit) {
  PHX_ASSIGN_OR_RETURN(SqliteStatement select,
                       db_->sqlite.Prepare("SELECT id, unix_ms, epoch, kind, node, rank, reason, detail FROM events "
                                           "WHERE run = ? AND id > ? ORDER BY id LIMIT ?"));
  select.Bind(run).Bind(after_id).Bind(limit);
  std::vector<RecordRow> rows;
  while (true) {
    PHX_ASSIGN_OR_RETURN(const bool row, select.Step());
    if (!row) return rows;
    rows.push_back({select.Int(0), select.Int(1), static_cast<uint64_t>(select.Int(2)), select.Text(3), select.Text(4),
                    select.Int(5), select.Text(6), select.Text(7)});
  }
}

}  // namespace phalanx::master

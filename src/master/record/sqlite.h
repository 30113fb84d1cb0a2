// SQLite behind Status: one connection for one thread.
#pragma once

#include <sqlite3.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace phalanx::master {

class SqliteStatement;

class Sqlite {
 public:
  // `flags` of sqlite3_open_v2.
  static StatusOr<Sqlite> Open(const std::string& path, int flags);
  Sqlite(Sqlite&& other) noexcept : db_(std::exchange(other.db_, nullptr)) {}
  Sqlite& operator=(Sqlite&& other) noexcept {
    std::swap(db_, other.db_);
    return *this;
  }
  ~Sqlite() { sqlite3_close_v2(db_); }

  Status Run(const std::string& sql);
  StatusOr<SqliteStatement> Prepare(const std::string& sql);
  // The single number that `sql` yields.
  StatusOr<int64_t> Number(const std::string& sql);
  int64_t LastRowId() { return sqlite3_last_insert_rowid(db_); }

  // DataLoss for a file that is no (whole) database, ResourceExhausted for a full disk, Unavailable for a locked one.
  Status Error(const std::string& what, int code) const;

 private:
  explicit Sqlite(sqlite3* db) : db_(db) {}
  sqlite3* db_ = nullptr;
};

// Ends before its connection.
class SqliteStatement {
 public:
  SqliteStatement(Sqlite* db, sqlite3_stmt* statement) : db_(db), statement_(statement) {}
  SqliteStatement(SqliteStatement&& other) noexcept
      : db_(other.db_), statement_(std::exchange(other.statement_, nullptr)), bound_(other.bound_) {}
  SqliteStatement& operator=(SqliteStatement&&) = delete;
  ~SqliteStatement() { sqlite3_finalize(statement_); }

  // Parameters in order. Texts are copied.
  SqliteStatement& Bind(int64_t value);
  SqliteStatement& Bind(const std::string& value);

  // True: a row is there to be read.
  StatusOr<bool> Step();
  // Runs to the end and is ready for new parameters.
  Status Finish();

  int64_t Int(int column) { return sqlite3_column_int64(statement_, column); }
  std::string Text(int column);

 private:
  Sqlite* db_;
  sqlite3_stmt* statement_;
  int bound_ = 0;
};

}  // namespace phalanx::master

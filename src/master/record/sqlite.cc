#include "master/record/sqlite.h"

namespace phalanx::master {

StatusOr<Sqlite> Sqlite::Open(const std::string& path, int flags) {
  sqlite3* db = nullptr;
  const int code = sqlite3_open_v2(path.c_str(), &db, flags | SQLITE_OPEN_NOMUTEX, nullptr);
  Sqlite opened(db);
  if (code != SQLITE_OK) return opened.Error(path, code);
  sqlite3_extended_result_codes(db, 1);
  return opened;
}

Status Sqlite::Error(const std::string& what, int code) const {
  const std::string text =
      fmt::format("{}: {}", what, db_ != nullptr && code != SQLITE_OK ? sqlite3_errmsg(db_) : sqlite3_errstr(code));
  switch (code & 0xff) {
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(text);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(text);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(text);
    case SQLITE_CANTOPEN:
      return absl::NotFoundError(text);
    default:
      return absl::InternalError(text);
  }
}

Status Sqlite::Run(const std::string& sql) {
  const int code = sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : Error(sql.substr(0, 40), code);
}

StatusOr<SqliteStatement> Sqlite::Prepare(const std::string& sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v2(db_, sql.c_str(), -1, &statement, nullptr);
  if (code != SQLITE_OK) return Error(sql.substr(0, 40), code);
  return SqliteStatement(this, statement);
}

StatusOr<int64_t> Sqlite::Number(const std::string& sql) {
  PHX_ASSIGN_OR_RETURN(SqliteStatement statement, Prepare(sql));
  PHX_ASSIGN_OR_RETURN(const bool row, statement.Step());
  return row ? statement.Int(0) : 0;
}

SqliteStatement& SqliteStatement::Bind(int64_t value) {
  sqlite3_bind_int64(statement_, ++bound_, value);
  return *this;
}

SqliteStatement& SqliteStatement::Bind(const std::string& value) {
  sqlite3_bind_text64(statement_, ++bound_, value.data(), value.size(), SQLITE_TRANSIENT, SQLITE_UTF8);
  return *this;
}

StatusOr<bool> SqliteStatement::Step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code == SQLITE_DONE) return false;
  return db_->Error("event record", code);
}

Status SqliteStatement::Finish() {
  StatusOr<bool> row = true;
  while (row.ok() && *row) row = Step();
  sqlite3_reset(statement_);
  bound_ = 0;
  return row.status();
}

std::string SqliteStatement::Text(int column) {
  const auto* text = sqlite3_column_text(statement_, column);
  if (text == nullptr) return "";
  return std::string(reinterpret_cast<const char*>(text),
                     static_cast<size_t>(sqlite3_column_bytes(statement_, column)));
}

}  // namespace phalanx::master

#include "master/serve/record_keeper.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "base/log.h"
#include "master/core/convert.h"
#include "master/record/lost_rows.h"

namespace phalanx::master {
namespace {

// 0 where the detail has no such number.
int64_t NumberIn(const Record& record, const char* key) {
  for (const auto& [name, value] : record.detail) {
    if (name == key) return std::holds_alternative<int64_t>(value) ? std::get<int64_t>(value) : 0;
  }
  return 0;
}

}  // namespace

void DiskWarnings::Add(const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  texts_.push_back(text);
}

bool DiskWarnings::empty() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return texts_.empty();
}

std::vector<std::string> DiskWarnings::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(texts_, {});
}

std::function<void(const std::string&)> RecordKeeper::Warner(const char* kind) const {
  return [warnings = warnings_, kind](const std::string& what) {
    Log(LogLevel::kWarning, kind, {{"what", what}});
    warnings->Add(what);
  };
}

int64_t RecordKeeper::UnixNow() const {
  return std::max(started_unix_ms_, earlier_unix_ms_) + (MonotonicMs() - started_);
}

void RecordKeeper::Open(const std::string& path, RecordRun run, bool resume, const std::string& before_id) {
  if (resume || !before_id.empty()) Continue(path, run, before_id);
  writer_ = std::make_unique<RecordWriter>(path, run, UnixNow(), Warner("event-record"));
}

void RecordKeeper::Close() {
  if (writer_) writer_->Close(RecordWriter::kCloseMs);
  writer_.reset();
}

// Rows of this master follow those of the one before: `phalanx ledger` sees one job.
void RecordKeeper::Continue(const std::string& path, RecordRun& run, const std::string& before_id) {
  StatusOr<RecordReader> reader = RecordReader::Open(path);
  if (!reader.ok()) return;
  const auto last = reader->LastRun(run.job_id);
  if (!last.ok() || !*last) return;
  if (!before_id.empty() && (*last)->master_id != before_id) return;
  auto rows = reader->LastRows((*last)->run, kRowsReadBack);
  if (!rows.ok()) return;
  run = **last;
  began_unix_ms_ = run.started_unix_ms;
  if (rows->empty()) return;
  next_row_ = NextRowId(*rows);
  earlier_unix_ms_ = rows->back().unix_ms;
  for (RecordRow& row : *rows) {
    const std::string sort = SortOf(row);
    recent_.Add(std::move(row), sort);
  }
}

void RecordKeeper::Add(const Record& action, const std::string& reason) {
  RecordRow row;
  row.id = next_row_++;
  row.unix_ms = UnixNow();
  row.epoch = action.epoch;
  row.kind = action.kind;
  row.node = action.node;
  row.rank = action.rank;
  row.reason = reason;
  row.detail_json = DetailJson(action);
  const RowWeight weight =
      recent_.Add(row, SortOf(action.kind, [&](const char* key) { return NumberIn(action, key); }));
  if (writer_) writer_->Append(std::move(row), weight);
}

v1::EventsReply RecordKeeper::After(int64_t after_id, uint32_t limit) const {
  v1::EventsReply reply;
  for (const RecordRow* row : recent_.After(after_id, limit)) {
    v1::EventRecord& event = *reply.add_events();
    event.set_id(row->id);
    event.set_unix_ms(row->unix_ms);
    event.set_epoch(row->epoch);
    event.set_kind(row->kind);
    event.set_node(row->node);
    event.set_rank(static_cast<int32_t>(row->rank));
    event.set_reason(row->reason);
    event.set_detail_json(row->detail_json);
  }
  return reply;
}

}  // namespace phalanx::master

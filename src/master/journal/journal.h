// The master's journal (docs/formats/journal.md): one snapshot in one file, replaced as a whole.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace phalanx::master {

// The file around `payload`, and back. DataLoss where it is no whole journal, FailedPrecondition where a newer Phalanx
// wrote it. Pure.
std::string WrapJournal(std::string_view payload);
StatusOr<std::string> UnwrapJournal(std::string_view file);

// The payload of the journal at `path`. NotFound where there is none.
StatusOr<std::string> ReadJournal(const std::string& path);

// Writes on a thread of its own: nothing here blocks its caller or fails the job. What cannot be written is said
// through `warn` (from the writer's thread), once until writing works again.
class JournalWriter {
 public:
  JournalWriter(const std::string& path, std::function<void(const std::string&)> warn);
  JournalWriter(const JournalWriter&) = delete;
  JournalWriter& operator=(const JournalWriter&) = delete;
  // As Flush(kFlushMs).
  ~JournalWriter();

  // `payload` replaces whatever is there, and what still waits. `sync`: it counts as written when the disk has it, and
  // so outlives the machine. Any thread.
  void Put(std::string payload, bool sync = false);

  // Waits until the last payload is written or could not be, at most `timeout_ms`; false where the disk did not answer
  // in time.
  bool Flush(int64_t timeout_ms);

  static constexpr int64_t kFlushMs = 500;

 private:
  struct Shared;
  static void Write(const std::shared_ptr<Shared>& shared);
  std::shared_ptr<Shared> shared_;
};

}  // namespace phalanx::master

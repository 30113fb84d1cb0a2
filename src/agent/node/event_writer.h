// --event-log-handler: the events of this node's workers and of itself, to the console or a file, as they happen
// (docs/formats/torchelastic-events.md). One thread: the event loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/core.h"
#include "agent/flags/config.h"
#include "agent/output/console.h"
#include "agent/report/event_log.h"
#include "agent/workers/supervisor.h"
#include "base/clock.h"
#include "base/event_loop.h"
#include "base/status.h"

namespace phalanx::agent {

class EventWriter {
 public:
  // What they refer to must outlive the writer.
  struct Parts {
    EventLoop& loop;
    const LaunchConfig& config;
    const CoreState& core;
    Supervisor& supervisor;
    Instant began_ms;                                   // when this program began
    std::function<void(const std::string&)> on_notice;  // for people
  };

  // Null where nobody wants events. An error where the file cannot be had.
  static StatusOr<std::unique_ptr<EventWriter>> Open(const Parts& parts);

  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // `state`, `duration_ms`: as in agent/report/event_log.h.
  void TellOfAgent(const std::string& state, std::optional<int64_t> duration_ms);
  // Nothing between rounds. `exited`: null for one that begins.
  void TellOfWorker(const std::string& state, int local_rank, const v1::WorkerExited* exited);

 private:
  explicit EventWriter(const Parts& parts);

  Status OpenFile();
  void Write(const std::string& event);
  EventScene SceneNow() const;

  const Parts parts_;
  const std::string hostname_;
  std::unique_ptr<Console> file_;  // null: the console
};

}  // namespace phalanx::agent

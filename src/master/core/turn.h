// One event on its way through the core: the job that it changes, the time it comes at, and what has been decided so
// far. The core's subjects (arrivals.h, departures.h, away.h, failures.h, rescale.h, progress.h, rounds.h, ending.h)
// are functions of a turn; core.h's Step says in which order they have their say. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "master/core/core.h"
#include "master/topics/checkpoints.h"

namespace phalanx::master {

class Turn {
 public:
  Turn(JobState& job_state, Instant time) : job(job_state), now(time) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  // What has been decided, in order. The turn is over.
  std::vector<Decision> Take();

  void Do(Action action, const std::string& reason) { decisions_.push_back({std::move(action), reason}); }

  void Send(uint64_t session, std::shared_ptr<const v1::MasterMessage> message, const std::string& reason);
  void Send(uint64_t session, v1::MasterMessage message, const std::string& reason);
  void SendNotice(uint64_t session, const std::string& text);
  // Workers of the epoch end; the agent waits for another round.
  void SendHold(uint64_t session, uint64_t epoch, const std::string& reason);

  // A row of the event record about the live round; where none is live, about the last one.
  void Note(const std::string& kind, const std::string& node, const std::string& reason, int64_t rank = -1,
            std::vector<std::pair<std::string, Record::Value>> detail = {});
  // About a worker of `round`, which may be over.
  void NoteRank(const Round& round, const std::string& kind, const std::string& node, const std::string& reason,
                int64_t rank, std::vector<std::pair<std::string, Record::Value>> detail = {});

  // What the event has changed belongs into the journal, and what is sent because of it waits for that.
  void RememberFirst(Remember::When when);

  // What the event has changed belongs into the journal, and may wait a moment there in a large job.
  void RememberSoon();

  // Carries out what the topic of checkpoints has decided.
  void Apply(CheckpointOrders orders);

  // What this event makes rounds begin and end for: "failure", "nodes" or "start".
  std::string Because() const;

  // The last round of a finished job is current, too: it still takes reports.
  bool IsCurrent(uint64_t epoch) const { return job.round && job.round->epoch == epoch; }
  bool IsLive(uint64_t epoch) const { return IsCurrent(epoch) && job.phase != Phase::kFinished; }
  bool HasLiveRound() const { return job.round && job.phase != Phase::kFinished; }

  JobState& job;
  const Instant now;
  bool remember = false;  // what it has changed belongs into the journal
  Remember::When remember_when = Remember::When::kBehind;

 private:
  std::vector<Decision> decisions_;
};

}  // namespace phalanx::master

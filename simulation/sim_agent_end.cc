// How a simulated agent ends, well or not: it leaves its job; or it is killed, and its machine with it. The rest of
// SimAgent is in sim_agent.cc.
#include <utility>

#include "simulation/judge.h"
#include "simulation/sim_agent.h"
#include "simulation/story.h"

namespace phalanx::simulation {

// --- leaving ------------------------------------------------------------------------------------------------------

void SimAgent::Do(const agent::Exit& action) {
  exit_code_ = action.code;
  parts_.judge.OnAgentExit(*this);
  Feed(agent::joining::GivenUp{});
  agent::leaving::Begun begun;
  begun.exit_code = action.code;
  begun.asked = core_.stop_signal != 0;
  begun.attached = core_.attached;
  begun.finished = core_.finish.has_value();
  begun.has_workers = true;
  begun.has_stream = joined_;
  begun.has_master = has_master_;
  begun.beat_interval_ms = core_.beat_interval_ms;
  Feed(begun);
}

void SimAgent::Do(const agent::leaving::SettleStorage& action) {
  if (!joined_) return Feed(agent::leaving::StorageSettled{});
  if (action.leaving) keeper_.OnLeaving();
  if (action.tidy) keeper_.Tidy();
  const bool storing = keeper_.Storing();
  const bool lending = keeper_.Lending();
  if (storing || lending) {
    keeper_.WhenUnneeded([this] { Later(0, [this] { Feed(agent::leaving::StorageIdle{}); }); });
  }
  Feed(agent::leaving::StorageSettled{storing, keeper_.StoringText(), lending});
}

void SimAgent::Do(const agent::leaving::Beat&) { Do(agent::SendBeat{0}); }

void SimAgent::Do(const agent::leaving::Depart& action) {
  if (joined_) keeper_.End(action.exit_code != 0);
  Feed(agent::checking::Over{});
  workers_.WantSpares(0);
}

void SimAgent::Do(const agent::leaving::CloseStream& action) {
  if (!stream_) return Feed(agent::leaving::StreamClosed{});
  closing_ = true;
  CloseStream();
  Later(action.longest_ms * kMs, [this] { Feed(agent::leaving::StreamClosed{}); });
}

void SimAgent::Do(const agent::leaving::AwaitMaster& action) {
  if (!master_runs_) return Feed(agent::leaving::MasterEnded{master_was_killed_});
  awaits_master_ = true;
  Later(action.longest_ms * kMs, [this] {
    if (std::exchange(awaits_master_, false)) Feed(agent::leaving::MasterEnded{master_was_killed_});
  });
}

void SimAgent::Do(const agent::leaving::StartMaster&) { StartMaster(true); }

// The guard ends what is left of its workers.
void SimAgent::Do(const agent::leaving::EndProgram&) {
  alive_ = false;
  keeper_.Die();
  parts_.machine.changed_at = parts_.queue.now();
  if (stream_ && !closing_) CloseStream();
  stream_.reset();
  parts_.machine.store.reset();
  workers_.KillAll();
  parts_.story.Say(parts_.queue.now(), parts_.machine.name, "phalanx-run has ended: exit code {}", exit_code());
  parts_.on_end(*this);
}

// --- killed -------------------------------------------------------------------------------------------------------

void SimAgent::Kill(bool lose_words) {
  if (!alive_) return;
  alive_ = false;
  keeper_.Die();
  parts_.machine.changed_at = parts_.queue.now();
  if (stream_) {
    if (lose_words) parts_.network.Lose(*stream_, Way::kUp);
    CloseStream();
  }
  stream_.reset();
  parts_.machine.store.reset();
  workers_.KillAll();
}

void SimAgent::Vanish(bool seen) {
  if (!alive_) {
    workers_.Vanish(seen);
    return;
  }
  alive_ = false;
  keeper_.Die();
  if (stream_) {
    parts_.network.Lose(*stream_, Way::kUp);
    if (seen) CloseStream();
    parts_.network.Close(*stream_, Way::kUp);
    parts_.network.Close(*stream_, Way::kDown);
  }
  stream_.reset();
  parts_.machine.store.reset();
  workers_.Vanish(seen);
}

}  // namespace phalanx::simulation

// How a simulated agent ends, well or not: storage takes the last checkpoint, the stream ends; or it is killed, and its
// machine with it. The rest of SimAgent is in sim_agent.cc.
#include <algorithm>
#include <utility>

#include "simulation/judge.h"
#include "simulation/sim_agent.h"
#include "simulation/story.h"

namespace phalanx::simulation {
namespace {

// As in src/agent/node/leaving.cc.
constexpr Micros kGoodbye = 2 * kSecond;
constexpr int64_t kStorageAtEndMs = 600'000;

}  // namespace

void SimAgent::Do(const agent::Exit& action) {
  exit_code_ = action.code;
  parts_.judge.OnAgentExit(*this);
  if (core_.stop_signal != 0) keeper_.OnLeaving();
  if (keeper_.Storing() && core_.attached) return AwaitStorage();
  Leave();
}

void SimAgent::AwaitStorage() {
  leave_by_ = Now() + (core_.stop_signal != 0 ? parts_.scenario.stop_timeout_ms : kStorageAtEndMs);
  keeper_.WhenStored([this] { parts_.queue.After(0, [this] { parts_.machine.gate.Pass([this] { Leave(); }); }); });
  BeatWhileWaiting();
}

void SimAgent::BeatWhileWaiting() {
  if (!alive_ || leave_by_ == kNever) return;
  if (Now() >= leave_by_) return Leave();
  Do(agent::SendBeat{0});
  const Instant next = std::min(leave_by_, Now() + core_.beat_interval_ms);
  parts_.queue.At(parts_.machine.clock.WhenReads(next),
                  [this] { parts_.machine.gate.Pass([this] { BeatWhileWaiting(); }); });
}

void SimAgent::Leave() {
  if (!alive_ || std::exchange(left_, true)) return;
  leave_by_ = kNever;
  keeper_.End(exit_code() != 0);
  workers_.WantSpares(0);
  if (!stream_) return End();
  closing_ = true;
  CloseStream();
  parts_.queue.After(kGoodbye, [this] {
    parts_.machine.gate.Pass([this] {
      if (alive_) End();
    });
  });
}

void SimAgent::End() {
  alive_ = false;
  keeper_.Die();
  parts_.machine.changed_at = parts_.queue.now();
  stream_.reset();
  parts_.machine.store.reset();
  workers_.KillAll();
  parts_.story.Say(parts_.queue.now(), parts_.machine.name, "phalanx-run has ended: exit code {}", exit_code());
}

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

// What this node's hardware tells while it trains: to its master, grave facts also to people, and into the report of an
// end that they explain. Steps of NodeAgent (shell.h).
#include <fmt/format.h>

#include <utility>

#include "agent/node/shell.h"
#include "base/clock.h"

namespace phalanx::agent {
namespace {

// What waits for a master; more of a node without one is lost.
constexpr size_t kMostUntold = 64;

}  // namespace

// With the first round: till then nothing trains, and the checks of a node load its devices on purpose.
void NodeAgent::BeginWatching() {
  if (watcher_ || config_.watch_every_ms == 0) return;
  watch::Watcher::Options options;
  options.place.sysfs_root = config_.sysfs_root;
  options.place.interface = watch::InterfaceOf(address_);
  options.every_ms = config_.watch_every_ms;
  options.python = config_.python;
  options.env = env_.values();
  watch::Watcher::Events events;
  events.on_fact = [this](const watch::Found& found) { TellFact(found.fact); };
  events.on_notice = [this](const std::string& text) { Warn(text); };
  watcher_ = std::make_unique<watch::Watcher>(loop_, reaper_, std::move(options), std::move(events));
}

void NodeAgent::TellFact(const v1::NodeFact& fact) {
  if (fact.grave()) Do(Say{fmt::format("{} ({})", fact.sentence(), fact.source())});
  v1::AgentMessage message;
  *message.mutable_node_fact() = fact;
  TellRecord(std::move(message));
}

void NodeAgent::TellRecord(v1::AgentMessage message) {
  if (untold_.size() < kMostUntold) untold_.push_back(std::move(message));
  TellUntold();
}

void NodeAgent::TellUntold() {
  if (!core_.attached) return;
  for (v1::AgentMessage& message : std::exchange(untold_, {})) SendMessage(std::move(message));
}

void NodeAgent::BlameHardware(int64_t noticed_ns, v1::WorkerExited& exited) {
  if (!watcher_ || !exited.killed_by().empty()) return;  // it is known who did
  exited.set_blamed_on(watcher_->Explain(noticed_ns / 1'000'000));
}

}  // namespace phalanx::agent

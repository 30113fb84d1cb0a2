// Checks of this node: the helper program, and the store where it meets another node. Steps of NodeAgent (shell.h).
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "agent/checks/lines.h"
#include "agent/node/shell.h"
#include "agent/replay/frames.h"
#include "base/clock.h"

namespace phalanx::agent {
namespace {

checks::NodeSetup SetupOf(const LaunchConfig& config, const std::string& address) {
  checks::NodeSetup setup;
  setup.address = address;
  setup.directory = config.check_directory;
  setup.programs = config.check_programs;
  setup.nics = config.check_nics;
  setup.has_switchbox = config.check_switchbox;
  setup.switchbox = {config.switchbox_source, config.box_pairs, config.min_bandwidth_mb_s, config.min_channels};
  return setup;
}

}  // namespace

void NodeAgent::StepOnCheck(const checking::Event& event) {
  const Instant now = MonotonicMs();
  for (const checking::Decision& decision : Step(checking_, event, now)) {
    if (config_.explain) Do(Say{"explain: " + ExplainText(decision, now - begun_at_)});
    std::visit([this](const auto& action) { this->Do(action); }, decision.action);
  }
}

void NodeAgent::GiveOrder() {
  if (held_order_ && core_.workers.empty()) Feed(checking::Ordered{*std::exchange(held_order_, std::nullopt)});
}

void NodeAgent::ForgetOrder() {
  held_order_.reset();
  Feed(checking::Unasked{});
}

void NodeAgent::Do(const checking::StartHelper& /*action*/) {
  supervisor_->ForkAside([this](StatusOr<Spare> spare) { BeginHelper(std::move(spare)); });
}

void NodeAgent::Do(const checking::HurryHelper& /*action*/) {
  if (helper_) return;
  supervisor_->ForgetAside();
  BeginHelper(absl::DeadlineExceededError("it was waited for long enough"));
}

void NodeAgent::BeginHelper(StatusOr<Spare> spare) {
  std::map<std::string, std::string> env = env_.values();
  env[kNodeMark] = node_id_;
  const auto is_young_fork = std::make_shared<bool>(spare.ok());
  const auto on_event = [this, is_young_fork](checking::Event event) {
    if (std::holds_alternative<checking::HelperReady>(event)) *is_young_fork = false;
    const auto* const ended = std::get_if<checking::HelperEnded>(&event);
    if (ended != nullptr) helper_.reset();
    // What becomes of a fork that never began says nothing about the node.
    if (ended != nullptr && *is_young_fork) return BeginHelper(absl::AbortedError("it has ended: " + ended->why));
    Feed(std::move(event));
  };
  using Started = StatusOr<std::unique_ptr<checks::CheckHelper>>;
  Started started = spare.ok() ? checks::CheckHelper::StartFrom(loop_, reaper_, *std::move(spare), env, on_event)
                               : Started(spare.status());
  if (!started.ok()) {
    if (config_.explain) {
      Do(Say{fmt::format("explain: the program that checks is no fork of the zygote: {}", Message(started.status()))});
    }
    started = checks::CheckHelper::Start(loop_, reaper_, config_.python, env, on_event);
  }
  if (!started.ok()) return Feed(checking::HelperEnded{Message(started.status())});
  helper_ = *std::move(started);
  last_helper_ = helper_->pid();
}

void NodeAgent::Do(const checking::EndHelper& /*action*/) {
  supervisor_->ForgetAside();
  helper_.reset();
}

void NodeAgent::Do(const checking::OpenStore& action) {
  store::StoreOptions options;
  options.allowed_peers.insert(action.member_addresses.begin(), action.member_addresses.end());
  auto opened = OpenStoreOn(action.port, std::move(options));
  ReserveNextStore();
  if (!opened.ok()) return Warn(fmt::format("no store for a check with another node: {}", Message(opened.status())));
  check_store_ = *std::move(opened);
  Do(SendBeat{0});  // the master must know the next store's port before it names one
}

void NodeAgent::Do(const checking::CloseStore& /*action*/) { check_store_.reset(); }

void NodeAgent::Do(const checking::Give& action) {
  if (helper_) helper_->Give(checks::OrderLine(action.id, action.order, SetupOf(config_, address_)));
}

void NodeAgent::Do(const checking::Report& action) {
  v1::AgentMessage message;
  *message.mutable_check() = action.report;
  SendMessage(std::move(message));
}

}  // namespace phalanx::agent

// Checks of this node: the helper program, and the store where it meets another node. Steps of NodeAgent (shell.h).
#include <fmt/format.h>

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

void NodeAgent::Do(const checking::StartHelper& /*action*/) {
  std::map<std::string, std::string> env = env_.values();
  env[kNodeMark] = node_id_;
  auto started = checks::CheckHelper::Start(loop_, reaper_, config_.python, env, [this](checking::Event event) {
    if (std::holds_alternative<checking::HelperEnded>(event)) helper_.reset();
    Feed(std::move(event));
  });
  if (!started.ok()) return Feed(checking::HelperEnded{Message(started.status())});
  helper_ = *std::move(started);
  last_helper_ = helper_->pid();
}

void NodeAgent::Do(const checking::EndHelper& /*action*/) { helper_.reset(); }

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

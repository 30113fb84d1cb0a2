#include "agent/replay/frames.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>
#include <type_traits>
#include <variant>

#include "base/signal_name.h"
#include "base/utf8.h"
#include "replay/text.h"

namespace phalanx::agent {
namespace {

// Longer than any job; keeps sums of times far from overflow.
constexpr int64_t kMaxSpanMs = int64_t{1'000} * 365 * 24 * 3'600'000;

std::string Text(const Dial& action) {
  return fmt::format("dial the master at {} for {} ms", action.address, action.timeout_ms);
}
std::string Text(const HangUp& /*action*/) { return "hang up"; }
std::string Text(const SendHello& /*action*/) { return "send Hello"; }
std::string RefusedText(uint64_t store_refused) {
  return store_refused == 0 ? "" : fmt::format(", whose store has turned away {}", store_refused);
}
std::string Text(const SendBeat& action) {
  return fmt::format("send a beat of epoch {}{}", action.epoch, RefusedText(action.store_refused));
}
std::string Text(const TellSteps& action) {
  return fmt::format("tell the steps of epoch {}{}{}", action.epoch, RefusedText(action.store_refused),
                     action.ranks ? ", of each rank" : "");
}
std::string Text(const Send& action) { return fmt::format("send {}", replay::OneLine(action.message)); }
std::string Text(const OpenStore& action) {
  return fmt::format("open the store of epoch {} for world {} on port {}, to {}", action.epoch, action.world_size,
                     action.port, fmt::join(action.member_addresses, " "));
}
std::string Text(const CloseStore& /*action*/) { return "close the store"; }
std::string Text(const OpenBoard& action) {
  return fmt::format("open the board of epoch {}, highest step {}", action.epoch, action.highest_step);
}
std::string Text(const StartWorker& action) {
  return fmt::format("start local rank {}: {}", action.local_rank, replay::OneLine(action.round));
}
std::string Text(const EndGroup& action) {
  return fmt::format("end local rank {} of epoch {} by {}", action.local_rank, action.epoch, SignalName(action.signal));
}
std::string Text(const KillGroup& action) { return fmt::format("kill local rank {}", action.local_rank); }
std::string Text(const SignalWorker& action) {
  return fmt::format("send {} to local rank {}", SignalName(action.signal), action.local_rank);
}
std::string Text(const AskForSafePoint& action) {
  return fmt::format("ask ranks of epoch {} for a safe point behind step {}{}", action.epoch, action.at_step,
                     action.node_leaves ? ", as a node leaves" : "");
}
std::string Text(const WantSpares& action) { return fmt::format("want {} spares", action.count); }
std::string Text(const KillStrays& /*action*/) { return "kill strays"; }
std::string Text(const RestartMaster& action) { return fmt::format("start the master of term {} again", action.term); }
std::string Text(const TakeOver& action) {
  return fmt::format("start a master of term {} in the place of {}{}", action.term, action.before_id,
                     action.before_broke ? ", whose stream broke" : "");
}
std::string Text(const LetGo& /*action*/) { return "let the master go that is not elected"; }
std::string Text(const Herald& action) {
  return fmt::format("tell at {} where the master is", fmt::join(action.addresses, " and "));
}
std::string Text(const StopHerald& /*action*/) { return "tell no more where the master is"; }
std::string Text(const GiveUpAnswers& action) { return "answer ranks in the master's place: " + action.why; }
std::string Text(const Say& action) { return fmt::format("say: {}", action.text); }
std::string Text(const ReportFailure& action) {
  return fmt::format("report the failure: {}", replay::OneLine(action.finish));
}
std::string Text(const Exit& action) { return fmt::format("exit with {}", action.code); }

std::string Text(const joining::Resolve& /*action*/) { return "ask for the endpoint's addresses"; }
std::string Text(const joining::StartMaster& action) {
  return fmt::format("start the master at {} port {}", action.bind_address, action.port);
}
std::string Text(const joining::Join& action) { return fmt::format("join at {} port {}", action.host, action.port); }
std::string Text(const joining::Say& action) { return fmt::format("say: {}", action.text); }
std::string Text(const joining::Fail& action) { return fmt::format("fail: {}", action.why); }
std::string Text(const joining::TellMasterDied& action) {
  return fmt::format("tell that the master died: {}", action.why);
}

std::string Text(const leaving::SettleStorage& action) {
  return fmt::format("settle storage{}{}", action.leaving ? ", as the node leaves" : "",
                     action.tidy ? ", and tidy it up" : "");
}
std::string Text(const leaving::Say& action) { return fmt::format("say: {}", action.text); }
std::string Text(const leaving::Warn& action) { return fmt::format("warn: {}", action.text); }
std::string Text(const leaving::Beat& /*action*/) { return "send a beat"; }
std::string Text(const leaving::Depart& action) { return fmt::format("depart with {}", action.exit_code); }
std::string Text(const leaving::CloseStream& action) {
  return fmt::format("close the stream within {} ms", action.longest_ms);
}
std::string Text(const leaving::AwaitMaster& action) {
  return fmt::format("await the master's end for {} ms", action.longest_ms);
}
std::string Text(const leaving::StartMaster& /*action*/) { return "start the master again"; }
std::string Text(const leaving::EndProgram& /*action*/) { return "end the program"; }

std::string Text(const checking::StartHelper& /*action*/) { return "start the program that checks"; }
std::string Text(const checking::HurryHelper& /*action*/) { return "wait for the zygote no longer"; }
std::string Text(const checking::EndHelper& /*action*/) { return "end the program that checks"; }
std::string Text(const checking::OpenStore& action) {
  return fmt::format("open a store for a check on port {}", action.port);
}
std::string Text(const checking::CloseStore& /*action*/) { return "close the store of the check"; }
std::string Text(const checking::Give& action) {
  return fmt::format("order part {} of check {}", action.order.part(), action.order.run());
}
std::string Text(const checking::Report& action) {
  return fmt::format("report {} results of part {}", action.report.results_size(), action.report.part());
}

std::string Text(const SaveKey& save) { return fmt::format("step {} of epoch {}", save.step, save.epoch); }

std::string Text(const TellMaster& action) { return fmt::format("tell the master {}", replay::OneLine(action.report)); }
std::string Text(const ScanMemory& action) {
  const std::string older = action.older_of.empty() ? "" : fmt::format(", and at older saves of {}", action.older_of);
  return fmt::format("look at memory for epoch {}{}{}", action.epoch, older, action.to_lend ? ", to lend it" : "");
}
std::string Text(const MarkCommitted& action) {
  return fmt::format("mark {} of {} as committed", Text(action.save), action.dir);
}
std::string Text(const MarkDropped& action) {
  return fmt::format("mark {} of {} as dropped", Text(action.save), action.dir);
}
std::string Text(const HoldSave& action) {
  return fmt::format("hold the images of {} of {}", Text(action.save), action.dir);
}
std::string Text(const ReleaseSave& action) {
  return fmt::format("release the images of {} of {}", Text(action.save), action.dir);
}
std::string Text(const AnswerWait& action) {
  return fmt::format("answer wait {} of local rank {}: {}{}{}", action.request, action.local_rank, action.state,
                     action.why.empty() ? "" : ", ", action.why);
}
std::string Text(const AnswerRestore& action) {
  const std::string who =
      fmt::format("restore {} of local rank {} in {}", action.request, action.local_rank, action.dir);
  if (!action.refused.empty()) return fmt::format("refuse {}: {}", who, action.refused);
  return fmt::format("answer {}: {}", who, replay::OneLine(action.order));
}
// Whose, and how many bytes where not all of it is meant.
std::string Text(const ImageParts& parts) {
  std::vector<std::string> texts;
  for (const auto& [rank, ranges] : parts) {
    texts.push_back(ranges.empty() ? fmt::format("{}", rank) : fmt::format("{}: {} bytes", rank, ranges.Bytes()));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}
std::string Text(const AnswerImages& action) {
  const std::string what = fmt::format("images [{}] of {} in {} for local rank {}, request {}", Text(action.parts),
                                       Text(action.save), action.dir, action.local_rank, action.request);
  if (!action.refused.empty()) return fmt::format("refuse {}: {}", what, action.refused);
  return fmt::format("hand out {}", what);
}
std::string Behind(const std::string& archive) {
  return archive.empty() ? "" : fmt::format(", and in its archive {}", archive);
}
std::string Text(const FindSteps& action) {
  return fmt::format("find the newest step in {} for epoch {}, but for [{}], of which are doubted [{}]{}", action.dir,
                     action.epoch, fmt::join(action.but, " "), fmt::join(action.doubted, " "), Behind(action.archive));
}
std::string Text(const CheckStep& action) {
  return fmt::format("check {} in {} for epoch {}{}", action.name, action.dir, action.epoch, Behind(action.archive));
}
std::string Text(const FetchImages& action) {
  std::vector<std::string> images;
  for (const v1::ImageElsewhere& elsewhere : action.order.restore().elsewhere()) {
    images.push_back(fmt::format("{} of {}", elsewhere.rank(), elsewhere.sources_size()));
  }
  return fmt::format("fetch{} of step {} of {} for epoch {} the images [{}]", action.ahead ? " ahead" : "",
                     action.order.save().step(), action.dir, action.epoch, fmt::join(images, ", "));
}
std::string Text(const ForgetAhead& action) { return fmt::format("forget what was read ahead of {}", action.dir); }
std::string Text(const MakeStepFolder& action) {
  return fmt::format("make a folder in {} for {}", action.dir, Text(action.save));
}
std::string Text(const WriteImages& action) {
  return fmt::format("write images of {} to {} in {}{}", Text(action.save), action.name, action.dir,
                     action.main ? ", the shared one too" : "");
}
std::string Text(const CloseStep& action) {
  const CheckpointOptions& options = action.options;
  return fmt::format("close a step in {}: {}; keep the last {}, and each {}th; trackers [{}]", action.dir,
                     replay::OneLine(action.order), options.keep_last, options.keep_every,
                     fmt::join(options.trackers, " "));
}
std::string Text(const ArchiveSteps& action) {
  return fmt::format("copy what is due of {} to {}, each {}th; trackers [{}]", action.dir, action.options.archive,
                     action.options.archive_every, fmt::join(action.options.trackers, " "));
}
std::string Text(const TidyUp& action) { return fmt::format("tidy up {}", action.dir); }
std::string Text(const RemoveMemory& /*action*/) { return "remove the memory"; }
std::string Text(const LeaveMemory& action) { return fmt::format("leave the memory, for {}", action.unstored); }
std::string Text(const SayCheckpoint& action) { return fmt::format("say: {}", action.text); }

template <typename OneDecision>
v1::ReplayDecisions TextsOf(const std::vector<OneDecision>& decisions) {
  v1::ReplayDecisions wire;
  for (const OneDecision& decision : decisions) {
    const std::string action = std::visit([](const auto& a) { return Text(a); }, decision.action);
    *wire.add_decisions() = replay::DecisionOf(action, decision.reason);
  }
  return wire;
}

constexpr size_t kExplainedBytes = 160;

// What is sent all the time, or explains itself by the line that it says.
template <typename Action>
constexpr bool kIsNoise =
    std::is_same_v<Action, SendBeat> || std::is_same_v<Action, TellSteps> || std::is_same_v<Action, leaving::Beat>;
template <typename Action>
constexpr bool kSpeaks = std::is_same_v<Action, Say> || std::is_same_v<Action, joining::Say> ||
                         std::is_same_v<Action, leaving::Say> || std::is_same_v<Action, leaving::Warn>;

template <typename OneDecision>
std::string Explained(const OneDecision& decision, int64_t since_begin_ms) {
  return std::visit(
      [&]<typename Action>(const Action& action) -> std::string {
        if (kIsNoise<Action>) return "";
        const std::string at = fmt::format("{}.{:03} s", since_begin_ms / 1'000, since_begin_ms % 1'000);
        if (kSpeaks<Action>) return fmt::format("{} ({})", decision.reason, at);
        const std::string what = Text(action);
        const std::string_view shown = CutUtf8(what, kExplainedBytes);
        return fmt::format("{} -> {}{} ({})", decision.reason, shown, shown.size() < what.size() ? "..." : "", at);
      },
      decision.action);
}

}  // namespace

std::string ExplainText(const Decision& decision, int64_t since_begin_ms) {
  return Explained(decision, since_begin_ms);
}
std::string ExplainText(const joining::Decision& decision, int64_t since_begin_ms) {
  return Explained(decision, since_begin_ms);
}
std::string ExplainText(const leaving::Decision& decision, int64_t since_begin_ms) {
  return Explained(decision, since_begin_ms);
}
std::string ExplainText(const checking::Decision& decision, int64_t since_begin_ms) {
  return Explained(decision, since_begin_ms);
}

v1::AgentStart StartOf(const AgentOptions& options, const std::string& node_id, const std::string& hostname) {
  v1::AgentStart start;
  start.set_node_id(node_id);
  start.set_hostname(hostname);
  start.set_max_nodes(options.core.max_nodes);
  start.set_stop_timeout_ms(options.core.stop_timeout_ms);
  start.set_restart_grace_ms(options.core.restart_grace_ms);
  start.set_rescale_grace_ms(options.core.rescale_grace_ms);
  start.set_join_timeout_ms(options.core.join_timeout_ms);
  start.set_succession(options.core.succession);
  start.set_standalone(options.joining.standalone);
  start.set_has_own_master(options.joining.has_own_master);
  start.set_endpoint_host(options.joining.endpoint_host);
  start.set_endpoint_port(options.joining.endpoint_port);
  return start;
}

StatusOr<AgentOptions> OptionsAtStart(const v1::AgentStart& start) {
  AgentOptions options;
  CoreOptions& core = options.core;
  core.max_nodes = start.max_nodes();
  core.node_id = start.node_id();
  core.succession = start.succession();
  core.stop_timeout_ms = start.stop_timeout_ms();
  core.restart_grace_ms = start.restart_grace_ms();
  core.rescale_grace_ms = start.rescale_grace_ms();
  core.join_timeout_ms = start.join_timeout_ms();
  for (const int64_t span_ms :
       {core.stop_timeout_ms, core.restart_grace_ms, core.rescale_grace_ms, core.join_timeout_ms}) {
    if (span_ms >= 0 && span_ms <= kMaxSpanMs) continue;
    return absl::DataLossError(fmt::format("the log contradicts itself: a time of {} ms", span_ms));
  }
  if (start.endpoint_port() > UINT16_MAX) {
    return absl::DataLossError(fmt::format("the log contradicts itself: port {}", start.endpoint_port()));
  }
  options.joining = {start.standalone(), start.has_own_master(), start.endpoint_host(),
                     static_cast<uint16_t>(start.endpoint_port()), core.join_timeout_ms};
  options.leaving = {core.stop_timeout_ms, core.max_nodes, core.rescale_grace_ms};
  return options;
}

v1::ReplayFrame EventFrame(Instant now, const AnyEvent& event) {
  v1::ReplayFrame frame;
  frame.mutable_event()->set_now_ms(now);
  *frame.mutable_event()->mutable_agent() = MessageOf(event);
  return frame;
}

v1::ReplayDecisions DecisionsOf(const std::vector<Decision>& decisions) { return TextsOf(decisions); }
v1::ReplayDecisions DecisionsOf(const std::vector<joining::Decision>& decisions) { return TextsOf(decisions); }
v1::ReplayDecisions DecisionsOf(const std::vector<leaving::Decision>& decisions) { return TextsOf(decisions); }

v1::ReplayDecisions DecisionsOf(const saving::Decided& decided) {
  v1::ReplayDecisions wire;
  if (!decided.refused.empty()) *wire.add_decisions() = replay::DecisionOf("refuse: " + decided.refused, "");
  for (const CheckpointAction& action : decided.actions) {
    *wire.add_decisions() = replay::DecisionOf(std::visit([](const auto& a) { return Text(a); }, action), "");
  }
  return wire;
}

}  // namespace phalanx::agent

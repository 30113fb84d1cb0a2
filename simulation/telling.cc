#include "simulation/telling.h"

#include <fmt/format.h>

#include "simulation/sim_master.h"
#include "simulation/story.h"

namespace phalanx::simulation {
namespace {

template <typename... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <typename... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

std::string Node(const SimMaster& master, uint64_t session) {
  const int machine = master.MachineOf(session);
  return machine < 0 ? fmt::format("session {}", session) : fmt::format("node{} (session {})", machine, session);
}

std::string Of(const v1::SaveId& save) { return fmt::format("step {} of epoch {}", save.step(), save.epoch()); }

std::string Text(const v1::CheckpointOrder& order) {
  switch (order.body_case()) {
    case v1::CheckpointOrder::kCommitted:
      return Of(order.save()) + " is committed";
    case v1::CheckpointOrder::kDropped:
      return Of(order.save()) + " is dropped";
    case v1::CheckpointOrder::kRestore:
      return fmt::format("restore {} {}", Of(order.save()), v1::RestoreDecided::Source_Name(order.restore().source()));
    case v1::CheckpointOrder::kFind:
      return "look at storage";
    case v1::CheckpointOrder::kPrepareStore:
      return fmt::format("make a folder for {}", Of(order.save()));
    case v1::CheckpointOrder::kStoreShards:
      return fmt::format("write {} into {}", Of(order.save()), order.store_shards().name());
    case v1::CheckpointOrder::kWriteManifest:
      return fmt::format("write the manifest of {}", order.write_manifest().name());
    case v1::CheckpointOrder::kStoreEnded:
      return fmt::format("{} is {}stored", Of(order.save()), order.store_ended().stored() ? "" : "not ");
    case v1::CheckpointOrder::kCheck:
      return fmt::format("read its part of {}", order.check().name());
    case v1::CheckpointOrder::kLend:
      return fmt::format("lend what it holds to epoch {}", order.lend().epoch());
    case v1::CheckpointOrder::kLendingEnded:
      return "nobody needs what it holds";
    default:
      return "";
  }
}

std::string Text(const v1::ShardRequest& request) {
  switch (request.body_case()) {
    case v1::ShardRequest::kOpen:
      return "opens a dataset";
    case v1::ShardRequest::kTake:
      return fmt::format("asks for a shard ({})", request.request());
    case v1::ShardRequest::kDone:
      return fmt::format("has done shard {}", request.done().shards_size() > 0 ? request.done().shards(0) : 0);
    default:
      return "asks about a dataset";
  }
}

std::string Text(const v1::ShardReply& reply) {
  if (!reply.refused().empty()) return reply.refused();
  const std::string shard = reply.has_shard() ? fmt::format(" shard {}", reply.shard()) : "";
  return fmt::format("local rank {}, request {}{}", reply.local_rank(), reply.request(), shard);
}

std::string Text(const v1::CheckpointReport& report) {
  switch (report.body_case()) {
    case v1::CheckpointReport::kSealed:
      return fmt::format("has sealed {}{}", Of(report.sealed().save()),
                         report.sealed().store() ? ", to be stored" : "");
    case v1::CheckpointReport::kSkipped:
      return fmt::format("has skipped {}", Of(report.skipped().save()));
    case v1::CheckpointReport::kHeld: {
      std::string text = "holds";
      for (const v1::HeldSave& save : report.held().saves()) {
        text += fmt::format(" {}{} ({} images{})", Of(save.save()), save.committed() ? ", committed," : "",
                            save.ranks_size(), save.main() ? " and the shared one" : "");
      }
      for (const v1::AwaitedStore& each : report.held().awaited())
        text += " and awaits the store of " + Of(each.save());
      return text;
    }
    case v1::CheckpointReport::kRestoreAsked:
      return "asks what to restore";
    case v1::CheckpointReport::kFound:
      return fmt::format("finds step {} on storage", report.found().step());
    case v1::CheckpointReport::kStorePrepared:
      return fmt::format("has made {} {}", report.store_prepared().name(), report.store_prepared().error());
    case v1::CheckpointReport::kShardsWritten:
      return fmt::format("has written {} {}", Of(report.shards_written().save()), report.shards_written().error());
    case v1::CheckpointReport::kManifestWritten:
      return fmt::format("has closed {} {}", Of(report.manifest_written().save()), report.manifest_written().error());
    case v1::CheckpointReport::kDeparting:
      return fmt::format("goes, and asks what becomes of {}", Of(report.departing().save()));
    case v1::CheckpointReport::kGoing:
      return "goes, and asks whether its memory is needed";
    case v1::CheckpointReport::kRestoreDone:
      return "has restored";
    case v1::CheckpointReport::kChecked:
      return fmt::format("has read {} {}", report.checked().name(), report.checked().error());
    default:
      return "opens its checkpoints";
  }
}

std::string SaidText(const std::string& node, const v1::AgentMessage& message) {
  switch (message.body_case()) {
    case v1::AgentMessage::kBeat:
      return fmt::format("hears a beat of {}, epoch {}", node, message.beat().epoch());
    case v1::AgentMessage::kWorkerExited: {
      const v1::WorkerExited& exit = message.worker_exited();
      return fmt::format("hears {}: local rank {} of epoch {} ended, {}", node, exit.local_rank(), exit.epoch(),
                         agent::DescribeEnd(exit.exit_code(), exit.signal()));
    }
    case v1::AgentMessage::kFirstStep:
      return fmt::format("hears {}: first step of epoch {}", node, message.first_step().epoch());
    case v1::AgentMessage::kLeaving:
      return fmt::format("hears {} leave", node);
    case v1::AgentMessage::kSafePoint: {
      const v1::SafePoint& point = message.safe_point();
      return fmt::format("hears {}: {} ranks of epoch {} {}", node, point.asked(), point.epoch(),
                         point.reached() ? "are at a safe point" : "are asked for a safe point");
    }
    case v1::AgentMessage::kReady:
      return fmt::format("hears {} is ready", node);
    case v1::AgentMessage::kCheckpoint:
      return fmt::format("hears {}: it {}", node, Text(message.checkpoint()));
    case v1::AgentMessage::kStoreRefused:
      return fmt::format("hears {}: {}", node, message.store_refused().sentence());
    case v1::AgentMessage::kCheck: {
      const v1::CheckReport& report = message.check();
      const bool failed = report.results_size() > 0 && report.results(0).outcome() == v1::CheckResult::FAILED;
      return fmt::format("hears {}: part {} of check {} {}{}", node, report.part(), report.run(),
                         failed ? "has failed" : "is over", report.ended().empty() ? "" : ": " + report.ended());
    }
    case v1::AgentMessage::kNodeFact:
      return fmt::format("hears {}: {}", node, message.node_fact().sentence());
    case v1::AgentMessage::kConsoleLost:
      return fmt::format("hears {}: {}", node, message.console_lost().sentence());
    case v1::AgentMessage::kShardRequest:
      return fmt::format("hears {}: local rank {} of epoch {} {}", node, message.shard_request().local_rank(),
                         message.shard_request().epoch(), Text(message.shard_request()));
    case v1::AgentMessage::kHello:
    case v1::AgentMessage::BODY_NOT_SET:
      break;
  }
  return fmt::format("hears {}", node);
}

std::string PlatformText(const v1::PlatformMessage& message) {
  if (!message.has_view()) return "hears the platform";
  std::string text = fmt::format("hears the platform: {} nodes are wanted", message.view().wanted_nodes());
  for (const v1::Departure& d : message.view().departures()) text += fmt::format(", {} goes", d.address());
  return text;
}

std::string Heard(const SimMaster& master, const master::Event& event) {
  using namespace phalanx::master;
  return std::visit(
      Overloaded{
          [&](const AgentAttached& e) {
            return fmt::format("hears {} say Hello, it has seen epoch {} and runs {}", Node(master, e.session),
                               e.hello().seen_epoch(), e.hello().live_round().epoch());
          },
          [&](const AgentDetached& e) { return fmt::format("sees the stream of {} end", Node(master, e.session)); },
          [&](const AgentSaid& e) { return SaidText(Node(master, e.session), e.message); },
          [](const master::Tick&) { return std::string("sees time pass"); },
          [](const master::LookedAt&) { return std::string("is asked how far the job is"); },
          [](const master::LetIn& e) { return fmt::format("is told that {} may come in", e.node); },
          [](const master::PlatformSaid& e) { return PlatformText(e.message); },
          [](const master::PlatformGone&) { return std::string("has lost the platform"); },
          [](const master::Probed& e) { return fmt::format("has asked whether {} lives", e.node_id); },
      },
      event);
}

// "" for what needs no line.
std::string Sent(const v1::MasterMessage& message, const std::string& node) {
  switch (message.body_case()) {
    case v1::MasterMessage::kRefused:
      return fmt::format("refuses {}", node);
    case v1::MasterMessage::kStartRound: {
      const v1::StartRound& round = message.start_round();
      return fmt::format("tells {} to begin epoch {} as group rank {} of {}, ranks from {} of {}", node, round.epoch(),
                         round.group_rank(), round.group_world_size(), round.rank_base(), round.world_size());
    }
    case v1::MasterMessage::kHoldRound:
      return fmt::format("tells {} to hold epoch {}", node, message.hold_round().epoch());
    case v1::MasterMessage::kFinish:
      return fmt::format("tells {} that the job is over, exit code {}", node, message.finish().exit_code());
    case v1::MasterMessage::kNotice:
      return fmt::format("says to {}", node);
    case v1::MasterMessage::kAnnounceRescale:
      return fmt::format("announces a rescale of epoch {} at step {} to {}", message.announce_rescale().epoch(),
                         message.announce_rescale().at_step(), node);
    case v1::MasterMessage::kCheckpoint:
      return fmt::format("orders {}: {}", node, Text(message.checkpoint()));
    case v1::MasterMessage::kShardReply:
      return fmt::format("answers {}: {}", node, Text(message.shard_reply()));
    default:
      return "";
  }
}

// "" for what needs no line.
std::string Decided(const SimMaster& master, const master::Action& action) {
  using namespace phalanx::master;
  return std::visit(Overloaded{
                        [&](const Send& a) { return Sent(*a.message, Node(master, a.session)); },
                        [&](const Drop& a) { return fmt::format("drops {}", Node(master, a.session)); },
                        [](const Record& a) { return fmt::format("notes {}", a.kind); },
                        [](const Remember&) { return std::string(); },
                        [](const master::Probe&) { return std::string(); },
                    },
                    action);
}

std::string Told(const v1::MasterMessage& message) {
  switch (message.body_case()) {
    case v1::MasterMessage::kWelcome:
      return "hears Welcome";
    case v1::MasterMessage::kRefused:
      return "hears it is refused";
    case v1::MasterMessage::kStartRound:
      return fmt::format("hears StartRound: epoch {}, group rank {}", message.start_round().epoch(),
                         message.start_round().group_rank());
    case v1::MasterMessage::kHoldRound:
      return fmt::format("hears Hold: epoch {}", message.hold_round().epoch());
    case v1::MasterMessage::kAnnounceRescale:
      return fmt::format("hears of a rescale at step {}", message.announce_rescale().at_step());
    case v1::MasterMessage::kFinish:
      return fmt::format("hears Finish: exit code {}", message.finish().exit_code());
    default:
      return "";
  }
}

std::string Heard(const agent::Event& event) {
  using namespace phalanx::agent;
  return std::visit(
      Overloaded{
          [](const LinkUp&) { return std::string("has a stream to the master"); },
          [](const LinkDown& e) { return fmt::format("has no stream: {}", e.why); },
          [](const FromMaster& e) { return Told(e.message); },
          [](const Warm&) { return std::string("is warm"); },
          [](const WorkerStartFailed& e) {
            return fmt::format("local rank {} did not start: {}", e.local_rank, e.why);
          },
          [](const StopSignal& e) { return fmt::format("is told to stop (signal {})", e.signal); },
          [](const WorkerSafe& e) { return fmt::format("local rank {} is at a safe point", e.local_rank); },
          [](const MasterChildDied& e) { return fmt::format("its master has died: {}", e.why); },
          [](const auto&) { return std::string(); },
      },
      event);
}

std::string Decided(const agent::Action& action) {
  using namespace phalanx::agent;
  return std::visit(
      Overloaded{
          [](const Send& a) {
            return a.message.has_worker_exited()
                       ? fmt::format("reports the end of local rank {}", a.message.worker_exited().local_rank())
                       : std::string();
          },
          [](const OpenStore& a) { return fmt::format("opens the store of epoch {} on port {}", a.epoch, a.port); },
          [](const StartWorker& a) {
            return fmt::format("starts local rank {} of epoch {}", a.local_rank, a.round.epoch());
          },
          [](const EndGroup& a) { return fmt::format("ends local rank {}", a.local_rank); },
          [](const KillGroup& a) { return fmt::format("kills local rank {}", a.local_rank); },
          [](const agent::Say& a) { return fmt::format("says \"{}\"", a.text); },
          [](const RestartMaster&) { return std::string("starts the master again"); },
          [](const agent::Exit& a) { return fmt::format("exits with {}", a.code); },
          [](const auto&) { return std::string(); },
      },
      action);
}

std::string Heard(const agent::joining::Event& event) {
  using namespace phalanx::agent::joining;
  return std::visit(Overloaded{
                        [](const NotResolved& e) { return fmt::format("does not know the endpoint: {}", e.why); },
                        [](const MasterNotReady& e) { return fmt::format("its master is not ready: {}", e.sentence); },
                        [](const auto&) { return std::string(); },
                    },
                    event);
}

std::string Decided(const agent::joining::Action& action) {
  using namespace phalanx::agent::joining;
  return std::visit(Overloaded{
                        [](const StartMaster&) { return std::string("starts the job's master"); },
                        [](const Join& a) { return fmt::format("joins at {}:{}", a.host, a.port); },
                        [](const Say& a) { return fmt::format("says \"{}\"", a.text); },
                        [](const Fail& a) { return fmt::format("cannot join: {}", a.why); },
                        [](const auto&) { return std::string(); },
                    },
                    action);
}

std::string Heard(const agent::leaving::Event& event) {
  using namespace phalanx::agent::leaving;
  return std::visit(
      Overloaded{
          [](const StorageIdle&) { return std::string("storage has taken all"); },
          [](const StreamBroken&) { return std::string("its stream has broken"); },
          [](const MasterEnded& e) {
            return std::string(e.killed ? "its master has been killed" : "its master has ended, or lives on");
          },
          [](const auto&) { return std::string(); },
      },
      event);
}

std::string Decided(const agent::leaving::Action& action) {
  using namespace phalanx::agent::leaving;
  return std::visit(Overloaded{
                        [](const Say& a) { return fmt::format("says \"{}\"", a.text); },
                        [](const Warn& a) { return fmt::format("warns \"{}\"", a.text); },
                        [](const CloseStream&) { return std::string("closes its stream"); },
                        [](const AwaitMaster&) { return std::string("waits for its master's end"); },
                        [](const StartMaster&) { return std::string("starts the master again"); },
                        [](const auto&) { return std::string(); },
                    },
                    action);
}

template <typename Event, typename Decisions>
void TellStep(Story& story, Micros at, const std::string& who, const Event& event, const Decisions& decisions) {
  if (!story.told()) return;
  const std::string heard = Heard(event);
  if (!heard.empty()) story.Say(at, who, "{}", heard);
  for (const auto& decision : decisions) {
    const std::string text = Decided(decision.action);
    if (!text.empty()) story.Say(at, who, "  {}: {}", text, decision.reason);
  }
}

}  // namespace

void TellMasterStep(Story& story, Micros at, const SimMaster& master, const master::Event& event,
                    const std::vector<master::Decision>& decisions) {
  if (!story.told() || decisions.empty()) return;
  story.Say(at, "master", "{}", Heard(master, event));
  TellMasterDecisions(story, at, master, decisions);
}

void TellMasterDecisions(Story& story, Micros at, const SimMaster& master,
                         const std::vector<master::Decision>& decisions) {
  if (!story.told()) return;
  for (const master::Decision& decision : decisions) {
    const std::string text = Decided(master, decision.action);
    if (!text.empty()) story.Say(at, "master", "  {}: {}", text, decision.reason);
  }
}

void TellOrder(Story& story, Micros at, const std::string& who, const v1::CheckpointOrder& order) {
  if (story.told()) story.Say(at, who, "hears: {}", Text(order));
}

void TellAgentStep(Story& story, Micros at, const std::string& who, const agent::Event& event,
                   const std::vector<agent::Decision>& decisions) {
  TellStep(story, at, who, event, decisions);
}

void TellAgentStep(Story& story, Micros at, const std::string& who, const agent::joining::Event& event,
                   const std::vector<agent::joining::Decision>& decisions) {
  TellStep(story, at, who, event, decisions);
}

void TellAgentStep(Story& story, Micros at, const std::string& who, const agent::leaving::Event& event,
                   const std::vector<agent::leaving::Decision>& decisions) {
  TellStep(story, at, who, event, decisions);
}

}  // namespace phalanx::simulation

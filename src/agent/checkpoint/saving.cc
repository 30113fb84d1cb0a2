#include "agent/checkpoint/saving.h"

namespace phalanx::agent::saving {
namespace {

using Node = NodeCheckpoints;

void On(Node& node, const RoundBegun& event) { node.OnRound(event.epoch, event.group_rank); }
void On(Node& node, const Scanned& event) { node.OnScanned(event.epoch, event.pages, event.source); }
void On(Node& node, const Attached& /*event*/) { node.OnAttached(); }
void On(Node& node, const Ordered& event) { node.OnOrder(event.order); }
void On(Node& /*node*/, const Opened& /*event*/) {}  // its answer is a part of what is decided: Step
void On(Node& node, const Sealed& event) {
  node.OnSealed(event.local_rank, event.dir, event.main, {0, event.step, event.branch}, event.store, event.values);
}
void On(Node& node, const Skipped& event) {
  node.OnSkipped(event.local_rank, event.dir, {0, event.step, event.branch}, event.why);
}
void On(Node& node, const WaitAsked& event) {
  node.OnWait(event.local_rank, event.request, event.dir, {0, event.step, event.branch}, event.until_stored);
}
void On(Node& node, const RestoreAsked& event) {
  node.OnRestore(event.local_rank, event.request, event.dir, event.branch);
}
void On(Node& node, const ImagesAsked& event) {
  node.OnImagesAsked(event.local_rank, event.request, event.dir, event.branch, event.parts);
}
void On(Node& node, const RestoreDone& event) { node.OnRestoreDone(event.local_rank, event.dir, event.branch); }
void On(Node& node, const MasterSilent& event) { node.OnMasterSilent(event.why); }
void On(Node& node, const RankGone& event) { node.OnRankGone(event.local_rank); }
void On(Node& node, const JobEnded& /*event*/) { node.OnJobEnded(); }
void On(Node& node, const Leaving& /*event*/) { node.OnLeaving(); }
void On(Node& node, const TidyAsked& /*event*/) { node.OnTidy(); }
void On(Node& node, const Ended& event) { node.OnEnd(event.in_memory, event.failed); }
void On(Node& node, const Found& event) { node.OnFound(event.epoch, event.dir, event.steps); }
void On(Node& node, const Checked& event) {
  node.OnChecked(event.epoch, event.dir, event.name, event.error, event.unreadable);
}
void On(Node& node, const FolderMade& event) { node.OnFolderMade(event.dir, event.save, event.name, event.error); }
void On(Node& node, const ImagesWritten& event) {
  node.OnImagesWritten(event.dir, event.save, event.name, event.shards, event.error);
}
void On(Node& node, const StepClosed& event) { node.OnStepClosed(event.dir, event.save, event.error); }
void On(Node& node, const Tidied& event) { node.OnTidied(event.dir, event.error); }
void On(Node& node, const Archived& event) { node.OnArchived(event.dir, event.steps, event.error); }
void On(Node& node, const Fetched& event) {
  node.OnFetched(event.epoch, event.dir, event.branch, event.request, event.error);
}

}  // namespace

Decided Step(NodeCheckpoints& checkpoints, const Event& event) {
  Decided decided;
  if (const auto* opened = std::get_if<Opened>(&event)) {
    decided.refused = checkpoints.OnOpen(opened->local_rank, opened->dir, opened->options);
  } else {
    std::visit([&checkpoints](const auto& each) { On(checkpoints, each); }, event);
  }
  decided.actions = checkpoints.Take();
  return decided;
}

}  // namespace phalanx::agent::saving

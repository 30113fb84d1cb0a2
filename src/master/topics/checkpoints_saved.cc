#include "master/topics/checkpoints_saved.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

namespace phalanx::master {
namespace {

// As the door lets in (src/master/core/admit.cc).
constexpr size_t kMaxPathBytes = 4'096;
constexpr int kMaxNames = static_cast<int>(kMaxDropped);

void Save(const std::string& name, const CheckpointDir& dir, v1::Snapshot::CheckpointDir& wire) {
  wire.set_dir(name);
  SetForm(*wire.mutable_form(), dir.form);
  wire.set_at_breakpoint(dir.at_breakpoint);
  if (dir.committed) SetKey(*wire.mutable_committed(), *dir.committed);
  wire.set_committed_world_size(dir.committed_world_size);
  if (dir.stored) SetKey(*wire.mutable_stored(), *dir.stored);
  // A store ends with the master that leads it, and who holds a milestone says so again.
  wire.set_wanted(dir.wanted || dir.store.has_value() || !dir.milestones.empty());
  for (const SaveKey& save : dir.dropped) SetKey(*wire.add_dropped(), save);
  for (const auto& [branch, decision] : dir.decided) *wire.add_decided() = decision;
  for (const std::string& damaged : dir.damaged) wire.add_damaged(damaged);
  wire.set_passed_over(dir.passed_over);
  wire.set_borrowed(dir.borrowed);
  const Doubts::Kept& doubts = dir.doubts.kept;
  if (doubts.resumed) SetKey(*wire.mutable_resumed(), *doubts.resumed);
  wire.set_failed_lives(doubts.failed_lives);
  wire.set_tried_all(doubts.tried_all);
  for (const auto& [save, folder] : doubts.saves) {
    v1::Snapshot::CheckpointDir::Doubted& doubted = *wire.add_doubted();
    SetKey(*doubted.mutable_save(), save);
    doubted.set_folder(folder);
  }
}

Status CheckDir(const v1::Snapshot::CheckpointDir& wire) {
  if (wire.dir().empty() || wire.dir()[0] != '/' || wire.dir().size() > kMaxPathBytes) {
    return absl::DataLossError(fmt::format("a checkpoint directory's name of {} bytes", wire.dir().size()));
  }
  if (!IsForm(wire.form())) {
    return absl::DataLossError(
        fmt::format("checkpoints of which {} needs a file", static_cast<int>(wire.form().own())));
  }
  if (wire.doubted_size() > static_cast<int>(kMaxDoubted)) {
    return absl::DataLossError(fmt::format("{} saves doubted", wire.doubted_size()));
  }
  if (wire.dropped_size() > kMaxNames || wire.damaged_size() > kMaxNames ||
      wire.decided_size() > static_cast<int>(kMaxDecided)) {
    return absl::DataLossError(
        fmt::format("{} saves dropped, {} folders damaged", wire.dropped_size(), wire.damaged_size()));
  }
  for (const v1::CheckpointOrder& decision : wire.decided()) {
    if (decision.has_restore() && decision.dir() == wire.dir()) continue;
    return absl::DataLossError("what is restored is of another directory");
  }
  return absl::OkStatus();
}

// `live`: the live round, where one is; what counts in it alone is of use then. Of a save of that round all members say
// again that they have sealed it, which commits it again: until then nobody knows whether they still hold it.
CheckpointDir Restored(const v1::Snapshot::CheckpointDir& wire, std::optional<uint64_t> live) {
  CheckpointDir dir;
  dir.form = FormOf(wire.form());
  dir.at_breakpoint = wire.at_breakpoint();
  if (wire.has_stored()) dir.stored = KeyOf(wire.stored());
  dir.wanted = wire.wanted();
  if (wire.has_committed() && wire.committed().epoch() != live) {
    dir.committed = KeyOf(wire.committed());
    dir.committed_world_size = wire.committed_world_size();
  }
  Doubts::Kept& doubts = dir.doubts.kept;
  if (wire.has_resumed()) doubts.resumed = KeyOf(wire.resumed());
  doubts.failed_lives = wire.failed_lives();
  doubts.tried_all = wire.tried_all();
  for (const auto& doubted : wire.doubted()) doubts.saves[KeyOf(doubted.save())] = doubted.folder();
  if (!live) return dir;
  for (const v1::SaveId& save : wire.dropped()) dir.dropped.insert(KeyOf(save));
  for (const v1::CheckpointOrder& decision : wire.decided()) dir.decided[decision.restore().branch()] = decision;
  dir.damaged.insert(wire.damaged().begin(), wire.damaged().end());
  dir.passed_over = wire.passed_over();
  dir.borrowed = wire.borrowed();
  return dir;
}

}  // namespace

void SaveCheckpoints(const CheckpointState& state, v1::Snapshot::Checkpoints& wire) {
  wire.set_epoch(state.epoch);
  wire.set_world_size(state.world_size);
  for (const auto& [name, dir] : state.dirs) Save(name, dir, *wire.add_dirs());
}

StatusOr<CheckpointState> RestoreCheckpoints(const v1::Snapshot::Checkpoints& saved, uint64_t epoch, size_t members) {
  CheckpointState state;
  const bool live = epoch != 0 && saved.epoch() == epoch;
  state.epoch = saved.epoch();
  state.world_size = saved.world_size();
  if (live) state.members.resize(members);
  if (saved.dirs_size() > static_cast<int>(kMaxCheckpointDirs)) {
    return absl::DataLossError(fmt::format("{} checkpoint directories", saved.dirs_size()));
  }
  for (const v1::Snapshot::CheckpointDir& wire : saved.dirs()) {
    PHX_RETURN_IF_ERROR(CheckDir(wire));
    state.dirs[wire.dir()] = Restored(wire, live ? std::optional(epoch) : std::nullopt);
  }
  return state;
}

}  // namespace phalanx::master

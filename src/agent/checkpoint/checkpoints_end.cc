// NodeCheckpoints, where its node goes: what storage is to take before, and what becomes of its memory.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/checkpoint/checkpoints.h"

namespace phalanx::agent {

void NodeCheckpoints::OnLeaving() {
  leaving_ = true;
  if (job_ended_) return;
  for (auto& [name, dir] : dirs_) {
    if (!dir.options || !dir.committed || (dir.stored && *dir.committed <= *dir.stored)) continue;
    dir.storing.insert(*dir.committed);
    v1::CheckpointReport report = Report(name);
    SetKey(*report.mutable_departing()->mutable_save(), *dir.committed);
    Tell(std::move(report));
  }
  if (std::ranges::none_of(dirs_, [](const auto& entry) { return entry.second.committed.has_value(); })) return;
  lends_ = true;  // until it hears that nobody needs it
  v1::CheckpointReport report = Report("");
  report.mutable_going();
  Tell(std::move(report));
}

void NodeCheckpoints::OnTidy() { wants_tidy_ = true; }

void NodeCheckpoints::TidyWhereIdle() {
  if (StoresSteps() || !std::exchange(wants_tidy_, false) || group_rank_ != 0) return;
  for (const auto& [name, dir] : dirs_) {
    if (dir.stored && tidying_.insert(name).second) Do(TidyUp{name});
  }
}

void NodeCheckpoints::OnTidied(const std::string& name, const std::string& error) {
  tidying_.erase(name);
  if (!error.empty()) Do(SayCheckpoint{fmt::format("checkpoint: {}", error)});
}

bool NodeCheckpoints::StoresSteps() const {
  return std::any_of(dirs_.begin(), dirs_.end(), [](const auto& entry) { return !entry.second.storing.empty(); });
}

bool NodeCheckpoints::Storing() const {
  const bool archives =
      std::any_of(dirs_.begin(), dirs_.end(), [](const auto& entry) { return !entry.second.archiving_to.empty(); });
  return StoresSteps() || archives || wants_tidy_ || !tidying_.empty();
}

std::string NodeCheckpoints::StoringText() const {
  std::string text;
  for (const auto& [name, dir] : dirs_) {
    const char* const comma = text.empty() ? "" : ", ";
    if (!dir.storing.empty()) {
      text += fmt::format("{}step {} of {}", comma, dir.storing.rbegin()->step, name);
    } else if (!dir.archiving_to.empty()) {
      text += fmt::format("{}{}, to be copied to {}", comma, name, dir.archiving_to);
    }
  }
  return text;
}

void NodeCheckpoints::OnEnd(const std::vector<HeldPage>& in_memory, bool failed) {
  // Whoever has pressed Ctrl-C sees tracebacks, and wants to know what is left.
  for (const auto& [name, dir] : dirs_) {
    const bool has_all = dir.stored && (!dir.committed || *dir.committed <= *dir.stored);
    if (leaving_ && group_rank_ == 0 && has_all) {
      Do(SayCheckpoint{fmt::format("checkpoint: step {} of {} is on storage", dir.stored->step, name)});
    }
  }
  std::string unstored = UnstoredText(in_memory, failed);
  if (unstored.empty()) return Do(RemoveMemory{});
  Do(LeaveMemory{std::move(unstored)});
}

bool NodeCheckpoints::IsOnlyInMemory(const HeldPage& page) const {
  const auto found = dirs_.find(page.dir);
  if (found == dirs_.end()) return true;  // no round has asked for it yet
  const Dir& dir = found->second;
  if (dir.stored && page.save <= *dir.stored) return false;
  if (dir.from_disk && page.save.epoch < dir.from_disk->epoch && page.save.step <= dir.from_disk->step) return false;
  // What is left of an earlier round was committed, or nobody has said yet that it will not be: the master drops it
  // then. No round may have begun, and the next phalanx-run of the job may go on from it.
  if (page.committed || page.save.epoch != epoch_) return true;
  const auto save = dir.saves.find(page.save);
  return save != dir.saves.end() && save->second.complete;
}

bool NodeCheckpoints::IsWhole(const HeldPage& page) const {
  return page.committed || page.world_size == static_cast<uint32_t>(local_world_size_);
}

bool NodeCheckpoints::Owes(const Dir& dir) {
  return !dir.storing.empty() || (dir.not_stored && (!dir.stored || *dir.stored < *dir.not_stored));
}

std::string NodeCheckpoints::UnstoredText(const std::vector<HeldPage>& in_memory, bool failed) const {
  struct Newest {
    std::optional<SaveKey> whole;
    std::optional<SaveKey> sealed;  // here, and perhaps not on other nodes
  };
  std::map<std::string, Newest> newest;
  for (const HeldPage& page : in_memory) {
    const auto dir = dirs_.find(page.dir);
    const bool matters = failed || (dir != dirs_.end() && Owes(dir->second));
    if (!matters || !IsOnlyInMemory(page)) continue;
    std::optional<SaveKey>& of_kind = IsWhole(page) ? newest[page.dir].whole : newest[page.dir].sealed;
    of_kind = std::max(of_kind, std::optional(page.save));
  }
  std::string text;
  for (const auto& [name, save] : newest) {
    const std::string step =
        fmt::format("step {} of {}", save.whole.value_or(save.sealed.value_or(SaveKey{})).step, name);
    text += (text.empty() ? "" : ", ") + step;
    if (save.sealed <= save.whole) continue;
    text += save.whole ? fmt::format(", or step {} if all nodes have sealed it,", save.sealed->step)
                       : " (if all nodes have sealed it)";
  }
  return text;
}

}  // namespace phalanx::agent

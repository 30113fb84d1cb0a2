#include "simulation/sim_storage.h"

#include <fmt/format.h>

#include <algorithm>

namespace phalanx::simulation {

namespace ckpt = phalanx::checkpoint;

namespace {

std::string Refused(const StoredStep& step) {
  for (const ckpt::Shard& shard : step.manifest->shards) {
    if (!step.shards.contains(shard.rank)) return fmt::format("{}: the shard cannot be found", shard.file);
  }
  return "";
}

}  // namespace

Status SimStorage::WhetherWritable() const {
  return broken_ > 0 ? absl::ResourceExhaustedError("write: No space left on device") : absl::OkStatus();
}

StoredStep* SimStorage::StepOf(const std::string& name) {
  const std::optional<ckpt::StepName> parsed = ckpt::ParseStepName(name);
  if (!parsed) return nullptr;
  const auto step = steps_.find({parsed->step, parsed->number});
  return step == steps_.end() ? nullptr : &step->second;
}

const StoredStep* SimStorage::Look(const std::string& name) const {
  return const_cast<SimStorage*>(this)->StepOf(name);
}

StatusOr<std::string> SimStorage::Claim(const SaveKey& save) {
  PHX_RETURN_IF_ERROR(WhetherWritable());
  std::vector<std::string> names;
  for (const auto& [key, step] : steps_) names.push_back(ckpt::StepNameText({key.first, key.second}));
  const ckpt::StepName free = ckpt::FreeStepName(save.step, save.epoch, names);
  steps_[{free.step, free.number}] = {};
  return ckpt::StepNameText(free);
}

Status SimStorage::WriteShard(const std::string& name, int64_t rank, const ckpt::SlotImage& image) {
  PHX_RETURN_IF_ERROR(WhetherWritable());
  const ckpt::StepName parsed = ckpt::ParseStepName(name).value_or(ckpt::StepName{});
  StoredStep& step = steps_[{parsed.step, parsed.number}];  // made where it is missing
  if (step.manifest) return absl::FailedPreconditionError(fmt::format("step {} is committed already", name));
  step.shards[rank] = image;
  return absl::OkStatus();
}

Status SimStorage::WriteManifest(const std::string& name, const ckpt::Manifest& manifest) {
  PHX_RETURN_IF_ERROR(WhetherWritable());
  StoredStep* const step = StepOf(name);
  if (step == nullptr)
    return absl::NotFoundError(fmt::format("{}/{}: No such file or directory", kCheckpointDir, name));
  if (step->manifest && *step->manifest != manifest) {
    return absl::AlreadyExistsError(fmt::format("step {} has another manifest", name));
  }
  step->manifest = manifest;
  return absl::OkStatus();
}

std::vector<ckpt::FoundStep> SimStorage::Find() const {
  std::vector<ckpt::FoundStep> found;
  for (auto it = steps_.rbegin(); it != steps_.rend(); ++it) {
    const auto& [key, step] = *it;
    ckpt::FoundStep& each = found.emplace_back();
    each.name = ckpt::StepNameText({key.first, key.second});
    each.step = key.first;
    each.number = key.second;
    each.why = step.manifest ? Refused(step) : "no manifest: not committed";
    each.state = !step.manifest     ? ckpt::StepState::kUncommitted
                 : each.why.empty() ? ckpt::StepState::kCommitted
                                    : ckpt::StepState::kDamaged;
    each.sequence = step.manifest ? step.manifest->sequence : 0;
    if (each.state != ckpt::StepState::kCommitted) continue;
    each.epoch = step.manifest->epoch;
    each.manifest = step.manifest;
  }
  ckpt::OrderNewestFirst(found);
  return found;
}

std::vector<std::string> SimStorage::StepsToDelete(const ckpt::Retention& retention) const {
  return ckpt::StepsToDelete(Find(), retention);
}

void SimStorage::Delete(const std::string& name) {
  const std::optional<ckpt::StepName> parsed = ckpt::ParseStepName(name);
  if (parsed) steps_.erase({parsed->step, parsed->number});
}

void SimStorage::Wake() {
  if (--hanging_ > 0) return;
  for (Task& task : std::exchange(waiting_, {})) task();
}

void SimStorage::WhenAwake(Task task) {
  if (hanging_ > 0) return waiting_.push_back(std::move(task));
  task();
}

}  // namespace phalanx::simulation

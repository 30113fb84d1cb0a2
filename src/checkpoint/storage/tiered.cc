#include "checkpoint/storage/tiered.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "checkpoint/disk/archive.h"

namespace phalanx::checkpoint {
namespace {

bool IsArchived(const std::string& step) { return step.starts_with(kArchivedPrefix); }

bool AreCopies(const FoundStep& one, const FoundStep& other) {
  return one.manifest && other.manifest && AreSameSave(*one.manifest, *other.manifest);
}

// What a directory has to offer: a step that counts and is not useless, and whether a newer one is damaged, of which
// there may be a copy.
struct Best {
  bool is_there = false;
  bool is_behind_damage = false;
};
Best BestOf(const std::vector<FoundStep>& newest_first, const std::set<std::string>& useless,
            const std::set<std::string>& doubted) {
  Best best;
  for (const FoundStep& found : newest_first) {
    const bool counts = found.state == StepState::kCommitted;
    best.is_there = counts && !useless.contains(found.name);
    if (best.is_there) break;
    const bool is_damaged = counts ? !doubted.contains(found.name) : found.state != StepState::kUncommitted;
    best.is_behind_damage = best.is_behind_damage || is_damaged;
  }
  return best;
}

std::string Within(const std::string& step) {
  return IsArchived(step) ? step.substr(std::string_view(kArchivedPrefix).size()) : step;
}

}  // namespace

TieredStorage::TieredStorage(std::shared_ptr<Storage> directory, std::shared_ptr<Storage> archive, int64_t every)
    : Storage(directory->location()), directory_(std::move(directory)), archive_(std::move(archive)), every_(every) {}

Storage& TieredStorage::TierOf(const std::string& step) const { return IsArchived(step) ? *archive_ : *directory_; }

Status TieredStorage::Make() { return directory_->Make(); }

StatusOr<std::string> TieredStorage::Begin(int64_t step, uint64_t epoch) { return directory_->Begin(step, epoch); }

StatusOr<Shard> TieredStorage::Put(const std::string& step, const FileToPut& file) {
  return directory_->Put(step, file);
}

Status TieredStorage::Publish(const std::string& step, const Manifest& manifest) {
  return directory_->Publish(step, manifest);
}

Status TieredStorage::PointTo(const std::string& step, int64_t number, const std::vector<std::string>& trackers) {
  return directory_->PointTo(step, number, trackers);
}

StatusOr<std::vector<FoundStep>> TieredStorage::List() { return ListPast({}, {}); }

StatusOr<std::vector<FoundStep>> TieredStorage::ListToPublish() {
  StatusOr<std::vector<FoundStep>> here = directory_->List();
  return here.ok() && NewestCommitted(*here) != nullptr ? here : List();
}

StatusOr<std::vector<FoundStep>> TieredStorage::ListArchive() {
  StatusOr<std::vector<FoundStep>> archived = archive_->List();
  if (!absl::IsNotFound(archived.status())) return archived;
  PHX_RETURN_IF_ERROR(archive_->Make());
  return std::vector<FoundStep>();
}

StatusOr<std::vector<FoundStep>> TieredStorage::ListPast(const std::set<std::string>& useless,
                                                         const std::set<std::string>& doubted) {
  StatusOr<std::vector<FoundStep>> here = directory_->List();
  if (!here.ok() && !absl::IsNotFound(here.status())) return here;
  const Status is_there = here.status();
  if (!here.ok()) here = std::vector<FoundStep>();
  const Best best = BestOf(*here, useless, doubted);
  if (best.is_there && !best.is_behind_damage) return here;
  StatusOr<std::vector<FoundStep>> archived = ListArchive();
  if (!archived.ok() && best.is_there) return here;
  if (!archived.ok()) return archived.status();
  if (archived->empty() && !is_there.ok()) return is_there;
  // What the archive counts higher than this directory, which has none of it, or as what is another step here, is of a
  // past that this one does not go on from: it comes last.
  uint64_t newest = NewestCommitted(*here) == nullptr ? UINT64_MAX : 0;
  std::set<uint64_t> taken;
  for (const FoundStep& found : *here) {
    newest = std::max(newest, found.sequence);
    if (found.manifest) taken.insert(found.sequence);
  }
  std::vector<FoundStep> both = *std::move(here), of_another;
  std::set<std::string> as_good_as_gone;  // of which a copy will do
  std::ranges::set_difference(useless, doubted, std::inserter(as_good_as_gone, as_good_as_gone.end()));
  for (FoundStep& found : *archived) {
    found.name = kArchivedPrefix + found.name;
    const bool is_known = std::ranges::any_of(
        both, [&](const FoundStep& other) { return AreCopies(found, other) && !as_good_as_gone.contains(other.name); });
    if (is_known) continue;
    const bool is_copy = std::ranges::any_of(both, [&](const FoundStep& other) { return AreCopies(found, other); });
    const bool is_of_another = !is_copy && (found.sequence > newest || taken.contains(found.sequence));
    (is_of_another ? of_another : both).push_back(std::move(found));
  }
  OrderNewestFirst(both);
  OrderNewestFirst(of_another);
  std::ranges::move(of_another, std::back_inserter(both));
  return both;
}

uint64_t TieredStorage::HighestSequenceElsewhere() {
  const std::lock_guard lock(mutex_);
  uint64_t highest = 0;
  for (const FoundStep& found : archived_.value_or(std::vector<FoundStep>())) {
    highest = std::max(highest, found.sequence);
  }
  return highest;
}

std::set<std::string> TieredStorage::StillNeeded(const std::vector<FoundStep>& newest_first) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::string> names =
      StepsToArchive(newest_first, archived_.value_or(std::vector<FoundStep>()), every_);
  std::set<std::string> needed;
  std::ranges::set_difference(std::set<std::string>(names.begin(), names.end()), damaged_,
                              std::inserter(needed, needed.end()));
  needed.insert(copied_from_);
  return needed;
}

FoundStep TieredStorage::LookAt(const std::string& step) {
  FoundStep found = TierOf(step).LookAt(Within(step));
  found.name = step;
  return found;
}

Status TieredStorage::Read(const std::string& step, const std::string& file, uint64_t offset, std::span<uint8_t> to) {
  return TierOf(step).Read(Within(step), file, offset, to);
}

Status TieredStorage::Check(const std::string& step, const Shard& file) {
  return TierOf(step).Check(Within(step), file);
}

Status TieredStorage::Delete(const std::string& step) {
  if (!IsArchived(step)) return directory_->Delete(step);
  return absl::InvalidArgumentError(fmt::format("{} is the archive's: nothing is deleted there", step));
}

Status TieredStorage::Tidy() { return directory_->Tidy(); }

std::string TieredStorage::PathOf(const std::string& step, const std::string& file) const {
  return TierOf(step).PathOf(Within(step), file);
}

ArchivedSteps TieredStorage::Archive(const std::vector<std::string>& trackers) {
  ArchivedSteps done;
  StatusOr<std::vector<FoundStep>> archived = ListArchive();
  if (!archived.ok()) return {{}, Message(archived.status())};
  {
    const std::lock_guard lock(mutex_);
    archived_ = *std::move(archived);
  }
  std::set<std::string> tried;
  while (!stop_) {
    const StatusOr<std::vector<FoundStep>> here = directory_->List();
    if (absl::IsNotFound(here.status())) break;
    if (!here.ok()) return {std::move(done.steps), Message(here.status())};
    std::string next;
    {
      const std::lock_guard lock(mutex_);
      const std::vector<std::string> names = StepsToArchive(*here, *archived_, every_);
      const auto found = std::ranges::find_if(
          names, [&](const std::string& name) { return !tried.contains(name) && !damaged_.contains(name); });
      if (found == names.end()) break;
      next = copied_from_ = *found;
    }
    tried.insert(next);
    StatusOr<std::optional<FoundStep>> copied = Copy(next);
    const std::lock_guard lock(mutex_);
    copied_from_.clear();
    if (absl::IsDataLoss(copied.status())) damaged_.insert(next);
    if (!copied.ok() && done.error.empty()) done.error = Message(copied.status());
    if (!copied.ok() || !*copied) continue;
    done.steps.push_back((*copied)->step);
    archived_->push_back(**std::move(copied));
    OrderNewestFirst(*archived_);
  }
  const Status pointed = done.steps.empty() ? absl::OkStatus() : PointToNewest(trackers);
  if (!pointed.ok() && done.error.empty()) done.error = Message(pointed);
  return done;
}

StatusOr<std::optional<FoundStep>> TieredStorage::Copy(const std::string& step) {
  const FoundStep found = directory_->LookAt(step);
  if (!found.manifest) return std::nullopt;
  PHX_ASSIGN_OR_RETURN(const std::string name, archive_->Begin(found.step, found.manifest->epoch));
  const Status put = PutAll(step, *found.manifest, name);
  // Somebody may have deleted it meanwhile, here and in the archive.
  const bool counts = directory_->LookAt(step).manifest == found.manifest;
  const Status published = put.ok() && counts ? archive_->Publish(name, *found.manifest) : put;
  if (published.ok() && counts) return archive_->LookAt(name);
  (void)archive_->Delete(name);  // what is left of it does not count
  if (!counts) return std::nullopt;
  return published;
}

Status TieredStorage::PutAll(const std::string& step, const Manifest& manifest, const std::string& name) {
  for (const Shard& shard : manifest.shards) {
    if (stop_) return absl::CancelledError(fmt::format("{}: this agent ends", PathOf(step, "")));
    const StatusOr<Shard> put = archive_->Put(name, {directory_->PathOf(step, shard.file), shard.file, shard.rank,
                                                     shard.bytes, shard.crc32, shard.needed_by, 0});
    if (!put.ok()) return put.status();
  }
  return absl::OkStatus();
}

// Another agent may have copied a newer one.
Status TieredStorage::PointToNewest(const std::vector<std::string>& trackers) {
  PHX_ASSIGN_OR_RETURN(const std::vector<FoundStep> there, archive_->List());
  const FoundStep* const newest = NewestCommitted(there);
  return newest == nullptr ? absl::OkStatus() : archive_->PointTo(newest->name, newest->step, trackers);
}

}  // namespace phalanx::checkpoint

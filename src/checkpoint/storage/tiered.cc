#include "checkpoint/storage/tiered.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "checkpoint/disk/archive.h"
#include "checkpoint/storage/files_of.h"

namespace phalanx::checkpoint {
namespace {

bool IsArchived(const std::string& step) { return step.starts_with(kArchivedPrefix); }

bool IsCopyOf(const FoundStep& archived, const FoundStep& here) {
  return archived.manifest && here.manifest && AreSameSave(*archived.manifest, *here.manifest);
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

StatusOr<std::vector<FoundStep>> TieredStorage::ListPast(const std::set<std::string>& useless,
                                                         const std::set<std::string>& doubted) {
  StatusOr<std::vector<FoundStep>> here = directory_->List();
  if (!here.ok() && !absl::IsNotFound(here.status())) return here;
  const bool has_one = here.ok() && NewestCommitted(*here) != nullptr;
  if (useless.empty() && has_one) return here;
  StatusOr<std::vector<FoundStep>> archived = archive_->List();
  if (absl::IsNotFound(archived.status()) || (!archived.ok() && has_one)) return here;
  if (!archived.ok()) return archived.status();
  std::vector<FoundStep> both = here.ok() ? *std::move(here) : std::vector<FoundStep>();
  const size_t of_directory = both.size();
  for (FoundStep& found : *archived) {
    const bool is_left_out =
        std::any_of(both.begin(), both.begin() + static_cast<std::ptrdiff_t>(of_directory), [&](const FoundStep& step) {
          const bool other_will_do = useless.contains(step.name) && !doubted.contains(step.name);
          return !other_will_do && IsCopyOf(found, step);
        });
    if (is_left_out) continue;
    found.name = kArchivedPrefix + found.name;
    both.push_back(std::move(found));
  }
  OrderNewestFirst(both);
  return both;
}

std::set<std::string> TieredStorage::StillNeeded(const std::vector<FoundStep>& newest_first) {
  const std::lock_guard lock(mutex_);
  const std::vector<std::string> names =
      StepsToArchive(newest_first, archived_.value_or(std::vector<FoundStep>()), every_);
  std::set<std::string> needed(names.begin(), names.end());
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
  for (;;) {
    const StatusOr<std::vector<FoundStep>> here = directory_->List();
    if (absl::IsNotFound(here.status())) return done;
    StatusOr<std::vector<FoundStep>> archived = archive_->List();
    if (absl::IsNotFound(archived.status())) archived = std::vector<FoundStep>();
    for (const Status& status : {here.status(), archived.status()}) {
      if (!status.ok()) return {std::move(done.steps), Message(status)};
    }
    std::string next;
    {
      const std::lock_guard lock(mutex_);
      archived_ = *std::move(archived);
      const std::vector<std::string> names = StepsToArchive(*here, *archived_, every_);
      if (names.empty()) return done;
      next = copied_from_ = names.front();
    }
    const Status copied = Copy(next, trackers);
    const std::lock_guard lock(mutex_);
    copied_from_.clear();
    if (!copied.ok()) return {std::move(done.steps), Message(copied)};
    done.steps.push_back(std::ranges::find(*here, next, &FoundStep::name)->step);
  }
}

Status TieredStorage::Copy(const std::string& step, const std::vector<std::string>& trackers) {
  const FoundStep found = directory_->LookAt(step);
  if (!found.manifest) return absl::FailedPreconditionError(fmt::format("{}: {}", PathOf(step, ""), found.why));
  const Manifest& manifest = *found.manifest;
  std::vector<FileToPut> files;
  for (const Shard& shard : manifest.shards) {
    files.push_back(
        {directory_->PathOf(step, shard.file), shard.file, shard.rank, shard.bytes, shard.crc32, shard.needed_by, 0});
  }
  PHX_RETURN_IF_ERROR(archive_->Make());
  PHX_ASSIGN_OR_RETURN(const std::string name, archive_->Begin(manifest.step, manifest.epoch));
  const StatusOr<std::vector<Shard>> put = PutFiles(*archive_, name, files);
  Status published = put.status();
  if (published.ok()) published = archive_->Publish(name, manifest);
  if (!published.ok()) {
    (void)archive_->Delete(name);  // what is left of it does not count
    return published;
  }
  return archive_->PointTo(name, manifest.step, trackers);
}

}  // namespace phalanx::checkpoint

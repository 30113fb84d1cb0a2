#include "checkpoint/disk/steps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <tuple>

#include "base/fd.h"
#include "checkpoint/disk/recycled.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {
namespace {

// All of the text as a number without leading zeros.
template <typename Number>
std::optional<Number> ParseDecimal(std::string_view text) {
  if (text.empty() || (text[0] == '0' && text.size() > 1) || text[0] == '-') return std::nullopt;
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool IsOurFile(std::string_view name) {
  return name == kManifestName || name == kUnfinishedName || name == kDeletedName || IsShardName(name);
}

FoundStep& Refuse(FoundStep& found, StepState state, std::string why) {
  found.state = state;
  found.manifest.reset();
  found.why = std::move(why);
  return found;
}

// Empty: as the manifest says. `readable` is false where nobody knows.
std::string WhyNoShard(const std::string& folder, const Shard& shard, bool& readable) {
  struct stat info {};
  if (lstat(fmt::format("{}/{}", folder, shard.file).c_str(), &info) != 0) {
    readable = errno == ENOENT;
    return fmt::format("{}: {}", shard.file, Message(ErrnoStatus(errno, "the shard cannot be found")));
  }
  if (!S_ISREG(info.st_mode)) return fmt::format("{} is not a regular file", shard.file);
  if (static_cast<uint64_t>(info.st_size) == shard.bytes) return "";
  return fmt::format("{} has {} bytes instead of {}", shard.file, info.st_size, shard.bytes);
}

FoundStep& LookAtShards(const std::string& folder, FoundStep& found) {
  for (const Shard& shard : found.manifest->shards) {
    bool readable = true;
    std::string why = WhyNoShard(folder, shard, readable);
    if (!why.empty()) return Refuse(found, readable ? StepState::kDamaged : StepState::kUnreadable, std::move(why));
  }
  found.state = StepState::kCommitted;
  return found;
}

StatusOr<bool> HoldsOurs(const std::string& folder) {
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder));
  return names.empty() || std::ranges::any_of(names, [](const std::string& name) { return IsOurFile(name); });
}

// What lies there under the name of a step. Nothing where there is no folder.
std::optional<FoundStep> LookAt(const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) == 0) return S_ISDIR(info.st_mode) ? std::optional(LookAtStep(folder)) : std::nullopt;
  if (errno == ENOENT) return std::nullopt;  // deleted meanwhile
  FoundStep found;
  Refuse(found, StepState::kUnreadable, Message(ErrnoStatus(errno, "stat")));
  return found;
}

Status RemoveFile(const std::string& path) {
  return unlink(path.c_str()) == 0 || errno == ENOENT ? absl::OkStatus() : CallFailed(path, "unlink", errno);
}

Status RemoveOurs(const std::string& folder, bool list_is_known) {
  const StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  const auto has = [&](const char* name) { return std::ranges::find(*names, name) != names->end(); };
  // A folder that was never finished has nothing of anybody else's.
  const bool all = has(kUnfinishedName) && !has(kDeletedName);
  for (const std::string& name : *names) {
    if (name == kUnfinishedName || name == kDeletedName || !(all || IsOurFile(name))) continue;
    Status removed = RemoveFile(fmt::format("{}/{}", folder, name));
    if (!removed.ok() && IsOurFile(name)) return removed;  // of others: a folder, say
  }
  // Last: what is left is known to be ours until then. What nobody can read may list files that are left: people find
  // them by it.
  if (has(kUnfinishedName)) PHX_RETURN_IF_ERROR(RemoveFile(fmt::format("{}/{}", folder, kUnfinishedName)));
  const StatusOr<std::vector<std::string>> left = ListFolder(folder);
  const bool is_last = left.ok() && left->size() == 1;
  if (has(kDeletedName) && (list_is_known || is_last)) {
    PHX_RETURN_IF_ERROR(RemoveFile(fmt::format("{}/{}", folder, kDeletedName)));
  }
  const bool removed = rmdir(folder.c_str()) == 0 || errno == ENOENT || errno == ENOTEMPTY || errno == EEXIST;
  return removed ? absl::OkStatus() : CallFailed(folder, "rmdir", errno);
}

}  // namespace

std::optional<StepName> ParseStepName(std::string_view name) {
  const size_t dot = name.find('.');
  const std::optional<int64_t> step = ParseDecimal<int64_t>(name.substr(0, dot));
  if (!step) return std::nullopt;
  if (dot == std::string_view::npos) return StepName{.step = *step};
  const std::optional<uint64_t> number = ParseDecimal<uint64_t>(name.substr(dot + 1));
  if (!number || *number == 0) return std::nullopt;
  return StepName{.step = *step, .number = *number};
}

std::string StepNameText(const StepName& name) {
  return name.number == 0 ? fmt::format("{}", name.step) : fmt::format("{}.{}", name.step, name.number);
}

Status CheckStepName(std::string_view name) {
  if (ParseStepName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("'{}' is not the name of a step", name));
}

StepName FreeStepName(int64_t step, uint64_t epoch, const std::vector<std::string>& names) {
  StepName name{.step = step};
  for (const std::string& other : names) {
    const std::optional<StepName> taken = ParseStepName(other);
    if (taken && taken->step == step) name.number = std::max({name.number, taken->number + 1, epoch});
  }
  return name;
}

StatusOr<std::string> ClaimStep(const std::string& dir, int64_t step, uint64_t epoch) {
  if (step < 0) return absl::InvalidArgumentError(fmt::format("step {} is below 0", step));
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(dir));
  StepName name = FreeStepName(step, epoch, names);
  while (true) {
    const std::string text = StepNameText(name);
    const std::string folder = fmt::format("{}/{}", dir, text);
    if (mkdir(folder.c_str(), 0777) == 0) {
      if (const Status marked = MarkUnfinished(folder); !marked.ok()) {
        rmdir(folder.c_str());
        return marked;
      }
      PHX_RETURN_IF_ERROR(SyncFolder(dir));
      return text;
    }
    if (errno != EEXIST) return CallFailed(folder, "mkdir", errno);
    name.number = std::max(name.number + 1, epoch);
  }
}

Status MarkUnfinished(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kUnfinishedName);
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
  return fd.valid() ? absl::OkStatus() : CallFailed(path, "open", errno);
}

FoundStep LookAtStep(const std::string& folder) {
  FoundStep found;
  found.name = folder.substr(folder.rfind('/') + 1);
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  const StatusOr<std::string> text = ReadFile(path, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) return Refuse(found, StepState::kUncommitted, "no manifest: not committed");
  if (absl::IsOutOfRange(text.status())) return Refuse(found, StepState::kDamaged, Message(text.status()));
  if (!text.ok()) return Refuse(found, StepState::kUnreadable, Message(text.status()));
  StatusOr<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) {
    // What a newer Phalanx wrote may be whole: this one cannot tell.
    const bool newer = absl::IsFailedPrecondition(manifest.status());
    return Refuse(found, newer ? StepState::kUnreadable : StepState::kDamaged,
                  fmt::format("{}: {}", kManifestName, Message(manifest.status())));
  }
  found.step = manifest->step;
  found.epoch = manifest->epoch;
  found.sequence = manifest->sequence;
  found.timeline = manifest->timeline;
  found.manifest = *std::move(manifest);
  return LookAtShards(folder, found);
}

std::optional<FoundStep> FindStep(const std::string& dir, const std::string& name) {
  const std::optional<StepName> parsed = ParseStepName(name);
  if (!parsed) return std::nullopt;
  const std::string folder = fmt::format("{}/{}", dir, name);
  std::optional<FoundStep> there = LookAt(folder);
  if (!there) return std::nullopt;
  FoundStep& found = *there;
  if (found.manifest && found.manifest->step != parsed->step) {
    Refuse(found, StepState::kDamaged, fmt::format("{} is of step {}", kManifestName, found.manifest->step));
  }
  if (found.state == StepState::kUncommitted) {
    const StatusOr<bool> ours = HoldsOurs(folder);
    if (ours.ok() && !*ours) return std::nullopt;
    if (!ours.ok() && absl::IsNotFound(ours.status())) return std::nullopt;  // deleted meanwhile
    if (!ours.ok()) Refuse(found, StepState::kUnreadable, Message(ours.status()));
  }
  found.name = name;
  found.step = parsed->step;
  found.number = parsed->number;
  return there;
}

void OrderNewestFirst(std::vector<FoundStep>& steps) {
  const auto by_number = [](const FoundStep& a, const FoundStep& b) {
    return std::tie(a.step, a.number) < std::tie(b.step, b.number);
  };
  std::ranges::sort(steps, by_number);
  uint64_t highest = 0;
  for (FoundStep& found : steps) {
    if (found.sequence == 0) found.sequence = highest;
    highest = std::max(highest, found.sequence);
  }
  std::ranges::sort(steps, [](const FoundStep& a, const FoundStep& b) {
    return std::tie(a.sequence, a.step, a.number) > std::tie(b.sequence, b.step, b.number);
  });
}

StatusOr<std::vector<FoundStep>> FindSteps(const std::string& dir) {
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(dir));
  std::vector<FoundStep> steps;
  for (const std::string& name : names) {
    if (std::optional<FoundStep> found = FindStep(dir, name)) steps.push_back(*std::move(found));
  }
  OrderNewestFirst(steps);
  return steps;
}

NextPlace NextPlaceOf(int64_t step, const std::optional<std::string>& goes_on_from,
                      const std::vector<FoundStep>& newest_first) {
  NextPlace next;
  if (goes_on_from && goes_on_from->empty()) next.goes_on_from = 0;
  for (const FoundStep& found : newest_first) {
    next.sequence = std::max(next.sequence, found.sequence + 1);
    if (goes_on_from == found.name && found.manifest) next.goes_on_from = found.sequence;
  }
  const FoundStep* newest = NewestCommitted(newest_first);
  if (newest == nullptr) return next;
  const bool goes_on = next.goes_on_from.value_or(newest->sequence) == newest->sequence;
  next.timeline = newest->manifest->timeline + (goes_on && step > newest->step ? 0 : 1);
  return next;
}

const FoundStep* NewestCommitted(const std::vector<FoundStep>& newest_first) {
  const auto it =
      std::ranges::find_if(newest_first, [](const FoundStep& found) { return found.state == StepState::kCommitted; });
  return it == newest_first.end() ? nullptr : &*it;
}

Status DeleteStep(const std::string& dir, const std::string& name) {
  PHX_RETURN_IF_ERROR(CheckStepName(name));
  const std::string folder = fmt::format("{}/{}", dir, name);
  const std::string manifest = fmt::format("{}/{}", folder, kManifestName);
  const std::string deleted = fmt::format("{}/{}", folder, kDeletedName);
  // In one go: it counts no more, and who goes on with a deletion that is cut off knows what is to go.
  if (rename(manifest.c_str(), deleted.c_str()) == 0) {
    PHX_RETURN_IF_ERROR(SyncFolder(folder));
  } else if (errno != ENOENT) {
    return CallFailed(manifest, "rename", errno);
  }
  const StatusOr<std::string> text = ReadFile(deleted, kMaxManifestBytes);
  const StatusOr<Manifest> listed = text.ok() ? ParseManifest(*text) : text.status();
  if (listed.ok()) PHX_RETURN_IF_ERROR(Recycle(dir, name, listed->shards));
  return RemoveOurs(folder, listed.ok());
}

}  // namespace phalanx::checkpoint

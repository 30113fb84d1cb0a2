#include "agent/checkpoint/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace phalanx::agent {
namespace {

// Reasons of saves that came to nothing are kept for those who ask late.
constexpr size_t kLostKept = 64;
// So are saves that are on storage.
constexpr size_t kStoredKept = 1'024;
// A rank may be behind the others by a load().
constexpr size_t kDecidedKept = 4;
// How a reason of the master (src/master/topics/checkpoints.cc) goes on where newer steps are damaged or doubted.
constexpr char kPassedOver[] = " (passed over: ";
constexpr char kJobEnded[] = "the job has ended";
constexpr char kNobodyLends[] =
    "no node lends the image of rank {}: what this life has saved other nodes lend from the next one on";

bool HaveSameArchive(const CheckpointOptions& one, const CheckpointOptions& other) {
  return one.archive == other.archive && one.archive_every == other.archive_every;
}

}  // namespace

std::vector<CheckpointAction> NodeCheckpoints::Take() {
  TidyWhereIdle();
  return std::exchange(actions_, {});
}

v1::CheckpointReport NodeCheckpoints::Report(const std::string& dir) const {
  v1::CheckpointReport report;
  report.set_epoch(epoch_);
  report.set_dir(dir);
  return report;
}

void NodeCheckpoints::Tell(v1::CheckpointReport report) { Do(TellMaster{std::move(report)}); }

// --- rounds -------------------------------------------------------------------------------------------------------

void NodeCheckpoints::OnRound(uint64_t epoch, uint32_t group_rank) {
  group_rank_ = group_rank;
  lends_ = false;
  BeginEpoch(epoch);
  Do(ScanMemory{epoch_});
}

void NodeCheckpoints::BeginEpoch(uint64_t epoch) {
  epoch_ = epoch;
  held_.reset();
  could_not_fetch_ = std::exchange(not_fetched_, "");
  for (auto& [name, dir] : dirs_) {
    // What was not committed is not stored either.
    std::erase_if(dir.storing, [&dir = dir](const SaveKey& save) { return !dir.committed || save > *dir.committed; });
    dir.opened.clear();
    dir.came_to.clear();
    dir.saves.clear();
    dir.waits.clear();
    dir.restores.clear();
    dir.decided.clear();
    dir.fetching.clear();
    dir.not_fetched.clear();
    dir.told.reset();
    dir.wanted.clear();
    dir.restore_asked.reset();
    dir.done_branch = 0;
    dir.done.clear();
    dir.unreadable.clear();
    if (group_rank_ != 0) dir.archive_looked_at = false;  // what others leave undone it looks for when it is its turn
  }
}

// The ranks of the round before may live still: from here on they seal nothing any more, and nobody hears them.
void NodeCheckpoints::Lend(uint64_t epoch) {
  if (epoch <= epoch_ || job_ended_) return;
  lends_ = true;
  BeginEpoch(epoch);
  Do(ScanMemory{epoch_, "", true});
}

void NodeCheckpoints::OnScanned(uint64_t epoch, const std::vector<HeldPage>& pages,
                                const std::optional<v1::ImageSource>& source) {
  if (epoch != epoch_) return;
  std::map<std::pair<std::string, SaveKey>, v1::HeldSave> saves;
  for (const HeldPage& page : pages) {
    v1::HeldSave& held = saves[{page.dir, page.save}];
    held.set_dir(page.dir);
    SetKey(*held.mutable_save(), page.save);
    SetForm(*held.mutable_form(), page.form);
    held.set_world_size(page.world_size);
    if (page.page == kMainPage) {
      held.set_main(true);
    } else {
      held.add_ranks(page.rank);
    }
    if (page.committed) held.set_committed(true);
    held.set_sealed_unix_ms(std::max(held.sealed_unix_ms(), page.sealed_unix_ms));
    if (page.older_unread) held.set_older_unread(true);
  }
  held_.emplace();
  for (const auto& [key, held] : saves) *held_->add_saves() = held;
  if (source) *held_->mutable_source() = *source;
  held_->set_unreadable(could_not_fetch_);
  TellHeld();
}

void NodeCheckpoints::TellHeld() {
  v1::CheckpointReport report = Report("");
  for (const v1::HeldSave& save : held_->saves()) {
    const auto dir = dirs_.find(save.dir());
    const bool is_behind = dir != dirs_.end() && dir->second.committed && dir->second.committed->epoch == epoch_;
    if (!is_behind) *report.mutable_held()->add_saves() = save;  // else it may be written over by now
  }
  report.mutable_held();
  if (held_->has_source()) *report.mutable_held()->mutable_source() = held_->source();
  report.mutable_held()->set_unreadable(held_->unreadable());
  for (const auto& [name, dir] : dirs_) {
    const bool is_behind = NewestComplete(dir).has_value();  // memory holds a newer one, which is told as sealed
    for (const SaveKey& save : dir.storing) {
      const bool is_milestone = IsMilestone(dir, save) && dir.held.contains(save);
      if (is_behind && !is_milestone) continue;
      v1::AwaitedStore& awaited = *report.mutable_held()->add_awaited();
      awaited.set_dir(name);
      SetKey(*awaited.mutable_save(), save);
      awaited.set_milestone(is_milestone);
    }
  }
  Tell(std::move(report));
}

std::optional<SaveKey> NodeCheckpoints::NewestComplete(const Dir& dir) {
  std::optional<SaveKey> newest;
  for (const auto& [key, save] : dir.saves) {
    if (save.complete) newest = key;
  }
  return newest;
}

void NodeCheckpoints::TellOpened(const std::string& name, const CheckpointOptions& options) {
  v1::CheckpointReport report = Report(name);
  SetForm(*report.mutable_opened()->mutable_form(), options.form);
  report.mutable_opened()->set_at_breakpoint(options.at_breakpoint);
  report.mutable_opened()->set_archive(options.archive);
  Tell(std::move(report));
}

void NodeCheckpoints::TellRestoreAsked(const std::string& name, uint32_t branch) {
  v1::CheckpointReport report = Report(name);
  report.mutable_restore_asked()->set_branch(branch);
  Tell(std::move(report));
}

// Where all ranks have.
void NodeCheckpoints::TellRestoreDone(const std::string& name, const Dir& dir) {
  if (dir.done.size() != static_cast<size_t>(local_world_size_)) return;
  v1::CheckpointReport report = Report(name);
  report.mutable_restore_done()->set_branch(dir.done_branch);
  Tell(std::move(report));
}

void NodeCheckpoints::TellWanted(const std::string& name, const Dir& dir) {
  for (const auto& [number, wanted] : dir.wanted) {
    if (wanted.fetching) continue;
    v1::CheckpointReport report = Report(name);
    v1::RestoreAsked& asked = *report.mutable_restore_asked();
    asked.set_branch(wanted.branch);
    asked.set_request(number);
    for (const auto& [rank, ranges] : wanted.parts) asked.add_images(rank);
    Tell(std::move(report));
  }
}

void NodeCheckpoints::OnAttached() {
  silence_.clear();
  if (epoch_ == 0) return;
  if (held_) TellHeld();
  for (auto& [name, dir] : dirs_) {
    if (!dir.opened.empty()) TellOpened(name, *dir.options);
    // What is owed of an earlier round goes with the newest save.
    const std::optional<SaveKey> newest = NewestComplete(dir);
    const bool owes = !dir.storing.empty() && dir.storing.begin()->epoch < epoch_;
    for (const auto& [save, state] : dir.saves) {
      if (state.complete) TellSealed(name, dir, save, dir.storing.contains(save) || (owes && save == newest));
      const bool is_open = !dir.committed || save > *dir.committed;
      if (state.skipped && is_open) TellSkipped(name, save, *state.skipped);  // those who wait for it await an answer
    }
    if (dir.restore_asked && !dir.decided.contains(*dir.restore_asked)) TellRestoreAsked(name, *dir.restore_asked);
    TellWanted(name, dir);
    TellRestoreDone(name, dir);
  }
}

// What other nodes are about to lend is awaited still: that needs no master.
void NodeCheckpoints::OnMasterSilent(const std::string& why) {
  silence_ = why;
  for (auto& [name, dir] : dirs_) {
    std::erase_if(dir.restores, [&, &name = name, &dir = dir](const Asked& asked) {
      if (dir.fetching.lower_bound(asked.branch) != dir.fetching.end()) return false;
      RefuseAsked(name, asked);
      return true;
    });
    for (const auto& [save, waits] : std::exchange(dir.waits, {})) {
      for (const Wait& wait : waits) Do(AnswerWait{wait.local_rank, wait.request, "", silence_});
    }
    std::vector<uint64_t> untold;
    for (const auto& [number, wanted] : dir.wanted) {
      if (!wanted.fetching) untold.push_back(number);
    }
    for (const uint64_t number : untold) ImagesFetched(name, dir, number, silence_);
  }
}

// --- ranks --------------------------------------------------------------------------------------------------------

std::string NodeCheckpoints::OnOpen(int local_rank, const std::string& name, const CheckpointOptions& options) {
  Dir& dir = dirs_[name];
  if (!dir.opened.empty() && dir.options->form != options.form) {
    return fmt::format("it was opened as of kind {} in this life, by a rank of this node, and is now as of kind {}",
                       KindOf(dir.options->form), KindOf(options.form));
  }
  const bool first = dir.opened.empty();
  CheckpointOptions kept = options;
  if (!first && kept.archive.empty()) {  // who only looks, at what is stored say, need not name it
    kept.archive = dir.options->archive;
    kept.archive_every = dir.options->archive_every;
  }
  if (!first) {  // nor how many steps are to stay
    if (kept.keep_last == 0) kept.keep_last = dir.options->keep_last;
    if (kept.keep_every == 0) kept.keep_every = dir.options->keep_every;
    kept.at_breakpoint |= dir.options->at_breakpoint;
    kept.trackers = dir.options->trackers;
  }
  const bool is_told = !first && HaveSameArchive(*dir.options, kept);
  if (!first && !is_told && !dir.options->archive.empty()) {
    return fmt::format("its archive is {}, each {}. step, by a rank of this node, and is now {}, each {}.",
                       dir.options->archive, dir.options->archive_every, kept.archive, kept.archive_every);
  }
  dir.options = std::move(kept);
  dir.opened.insert(local_rank);
  if (!is_told) TellOpened(name, *dir.options);
  if (dir.options->archive.empty()) return "";
  if (group_rank_ == 0 && !std::exchange(dir.archive_looked_at, true)) Archive(name, dir);
  return "";
}

bool NodeCheckpoints::Complete(const Dir& dir, const Save& save) const {
  const size_t pages = static_cast<size_t>(local_world_size_) + (dir.options->form.shared ? 1 : 0);
  return save.pages.size() == pages;
}

void NodeCheckpoints::OnSealed(int local_rank, const std::string& name, bool main, SaveKey key, bool store,
                               const std::map<std::string, uint32_t>& values) {
  const auto found = dirs_.find(name);
  if (found == dirs_.end() || !found->second.opened.contains(local_rank)) return;
  Dir& dir = found->second;
  key.epoch = epoch_;
  dir.came_to[local_rank] = std::max(dir.came_to[local_rank], key);
  if (const auto lost = dir.lost.find(key); lost != dir.lost.end() && lost->second.dropped) {
    return Do(MarkDropped{name, key});  // while this image was being written
  }
  if (dir.committed && key <= *dir.committed && !store) return;
  Save& save = dir.saves[key];
  save.pages.insert(main ? kMainPage : local_rank);
  for (const auto& [value, crc] : values) {
    std::vector<v1::SharedValue>& known = save.values[value];
    if (known.size() == 2 || (known.size() == 1 && known[0].crc32() == crc)) continue;
    v1::SharedValue& told = known.emplace_back();
    told.set_name(value);
    told.set_crc32(crc);
    told.set_local_rank(static_cast<uint32_t>(local_rank));
  }
  save.store = save.store || store;
  if (save.complete && !store) return;
  if (!Complete(dir, save)) return;
  save.complete = true;
  if (save.store) dir.storing.insert(key);
  if (save.store && job_ended_) return Lose(dir, key, {false, kJobEnded});
  TellSealed(name, dir, key, save.store);
}

bool NodeCheckpoints::IsMilestone(const Dir& dir, const SaveKey& save) {
  const auto is_due = [&](int64_t every) { return every > 0 && save.step % every == 0; };
  return dir.options && (is_due(dir.options->keep_every) || is_due(dir.options->archive_every));
}

void NodeCheckpoints::TellSealed(const std::string& name, const Dir& dir, const SaveKey& save, bool store) {
  v1::CheckpointReport report = Report(name);
  SetKey(*report.mutable_sealed()->mutable_save(), save);
  report.mutable_sealed()->set_store(store);
  report.mutable_sealed()->set_milestone(store && IsMilestone(dir, save));
  if (const auto sealed = dir.saves.find(save); sealed != dir.saves.end()) {
    for (const auto& [value, told] : sealed->second.values) {
      report.mutable_sealed()->mutable_values()->Add(told.begin(), told.end());
    }
  }
  Tell(std::move(report));
}

void NodeCheckpoints::OnSkipped(int local_rank, const std::string& name, SaveKey key, const std::string& why) {
  const auto found = dirs_.find(name);
  if (found == dirs_.end() || !found->second.opened.contains(local_rank)) return;
  Dir& dir = found->second;
  key.epoch = epoch_;
  dir.came_to[local_rank] = std::max(dir.came_to[local_rank], key);
  Save& save = dir.saves[key];
  if (save.skipped) return;
  save.skipped = why;
  TellSkipped(name, key, why);
}

void NodeCheckpoints::TellSkipped(const std::string& name, const SaveKey& save, const std::string& why) {
  v1::CheckpointReport report = Report(name);
  SetKey(*report.mutable_skipped()->mutable_save(), save);
  report.mutable_skipped()->set_why(why);
  Tell(std::move(report));
}

void NodeCheckpoints::OnWait(int local_rank, int64_t request, const std::string& name, SaveKey save,
                             bool until_stored) {
  const Wait wait{local_rank, request, until_stored};
  const auto found = dirs_.find(name);
  if (found == dirs_.end() || !found->second.opened.contains(local_rank)) {
    return Do(AnswerWait{local_rank, request, "failed", fmt::format("{} has not been opened", name)});
  }
  Dir& dir = found->second;
  save.epoch = epoch_;
  if (SettleWait(dir, save, wait)) return;
  if (!silence_.empty()) return Do(AnswerWait{local_rank, request, "", silence_});
  dir.waits[save].push_back(wait);
}

void NodeCheckpoints::OnRestore(int local_rank, int64_t request, const std::string& name, uint32_t branch) {
  Dir& dir = dirs_[name];
  const Asked asked{local_rank, request, branch};
  if (AnswerAsked(name, dir, asked)) return;
  if (!silence_.empty()) return RefuseAsked(name, asked);
  dir.restores.push_back(asked);
  if (dir.restore_asked && *dir.restore_asked >= branch) return;
  dir.restore_asked = branch;
  TellRestoreAsked(name, branch);
}

void NodeCheckpoints::OnRestoreDone(int local_rank, const std::string& name, uint32_t branch) {
  const auto found = dirs_.find(name);
  if (found == dirs_.end() || branch < found->second.done_branch) return;
  Dir& dir = found->second;
  if (branch > std::exchange(dir.done_branch, branch)) dir.done.clear();
  if (dir.done.insert(local_rank).second) TellRestoreDone(name, dir);
}

// A job must not begin anew because its directory cannot be read. The master hears of no step then, and decides that
// nothing is restored; the ranks of the node that has looked fail with the reason, and the round with them. Nor because
// the master does not look into it at all. False where it has not decided.
bool NodeCheckpoints::AnswerAsked(const std::string& name, Dir& dir, const Asked& asked) {
  // Who asks behind all the others is given the oldest that is known: all have gone on from a newer one.
  const auto known = dir.decided.lower_bound(asked.branch);
  if (known == dir.decided.end()) return false;
  const v1::CheckpointOrder& order = known->second;
  const bool begins_anew = order.restore().source() == v1::RestoreDecided::NOTHING;
  std::string refused;
  if (begins_anew && !order.has_save()) {
    refused = order.reason();
  } else if (begins_anew && !dir.unreadable.empty()) {
    refused = fmt::format("whether there is a step to restore is not known: {}", dir.unreadable);
  }
  if (const auto why = dir.not_fetched.find(known->first); why != dir.not_fetched.end()) {
    refused = fmt::format("step {} is in the memory of other nodes, and was not read from there: {}",
                          order.save().step(), why->second);
  }
  const bool is_rank_0 = group_rank_ == 0 && asked.local_rank == 0;
  if (is_rank_0 && refused.empty() && !begins_anew) SayRestored(name, dir, order);
  Do(AnswerRestore{asked.local_rank, asked.request, name, order, std::move(refused)});
  return true;
}

void NodeCheckpoints::RefuseAsked(const std::string& name, const Asked& asked) {
  Do(AnswerRestore{asked.local_rank,
                   asked.request,
                   name,
                   {},
                   fmt::format("what to restore from {} only the job's master can tell: {}", name, silence_)});
}

// What is given to the rank: whether it does go on from that only its script knows.
void NodeCheckpoints::SayRestored(const std::string& name, Dir& dir, const v1::CheckpointOrder& order) {
  if (dir.told && *dir.told >= order.restore().branch()) return;
  dir.told = order.restore().branch();
  const bool in_memory = order.restore().source() == v1::RestoreDecided::MEMORY;
  const size_t others = order.reason().find(kPassedOver);
  Do(SayCheckpoint{fmt::format("checkpoint: goes on from step {} of {}, {}{}", order.save().step(), name,
                               in_memory ? "in memory" : "on storage",
                               others == std::string::npos ? "" : order.reason().substr(others))});
}

void NodeCheckpoints::OnRankGone(int local_rank) {
  const auto of_rank = [local_rank](const auto& asked) { return asked.local_rank == local_rank; };
  for (auto& [name, dir] : dirs_) {
    std::erase_if(dir.restores, of_rank);
    for (auto& [save, waits] : dir.waits) std::erase_if(waits, of_rank);
    std::erase_if(dir.wanted, [&](const auto& entry) { return of_rank(entry.second); });
  }
}

// --- what became of a save ----------------------------------------------------------------------------------------

bool NodeCheckpoints::SettleWait(const Dir& dir, const SaveKey& save, const Wait& wait) {
  const auto answer = [&](const std::string& state, const std::string& why) {
    Do(AnswerWait{wait.local_rank, wait.request, state, why});
    return true;
  };
  const auto lost = dir.lost.find(save);
  if (!wait.until_stored) {
    // A newer committed save tells nothing of one that was dropped.
    const bool is_dropped = lost != dir.lost.end() && lost->second.dropped;
    if (!is_dropped && dir.committed && save <= *dir.committed) return answer("committed", "");
    return lost != dir.lost.end() && answer("dropped", lost->second.why);
  }
  if (dir.on_storage.contains(save)) return answer("stored", "");
  if (dir.stored && save < *dir.stored) {
    return answer("failed",
                  fmt::format("storage was behind: the newer step {} was written in its place", dir.stored->step));
  }
  if (lost != dir.lost.end()) return answer("failed", lost->second.why);
  const auto known = dir.saves.find(save);
  if (known != dir.saves.end() && known->second.complete && !known->second.store) {
    return answer("failed", "it was saved to memory only");
  }
  return false;
}

void NodeCheckpoints::SettleWaits(Dir& dir) {
  for (auto& [save, waits] : dir.waits) {
    std::erase_if(waits, [this, &dir, &key = save](const Wait& wait) { return SettleWait(dir, key, wait); });
  }
  std::erase_if(dir.waits, [](const auto& entry) { return entry.second.empty(); });
}

void NodeCheckpoints::Lose(Dir& dir, const SaveKey& save, const Loss& loss) {
  if (!loss.dropped) dir.not_stored = std::max(dir.not_stored, std::optional(save));
  dir.lost[save] = loss;
  if (dir.lost.size() > kLostKept) dir.lost.erase(dir.lost.begin());
  dir.storing.erase(save);
  SettleWaits(dir);
}

void NodeCheckpoints::OnOrder(const v1::CheckpointOrder& order) {
  const std::string& name = order.dir();
  if (order.has_read_older()) return Do(ScanMemory{epoch_, name});
  if (order.has_lend()) return Lend(order.lend().epoch());
  if (order.has_lending_ended()) {
    lends_ = false;
    return;
  }
  Dir& dir = dirs_[name];
  const SaveKey save = KeyOf(order.save());
  switch (order.body_case()) {
    case v1::CheckpointOrder::kCommitted:
      if (order.committed().hold()) HoldForStorage(name, dir, save);
      ReadAhead(dir, order);
      return Committed(name, dir, save);
    case v1::CheckpointOrder::kDropped:
      return Dropped(name, dir, save, order.reason());
    case v1::CheckpointOrder::kRestore: {
      const uint32_t branch = order.restore().branch();
      if (order.restore().request() != 0) return ImagesFound(name, dir, order);
      if (order.restore().elsewhere().empty()) return Restored(name, dir, order);
      // Said again on a new stream: the first answer will do.
      if (dir.decided.contains(branch) || !dir.fetching.try_emplace(branch, order).second) return;
      Do(SayCheckpoint{fmt::format("checkpoint: step {} of {} is read from other nodes' memory", save.step, name)});
      return Do(FetchImages{name, order, epoch_, {}});
    }
    case v1::CheckpointOrder::kFind:
      return Do(FindSteps{name,
                          {order.find().but().begin(), order.find().but().end()},
                          epoch_,
                          {order.find().doubted().begin(), order.find().doubted().end()},
                          order.find().archive()});
    case v1::CheckpointOrder::kCheck:
      return Do(CheckStep{name, order.check().name(), epoch_, order.check().archive()});
    case v1::CheckpointOrder::kPrepareStore:
      dir.storing.insert(save);
      if (std::exchange(dir.folder_of, save) != save) dir.folders.clear();
      return Do(MakeStepFolder{name, save});
    case v1::CheckpointOrder::kStoreShards: {
      dir.storing.insert(save);
      const std::string& folder = order.store_shards().name();
      // The group rank may be another's by now.
      return Do(WriteImages{name, save, folder, dir.folders.contains(folder)});
    }
    case v1::CheckpointOrder::kWriteManifest:
      return Do(CloseStep{name, order, dir.options.value_or(CheckpointOptions{}), GoesOnFrom(dir, save)});
    case v1::CheckpointOrder::kStoreEnded:
      return StoreEnded(name, dir, order);
    case v1::CheckpointOrder::kReadOlder:
    case v1::CheckpointOrder::kLend:
    case v1::CheckpointOrder::kLendingEnded:
    case v1::CheckpointOrder::BODY_NOT_SET:
      return;  // a newer master's order that this agent may ignore
  }
}

// While the ranks begin. A master that settles anew, while they train, says it once more: they may have gone on.
void NodeCheckpoints::ReadAhead(const Dir& dir, const v1::CheckpointOrder& order) {
  const bool asked = !dir.decided.empty() || !dir.fetching.empty();
  const bool saves = !dir.saves.empty() || (dir.committed && dir.committed->epoch == epoch_);
  if (order.committed().elsewhere().empty() || asked || saves) return;
  v1::CheckpointOrder read;
  read.set_dir(order.dir());
  *read.mutable_save() = order.save();
  *read.mutable_restore()->mutable_elsewhere() = order.committed().elsewhere();
  Do(FetchImages{order.dir(), std::move(read), epoch_, {}, /*ahead=*/true});
}

// The order can be carried out: what its ranks need of the save is here.
void NodeCheckpoints::Restored(const std::string& name, Dir& dir, const v1::CheckpointOrder& order) {
  if (order.restore().source() != v1::RestoreDecided::MEMORY && dir.decided.empty()) Do(ForgetAhead{name});
  dir.decided[order.restore().branch()] = order;
  if (dir.decided.size() > kDecidedKept) dir.decided.erase(dir.decided.begin());
  if (order.restore().source() == v1::RestoreDecided::DISK) dir.from_disk = SaveKey{epoch_, order.save().step()};
  // Memory goes on with what it has behind it.
  if (order.restore().source() != v1::RestoreDecided::MEMORY && order.has_save()) {
    dir.past = {epoch_, order.restore().branch(), order.restore().name()};
  }
  std::erase_if(dir.restores, [&](const Asked& asked) { return AnswerAsked(name, dir, asked); });
  TellWanted(name, dir);  // a new master that did not know yet who lends them has said this instead
}

void NodeCheckpoints::OnImagesAsked(int local_rank, int64_t request, const std::string& name, uint32_t branch,
                                    const ImageParts& parts) {
  Dir& dir = dirs_[name];
  const auto known = dir.decided.lower_bound(branch);
  if (known == dir.decided.end() || known->second.restore().source() != v1::RestoreDecided::MEMORY) {
    return Do(AnswerImages{local_rank, request, name, {}, parts, "no save is restored from memory"});
  }
  dir.wanted[++images_asked_] = {local_rank, request, known->first, parts, false};
  if (!silence_.empty()) return ImagesFetched(name, dir, images_asked_, silence_);
  TellWanted(name, dir);
}

// Said again on a new stream: the first answer will do.
void NodeCheckpoints::ImagesFound(const std::string& name, Dir& dir, const v1::CheckpointOrder& order) {
  const auto wanted = dir.wanted.find(order.restore().request());
  if (wanted == dir.wanted.end() || std::exchange(wanted->second.fetching, true)) return;
  std::set<uint32_t> lent;
  for (const v1::ImageElsewhere& each : order.restore().elsewhere()) lent.insert(static_cast<uint32_t>(each.rank()));
  for (const auto& [rank, ranges] : wanted->second.parts) {
    if (lent.contains(rank)) continue;
    return ImagesFetched(name, dir, wanted->first, fmt::format(kNobodyLends, rank), true);
  }
  Do(FetchImages{name, order, epoch_, wanted->second.parts});
}

void NodeCheckpoints::ImagesFetched(const std::string& name, Dir& dir, uint64_t request, const std::string& error,
                                    bool nobody_lends) {
  const auto wanted = dir.wanted.extract(request);
  if (wanted.empty()) return;
  const Wanted& was = wanted.mapped();
  const auto known = dir.decided.find(was.branch);
  const SaveKey save = known == dir.decided.end() ? SaveKey{} : KeyOf(known->second.save());
  if (!error.empty()) {
    // What this life has saved nobody lends yet: that says nothing of what the next one can read.
    const bool is_of_this_life = known != dir.decided.end() && save.epoch == epoch_ && nobody_lends;
    if (!is_of_this_life) not_fetched_ = error;
    Do(SayCheckpoint{fmt::format("checkpoint: a part of step {} of {} was not read from other nodes' memory: {}",
                                 save.step, name, error)});
  }
  Do(AnswerImages{was.local_rank, was.request, name, save, was.parts, error});
}

void NodeCheckpoints::Committed(const std::string& name, Dir& dir, const SaveKey& save) {
  if (dir.committed && save <= *dir.committed) return;
  dir.committed = save;
  Do(MarkCommitted{name, save});
  // What a rank here has skipped is not there, whether or not the master has heard of it before this one.
  for (const auto& [older, state] : dir.saves) {
    if (older < save && state.skipped) Lose(dir, older, {true, *state.skipped});
  }
  SettleWaits(dir);
  // Older ones are of no more interest, but for those that storage still owes an answer about.
  std::erase_if(dir.saves, [&](const auto& entry) { return entry.first < save && !dir.storing.contains(entry.first); });
}

void NodeCheckpoints::Dropped(const std::string& name, Dir& dir, const SaveKey& save, const std::string& why) {
  Do(MarkDropped{name, save});
  dir.saves.erase(save);
  Lose(dir, save, {true, why});
}

// A round's saves whose branch no load() by the agent has begun go back to what only the script knows, or to nothing.
std::optional<std::string> NodeCheckpoints::GoesOnFrom(Dir& dir, const SaveKey& save) const {
  const bool by_agent = !dir.decided.empty() && save.branch <= dir.decided.rbegin()->first;
  const bool is_later = dir.past.Holds(save) && !(save.epoch == dir.past.epoch && save.branch == dir.past.branch);
  if (save.epoch == epoch_ && !by_agent && is_later) dir.past = {save.epoch, save.branch, ""};
  return dir.past.stored;
}

void NodeCheckpoints::StoreEnded(const std::string& name, Dir& dir, const v1::CheckpointOrder& order) {
  const SaveKey save = KeyOf(order.save());
  const std::string& folder = order.store_ended().name();
  if (order.store_ended().stored() && dir.past.Holds(save) && (!folder.empty() || dir.stored != save)) {
    dir.past.stored = folder.empty() ? std::nullopt : std::optional(folder);
  }
  if (order.store_ended().stored()) {
    dir.stored = save;
    dir.on_storage.insert(save);
    if (dir.on_storage.size() > kStoredKept) dir.on_storage.erase(dir.on_storage.begin());
    dir.storing.erase(dir.storing.begin(), dir.storing.upper_bound(save));
    ReleaseHeld(name, dir, save);
    return SettleWaits(dir);
  }
  if (group_rank_ == 0) {
    Do(SayCheckpoint{fmt::format("checkpoint: step {} of {} is not stored: {}", save.step, name, order.reason())});
  }
  dir.not_stored = std::max(dir.not_stored, std::optional(save));  // also where others have asked for it
  // What was asked for before it, and was to go with it, is not there either.
  const std::set<SaveKey> before(dir.storing.begin(), dir.storing.upper_bound(save));
  for (const SaveKey& older : before) Lose(dir, older, {false, order.reason()});
  ReleaseHeld(name, dir, save);
}

// What is over is not held: the order was said again.
void NodeCheckpoints::HoldForStorage(const std::string& name, Dir& dir, const SaveKey& save) {
  const bool is_over = dir.stored && save <= *dir.stored;
  if (!is_over && dir.held.insert(save).second) Do(HoldSave{name, save});
}

void NodeCheckpoints::ReleaseHeld(const std::string& name, Dir& dir, const SaveKey& save) {
  while (!dir.held.empty() && *dir.held.begin() <= save) {
    Do(ReleaseSave{name, *dir.held.begin()});
    dir.held.erase(dir.held.begin());
  }
}

void NodeCheckpoints::OnJobEnded() {
  job_ended_ = true;
  lends_ = false;
  for (auto& [name, dir] : dirs_) {
    if (dir.storing.empty()) continue;
    Do(SayCheckpoint{
        fmt::format("checkpoint: step {} of {} is not stored: {}", dir.storing.rbegin()->step, name, kJobEnded)});
    ReleaseHeld(name, dir, *dir.storing.rbegin());
    while (!dir.storing.empty()) Lose(dir, *dir.storing.begin(), {false, kJobEnded});
  }
}

// --- storage ------------------------------------------------------------------------------------------------------

void NodeCheckpoints::OnFound(uint64_t epoch, const std::string& name, const FoundSteps& steps) {
  if (epoch != epoch_) return;
  dirs_[name].unreadable = steps.unreadable;
  if (!steps.unreadable.empty()) {
    Do(SayCheckpoint{fmt::format("checkpoint: {} cannot be read: {}", name, steps.unreadable)});
  }
  v1::CheckpointReport report = Report(name);
  *report.mutable_found() = steps.found;
  Tell(std::move(report));
}

// What an older round has read are other ranks' shards.
void NodeCheckpoints::OnChecked(uint64_t epoch, const std::string& name, const std::string& folder,
                                const std::string& error, bool unreadable) {
  if (epoch != epoch_) return;
  v1::CheckpointReport report = Report(name);
  report.mutable_checked()->set_name(folder);
  report.mutable_checked()->set_error(error);
  report.mutable_checked()->set_unreadable(unreadable);
  Tell(std::move(report));
}

// Where nobody lends an image any more its ranks fail with the reason, and the round with them. The next one has others
// to go on from: it does not come to this again where this node can reach nobody.
void NodeCheckpoints::OnFetched(uint64_t epoch, const std::string& name, uint32_t branch, uint64_t request,
                                const std::string& error) {
  if (epoch != epoch_) return;
  Dir& dir = dirs_[name];
  if (request != 0) return ImagesFetched(name, dir, request, error);
  const auto order = dir.fetching.extract(branch);
  if (order.empty()) return;
  if (!error.empty()) {
    dir.not_fetched[branch] = not_fetched_ = error;
    Do(SayCheckpoint{fmt::format("checkpoint: step {} of {} was not read from other nodes' memory: {}",
                                 order.mapped().save().step(), name, error)});
  }
  Restored(name, dir, order.mapped());
}

void NodeCheckpoints::OnFolderMade(const std::string& name, const SaveKey& save, const std::string& folder,
                                   const std::string& error) {
  if (Dir& dir = dirs_[name]; error.empty() && dir.folder_of == save) dir.folders.insert(folder);
  v1::CheckpointReport report = Report(name);
  SetKey(*report.mutable_store_prepared()->mutable_save(), save);
  report.mutable_store_prepared()->set_name(folder);
  report.mutable_store_prepared()->set_error(error);
  Tell(std::move(report));
}

void NodeCheckpoints::OnImagesWritten(const std::string& name, const SaveKey& save, const std::string& folder,
                                      const std::vector<v1::Shard>& shards, const std::string& error) {
  v1::CheckpointReport report = Report(name);
  SetKey(*report.mutable_shards_written()->mutable_save(), save);
  report.mutable_shards_written()->set_name(folder);
  for (const v1::Shard& shard : shards) *report.mutable_shards_written()->add_shards() = shard;
  report.mutable_shards_written()->set_error(error);
  Tell(std::move(report));
}

void NodeCheckpoints::OnStepClosed(const std::string& name, const SaveKey& save, const std::string& error) {
  v1::CheckpointReport report = Report(name);
  SetKey(*report.mutable_manifest_written()->mutable_save(), save);
  report.mutable_manifest_written()->set_error(error);
  Tell(std::move(report));
  if (error.empty()) Archive(name, dirs_[name]);
}

void NodeCheckpoints::Archive(const std::string& name, Dir& dir) {
  if (!dir.options || dir.options->archive.empty()) return;
  if (!dir.archiving_to.empty()) {
    dir.archives_again = true;
    return;
  }
  dir.archiving_to = dir.options->archive;
  Do(ArchiveSteps{name, *dir.options});
}

void NodeCheckpoints::OnArchived(const std::string& name, const std::vector<int64_t>& steps, const std::string& error) {
  Dir& dir = dirs_[name];
  const std::string archive = std::exchange(dir.archiving_to, "");
  for (const int64_t step : steps) {
    Do(SayCheckpoint{fmt::format("checkpoint: step {} of {} is copied to {}", step, name, archive)});
  }
  if (!error.empty()) {
    Do(
        SayCheckpoint{fmt::format("checkpoint: {} is not copied to {}: {}; it is tried again with the next step that "
                                  "is stored",
                                  name, archive, error)});
  }
  if (std::exchange(dir.archives_again, false)) Archive(name, dir);
}

AbsentRanks NodeCheckpoints::AbsentFrom(const std::string& name, SaveKey save) const {
  AbsentRanks absent;
  save.epoch = epoch_;
  const auto dir = dirs_.find(name);
  for (int rank = 0; rank < local_world_size_; ++rank) {
    if (dir == dirs_.end() || !dir->second.opened.contains(rank)) {
      absent.unopened.push_back(rank);
      continue;
    }
    const auto came_to = dir->second.came_to.find(rank);
    if (came_to == dir->second.came_to.end()) {
      absent.unsaved.push_back(rank);
    } else if (came_to->second < save) {
      absent.behind.push_back(rank);
    }
  }
  return absent;
}

CheckpointOptions NodeCheckpoints::OptionsOf(const std::string& name) const {
  const auto dir = dirs_.find(name);
  return dir == dirs_.end() ? CheckpointOptions{} : dir->second.options.value_or(CheckpointOptions{});
}

SaveForm NodeCheckpoints::FormOfDirectory(const std::string& name) const {
  const auto dir = dirs_.find(name);
  return dir != dirs_.end() && dir->second.options ? dir->second.options->form : SaveForm{};
}

}  // namespace phalanx::agent

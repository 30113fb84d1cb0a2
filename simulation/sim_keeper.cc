#include "simulation/sim_keeper.h"

#include <algorithm>
#include <memory>

#include "checkpoint/disk/archive.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/rank/memory_names.h"
#include "checkpoint/remote/image_request.h"
#include "simulation/judge.h"
#include "simulation/story.h"

namespace phalanx::simulation {

namespace ckpt = phalanx::checkpoint;

namespace {

// So often, and so far apart, an image is asked for: for as long as a reader waits for a byte.
constexpr int kImageTries = 50;
constexpr Micros kImageRetry = ckpt::kImageStallMs * kMs / kImageTries;
// A fresh file for a slot.
constexpr Micros kMakeFile = 5 * kMs;
// Every image is of one page; there is room for all of them.
constexpr uint64_t kImageBytes = ckpt::kControlBytes;
constexpr uint64_t kFreeBytes = uint64_t{1} << 40;

v1::Shard ShardOf(const ckpt::MemoryImage& image) {
  v1::Shard shard;
  const int64_t rank = agent::RankOf(image);
  shard.set_rank(static_cast<int32_t>(rank));
  shard.set_file(
      ckpt::ShardName(image.image.form.own == FileNeed::kAnyRank ? ckpt::kDcpLayout : ckpt::kTorchLayout, rank));
  shard.set_bytes(image.image.bytes);
  shard.set_crc32(image.image.crc32);
  shard.set_needed_by(static_cast<v1::FileNeed>(agent::NeedOf(image)));
  return shard;
}

}  // namespace

SimKeeper::SimKeeper(const Parts& parts) : parts_(parts), core_(parts.local_world_size) {}

// --- memory -------------------------------------------------------------------------------------------------------

uint64_t SimKeeper::TakeUp() {
  for (const auto& [name, page] : parts_.machine.shared_memory) OpenPage(name);
  taken_up_ = !parts_.machine.shared_memory.empty();
  return pages_.highest_epoch();
}

void SimKeeper::OpenPage(const std::string& name) {
  if (pages_.Has(kCheckpointDir, name)) return;
  std::shared_ptr<SharedPage>& page = parts_.machine.shared_memory[name];
  if (page == nullptr) page = std::make_shared<SharedPage>();
  pages_.Add(kCheckpointDir, name, ckpt::kMemoryRoot, page->bytes.data());
}

std::string SimKeeper::PageName(const Process& process, bool main) const {
  return main ? ckpt::kMainPageName : std::to_string(process->local_rank);
}

void SimKeeper::Do(const agent::ScanMemory& action) {
  if (action.to_lend) BeginEpoch(action.epoch);
  if (scan_epoch_ != action.epoch) {
    read_.clear();
    read_all_of_.clear();
  }
  scan_epoch_ = action.epoch;
  if (!action.older_of.empty()) read_all_of_.insert(action.older_of);
  if (parts_.machine.shared_memory.empty()) return core_.OnScanned(action.epoch, {}, std::nullopt);
  if (looking_at_directories_) return;
  if (taken_up_) return LookAtDirectories();
  Scan();
}

void SimKeeper::LookAtDirectories() {
  looking_at_directories_ = true;
  OnStorage({1, [](size_t) { return true; }, [this] { OnDirectoriesLookedAt(); }});
  Later(agent::kLookMs * kMs, [this] { OnDirectoriesLookedAt(); });
}

void SimKeeper::OnDirectoriesLookedAt() {
  if (!std::exchange(looking_at_directories_, false)) return;
  taken_up_ = false;
  Scan();
  for (auto& [process, answered] : std::exchange(opening_, {})) Open(process, std::move(answered));
}

void SimKeeper::Scan() {
  std::vector<ckpt::MemoryImage> images = pages_.Images();
  std::erase_if(images, [this](const ckpt::MemoryImage& each) { return KeyOf(each.image).epoch >= scan_epoch_; });
  Later(parts_.machine.random.Between(1, parts_.saving.scan), [this, images, epoch = scan_epoch_] {
    if (epoch != scan_epoch_) return;
    for (const ckpt::MemoryImage& image : agent::NextToRead(images, read_, read_all_of_)) read_.push_back({image, ""});
    core_.OnScanned(epoch, agent::HeldPages(read_, agent::UnreadOf(images, read_)), Lend());
  });
}

std::optional<v1::ImageSource> SimKeeper::Lend() {
  if (parts_.machine.lends_at == 0) parts_.machine.lends_at = parts_.machine.next_port++;
  v1::ImageSource source;
  source.set_address(parts_.machine.address);
  source.set_port(parts_.machine.lends_at);
  source.set_key(std::string(ckpt::kImageKeyBytes, 'k'));
  return source;
}

void SimKeeper::Do(const agent::FetchImages& action) { Fetch(action, kImageTries); }

void SimKeeper::Do(const agent::ForgetAhead& /*action*/) {
  fetched_ = {};
  forgotten_epoch_ = epoch_;
}

// All at once, at the end: what has become another image until then is not taken. Who lends it may stand still, or not
// be reached, for a while.
void SimKeeper::Fetch(const agent::FetchImages& action, int tries) {
  const bool is_first = tries == kImageTries;
  const Micros delay = is_first ? parts_.machine.random.Between(kMs, parts_.saving.scan) : kImageRetry;
  Later(delay, [this, action, tries] {
    Fetched fetched{KeyOf(action.order.save()), {}};
    std::string error;
    for (const v1::ImageElsewhere& elsewhere : action.order.restore().elsewhere()) {
      const std::optional<ckpt::SlotImage> image = Read(elsewhere, fetched.save);
      if (image) fetched.images[elsewhere.rank()] = *image;
      const bool can_do_without = core_.FormOfDirectory(action.dir).own == FileNeed::kNobody && elsewhere.rank() >= 0;
      if (!image && !can_do_without) error = fmt::format("no node lends the image of rank {}", elsewhere.rank());
      if (!image && tries > 1 && action.epoch == epoch_ && SomeLenderLives(elsewhere)) return Fetch(action, tries - 1);
    }
    const bool is_forgotten = action.ahead && forgotten_epoch_ == epoch_;
    if (action.epoch == epoch_ && error.empty() && !is_forgotten) {
      if (fetched_.save != fetched.save) fetched_ = {fetched.save, {}};
      fetched_.images.merge(fetched.images);
    }
    if (action.ahead) return;
    const v1::RestoreDecided& restore = action.order.restore();
    core_.OnFetched(action.epoch, action.dir, restore.branch(), restore.request(), error);
  });
}

bool SimKeeper::SomeLenderLives(const v1::ImageElsewhere& elsewhere) const {
  return std::ranges::any_of(elsewhere.sources(), [this](const v1::ImageSource& source) {
    return std::ranges::any_of(parts_.machines, [&](const std::unique_ptr<Machine>& machine) {
      const bool is_it = machine->address == source.address() && machine->lends_at == source.port();
      return is_it && machine->powered && (!machine->Works() || machine->cut > 0 || parts_.machine.cut > 0);
    });
  });
}

std::optional<ckpt::SlotImage> SimKeeper::Read(const v1::ImageElsewhere& elsewhere, const SaveKey& save) const {
  for (const v1::ImageSource& source : elsewhere.sources()) {
    for (const std::unique_ptr<Machine>& machine : parts_.machines) {
      const bool is_it = machine->address == source.address() && machine->lends_at == source.port();
      if (!is_it || !machine->Works() || machine->cut > 0 || parts_.machine.cut > 0) continue;
      for (const auto& [name, page] : machine->shared_memory) {
        const bool is_shared = ckpt::IsSharedPage(name);
        if (is_shared != (elsewhere.rank() < 0)) continue;
        ckpt::ControlPage now;
        if (!ckpt::ParseControl(page->bytes.data(), page->bytes.size(), &now).empty()) continue;
        for (const ckpt::Slot& slot : now.slots) {
          const bool is_own = is_shared || slot.image.rank == static_cast<uint32_t>(elsewhere.rank());
          if (slot.sealed() && slot.file_number != 0 && KeyOf(slot.image) == save && is_own) return slot.image;
        }
      }
    }
  }
  return std::nullopt;
}

agent::FetchedImages SimKeeper::FilesOf(const SaveKey& save) const {
  agent::FetchedImages files;
  if (fetched_.save != save) return files;
  for (const auto& [rank, image] : fetched_.images) files[rank] = fmt::format("fetched/{}", rank);
  return files;
}

void SimKeeper::Do(const agent::MarkCommitted& action) {
  pages_.Commit(action.dir, action.save);
  for (const std::string& name : pages_.Unneeded(action.dir, action.save)) {
    pages_.Forget(action.dir, name);
    parts_.machine.shared_memory.erase(name);
  }
  ReplaceSlots();
}

void SimKeeper::Do(const agent::MarkDropped& action) { pages_.Drop(action.dir, action.save); }

void SimKeeper::ReplaceSlots() {
  for (const ckpt::SlotPlan& plan : pages_.Replacements()) {
    Later(kMakeFile, [this, plan] { pages_.Install(plan); });
  }
}

void SimKeeper::Tidy() {
  core_.OnTidy();
  Run();
}

// Simulated storage has no files that are kept to be written over: looking for them takes its time all the same.
void SimKeeper::Do(const agent::TidyUp& action) {
  OnStorage({1, [](size_t) { return true; }, [this, dir = action.dir] { core_.OnTidied(dir, ""); }});
}

void SimKeeper::End(bool failed) {
  core_.OnEnd(agent::HeldPages(pages_.Images()), failed);
  Run();
}

// The master hears of it with the agent's last words: what it decides until then is no mistake.
void SimKeeper::Do(const agent::RemoveMemory& /*action*/) {
  parts_.machine.shared_memory.clear();
  parts_.machine.changed_at = parts_.queue.now();
}

void SimKeeper::Do(const agent::LeaveMemory& /*action*/) {}

// --- ranks --------------------------------------------------------------------------------------------------------

bool SimKeeper::Hears(const Process& process) const {
  const auto rank = ranks_.find(process->local_rank);
  return alive_ && rank != ranks_.end() && rank->second == process;
}

void SimKeeper::NewRank(const Process& process) {
  if (const auto before = ranks_.find(process->local_rank); before != ranks_.end()) {
    const Process ended = before->second;  // a copy: OnRankEnded takes it out
    OnRankEnded(ended);
  }
  ranks_[process->local_rank] = process;
}

void SimKeeper::OnRankEnded(const Process& process) {
  if (!Hears(process)) return;
  ranks_.erase(process->local_rank);
  std::erase_if(opening_, [&](const auto& each) { return each.first == process; });
  std::erase_if(requests_, [&](const auto& each) { return each.second.process == process; });
  core_.OnRankGone(process->local_rank);
}

void SimKeeper::Open(const Process& process, Task answered) {
  if (!Hears(process)) return;
  if (looking_at_directories_) return static_cast<void>(opening_.emplace_back(process, std::move(answered)));
  const Saving& saving = parts_.saving;
  OpenPage(std::to_string(process->local_rank));
  pages_.MarkOpened(kCheckpointDir, std::to_string(process->local_rank));
  process->own_page = parts_.machine.shared_memory.at(std::to_string(process->local_rank));
  if (saving.form.shared) {
    OpenPage(ckpt::kMainPageName);
    pages_.MarkOpened(kCheckpointDir, ckpt::kMainPageName);
    process->main_page = parts_.machine.shared_memory.at(ckpt::kMainPageName);
  }
  core_.OnOpen(process->local_rank, kCheckpointDir,
               {saving.form,
                saving.at_breakpoint,
                saving.keep_last,
                saving.keep_every,
                {},
                saving.archives ? "/archive" : "",
                saving.archive_every});
  Run();
  Later(0, [this, process, answered = std::move(answered)]() mutable {
    if (Hears(process)) answered();
  });
}

void SimKeeper::Prepare(const Process& process, bool main) {
  if (!Hears(process)) return;
  const auto same = [](const std::string&) { return kImageBytes; };
  const StatusOr<ckpt::SlotPlan> plan =
      pages_.Plan(kCheckpointDir, PageName(process, main), {kImageBytes, parts_.saving.slots, 0}, kFreeBytes, same);
  if (plan.ok()) pages_.Install(*plan);
}

void SimKeeper::Sealed(const Process& process, bool main, int64_t step, bool store) {
  if (!Hears(process)) return;
  core_.OnSealed(process->local_rank, kCheckpointDir, main, {0, step}, store);
  Run();
}

void SimKeeper::Skipped(const Process& process, int64_t step, const std::string& why) {
  if (!Hears(process)) return;
  core_.OnSkipped(process->local_rank, kCheckpointDir, {0, step}, why);
  ReplaceSlots();
  Run();
}

void SimKeeper::Wait(const Process& process, int64_t step, bool until_stored,
                     std::function<void(const std::string& state)> over) {
  if (!Hears(process)) return;
  const int64_t request = next_request_++;
  requests_[request] = {process, std::move(over), {}, {}};
  core_.OnWait(process->local_rank, request, kCheckpointDir, {0, step}, until_stored);
  Run();
}

void SimKeeper::Restore(const Process& process, std::function<void(const RestoreAnswer&)> decided) {
  if (!Hears(process)) return;
  const int64_t request = next_request_++;
  requests_[request] = {process, {}, std::move(decided), {}};
  core_.OnRestore(process->local_rank, request, kCheckpointDir, 0);
  Run();
}

void SimKeeper::Do(const agent::HoldSave& action) {
  std::vector<ckpt::MemoryImage> images = pages_.Images(action.dir, action.save);
  std::erase_if(images, [this](const ckpt::MemoryImage& image) { return !pages_.Hold(image); });
  held_[action.save] = std::move(images);
}

void SimKeeper::Do(const agent::ReleaseSave& action) {
  const auto held = held_.extract(action.save);
  if (held.empty()) return;
  for (const ckpt::MemoryImage& image : held.mapped()) pages_.Release(image);
  ReplaceSlots();
}

void SimKeeper::Do(const agent::AnswerWait& action) {
  auto request = requests_.extract(action.request);
  if (request.empty()) return;
  Later(0, [this, request = request.mapped(), state = action.state] {
    if (Hears(request.process)) request.over(state);
  });
}

void SimKeeper::Do(const agent::AnswerRestore& action) {
  auto request = requests_.extract(action.request);
  if (request.empty()) return;
  if (!master_is_silent_ && action.refused.find("only the job's master can tell") != std::string::npos) {
    parts_.judge.Violated("restore-delivers", fmt::format("the master has answered since: {}", action.refused));
  }
  RestoreAnswer answer;
  answer.order = action.order;
  answer.refused = action.refused;
  answer.images = agent::ToRestore(action.order, rank_base_ + static_cast<uint32_t>(action.local_rank),
                                   pages_.Images(action.dir, KeyOf(action.order.save())), checked_[action.dir],
                                   FilesOf(KeyOf(action.order.save())), core_.FormOfDirectory(action.dir));
  if (fetched_.save == KeyOf(action.order.save())) {
    for (const auto& [rank, image] : fetched_.images) answer.fetched.push_back(image);
  }
  for (const ckpt::MemoryImage& image : answer.images.images) pages_.HandOut(image, kFreeBytes);
  ReplaceSlots();
  Later(0, [this, request = request.mapped(), answer] {
    if (Hears(request.process)) request.decided(answer);
  });
}

void SimKeeper::RestoreDone(const Process& process) {
  if (!Hears(process)) return;
  core_.OnRestoreDone(process->local_rank, kCheckpointDir, 0);
  Run();
}

void SimKeeper::AskImages(const Process& process, const std::vector<uint32_t>& ranks,
                          std::function<void(const ImagesAnswer&)> answered) {
  if (!Hears(process)) return;
  const int64_t request = next_request_++;
  requests_[request] = {process, {}, {}, std::move(answered)};
  agent::ImageParts parts;
  for (const uint32_t rank : ranks) parts[rank];
  core_.OnImagesAsked(process->local_rank, request, kCheckpointDir, 0, parts);
  Run();
}

void SimKeeper::Do(const agent::AnswerImages& action) {
  auto request = requests_.extract(action.request);
  if (request.empty()) return;
  ImagesAnswer answer;
  answer.refused = action.refused;
  for (const auto& [rank, ranges] : action.parts) {
    const auto image = fetched_.images.find(static_cast<int32_t>(rank));
    const bool is_there = fetched_.save == action.save && image != fetched_.images.end();
    if (is_there) answer.images.push_back(image->second);
    if (!is_there && answer.refused.empty()) answer.refused = fmt::format("the image of rank {} is gone", rank);
  }
  Later(0, [this, request = request.mapped(), answer] {
    if (Hears(request.process)) request.images(answer);
  });
}

// --- the master ---------------------------------------------------------------------------------------------------

void SimKeeper::OnRound(const v1::StartRound& round) {
  rank_base_ = round.rank_base();
  world_size_ = round.world_size();
  BeginEpoch(round.epoch());
  core_.OnRound(epoch_, round.group_rank());
  Run();
}

void SimKeeper::BeginEpoch(uint64_t epoch) {
  epoch_ = epoch;
  fetched_ = {};
  pages_.SetLiveEpoch(epoch_);
}

void SimKeeper::OnAttached() {
  master_is_silent_ = false;
  core_.OnAttached();
  Run();
}

void SimKeeper::OnOrder(const v1::CheckpointOrder& order) {
  core_.OnOrder(order);
  Run();
}

void SimKeeper::OnMasterSilent(const std::string& why) {
  master_is_silent_ = true;
  core_.OnMasterSilent(why);
  Run();
}

void SimKeeper::OnJobEnded() {
  core_.OnJobEnded();
  Run();
}

void SimKeeper::OnLeaving() {
  core_.OnLeaving();
  Run();
}

void SimKeeper::Run() {
  if (std::exchange(running_, true)) return;
  for (std::vector<agent::CheckpointAction> actions = core_.Take(); !actions.empty(); actions = core_.Take()) {
    for (const agent::CheckpointAction& action : actions) std::visit([this](const auto& each) { Do(each); }, action);
  }
  running_ = false;
  if (when_unneeded_ && !Storing() && !Lending()) std::exchange(when_unneeded_, nullptr)();
}

void SimKeeper::Do(const agent::TellMaster& action) { parts_.tell(action.report); }

void SimKeeper::Do(const agent::SayCheckpoint& action) {
  parts_.story.Say(parts_.queue.now(), parts_.machine.name, "  says \"{}\"", action.text);
}

// --- storage ------------------------------------------------------------------------------------------------------

Micros SimKeeper::Takes() {
  return parts_.machine.random.Between(parts_.saving.write / 4, parts_.saving.write) + parts_.storage.slower_by();
}

// One thread: what is asked for later is done later.
void SimKeeper::OnStorage(StorageJob job) {
  storage_jobs_.push_back(std::move(job));
  if (storage_jobs_.size() == 1) WorkOnStorage(0);
}

void SimKeeper::WorkOnStorage(size_t step) {
  Later(Takes(), [this, step] {
    parts_.storage.WhenAwake([this, step] {
      parts_.machine.gate.Pass([this, step] {
        if (!alive_) return;
        StorageJob& job = storage_jobs_.front();
        const bool goes_on = job.step(step);
        if (goes_on && step + 1 < job.steps) return WorkOnStorage(step + 1);
        Later(parts_.machine.random.Between(1, kMs), std::move(job.done));
        storage_jobs_.pop_front();
        if (!storage_jobs_.empty()) WorkOnStorage(0);
      });
    });
  });
}

void SimKeeper::Do(const agent::FindSteps& action) {
  auto found = std::make_shared<v1::FoundOnDisk>();
  OnStorage({1,
             [this, found, action](size_t) {
               *found = agent::NewestStep(action.dir, parts_.storage.Find(), action.but, kJobId);
               parts_.judge.saves().OnLookedAtStorage(epoch_, action.but);
               return true;
             },
             [this, found, action] {
               core_.OnFound(action.epoch, action.dir, {*found, ""});
             }});
}

void SimKeeper::Do(const agent::CheckStep& action) {
  struct Checked {
    agent::CheckedFolder folder;
    std::string error;  // it is gone since it was found
  };
  auto checked = std::make_shared<Checked>();
  const auto ranks = static_cast<uint32_t>(parts_.local_world_size);
  OnStorage({1,
             [this, checked, action, first = rank_base_, ranks, world = world_size_](size_t) {
               checked->folder.name = action.name;
               const std::vector<ckpt::FoundStep> steps = parts_.storage.Find();
               const auto step = std::ranges::find(steps, action.name, &ckpt::FoundStep::name);
               if (step == steps.end() || !step->manifest) {
                 checked->error = fmt::format("{}/{}: it does not count any more", action.dir, action.name);
                 return false;
               }
               for (const ckpt::Shard& shard : agent::ShardsOfRanks(*step->manifest, first, ranks, world)) {
                 checked->folder.shards[shard.rank] = fmt::format("{}/{}/{}", action.dir, action.name, shard.file);
               }
               return true;
             },
             [this, checked, action] {
               checked_[action.dir] = checked->folder;
               core_.OnChecked(action.epoch, action.dir, action.name, checked->error, !checked->error.empty());
             }});
}

void SimKeeper::Do(const agent::MakeStepFolder& action) {
  auto name = std::make_shared<StatusOr<std::string>>();
  OnStorage({1,
             [this, name, save = action.save](size_t) {
               *name = parts_.storage.Claim(save);
               if (name->ok()) parts_.judge.saves().OnFolderMade();
               return true;
             },
             [this, name, action] {
               const std::string error = name->ok() ? "" : Message(name->status());
               core_.OnFolderMade(action.dir, action.save, name->ok() ? **name : "", error);
             }});
}

void SimKeeper::Do(const agent::WriteImages& action) {
  std::vector<ckpt::MemoryImage> images = pages_.Images(action.dir, action.save);
  images = agent::ImagesToStore(std::move(images), action.main);
  std::erase_if(images, [&](const ckpt::MemoryImage& image) { return !pages_.Hold(image); });
  const std::string refused = agent::StoreRefusal(images, parts_.local_world_size);
  if (!refused.empty()) {
    for (const ckpt::MemoryImage& image : images) pages_.Release(image);
    return core_.OnImagesWritten(action.dir, action.save, action.name, {}, refused);
  }
  struct Written {
    std::vector<v1::Shard> shards;
    std::string error;
  };
  auto written = std::make_shared<Written>();
  OnStorage({images.size(),
             [this, written, images, name = action.name](size_t i) {
               const Status status = parts_.storage.WriteShard(name, agent::RankOf(images[i]), images[i].image);
               parts_.judge.saves().OnShardWritten(parts_.machine, name, images[i]);
               if (status.ok()) written->shards.push_back(ShardOf(images[i]));
               if (!status.ok()) written->error = Message(status);
               return status.ok();
             },
             [this, written, images, action] {
               for (const ckpt::MemoryImage& image : images) pages_.Release(image);
               ReplaceSlots();
               core_.OnImagesWritten(action.dir, action.save, action.name, written->shards, written->error);
             }});
}

// The manifest, then what need not be kept goes.
void SimKeeper::Do(const agent::CloseStep& action) {
  const ckpt::StepToPublish step = agent::ToPublish(action, kJobId, parts_.queue.now() / kMs);
  auto manifest = std::make_shared<Status>();
  OnStorage(
      {2,
       [this, manifest, step](size_t i) {
         if (i == 0) {
           ckpt::Manifest placed = step.manifest;
           const ckpt::NextPlace place = ckpt::NextPlaceOf(placed.step, step.goes_on_from, parts_.storage.Find());
           placed.sequence = place.sequence;
           placed.timeline = place.timeline;
           placed.goes_on_from = place.goes_on_from;
           *manifest = parts_.storage.WriteManifest(step.name, placed);
           if (manifest->ok()) parts_.judge.saves().OnStepCounts(step.name);
           return manifest->ok();
         }
         for (const std::string& old : parts_.storage.StepsToDelete(step.retention)) {
           if (IsStillNeeded(old)) continue;
           parts_.judge.saves().OnStepDeleted(old);
           parts_.storage.Delete(old);
         }
         return true;
       },
       [this, manifest, action] { core_.OnStepClosed(action.dir, KeyOf(action.order.save()), Message(*manifest)); }});
}

bool SimKeeper::IsStillNeeded(const std::string& name) const {
  const Saving& saving = parts_.saving;
  if (!saving.archives) return false;
  const std::vector<std::string> due = ckpt::StepsToArchive(parts_.storage.Find(), archived_, saving.archive_every);
  return name == copied_from_ || std::ranges::find(due, name) != due.end();
}

// What TieredStorage::Archive does, a step at a time: the archive may be slow, or refuse one.
void SimKeeper::Do(const agent::ArchiveSteps& action) {
  struct Done {
    std::vector<int64_t> steps;
    std::string error;
  };
  auto done = std::make_shared<Done>();
  CopyNext(
      [done](const StatusOr<std::optional<int64_t>>& copied) {
        if (copied.ok() && *copied) done->steps.push_back(**copied);
        if (!copied.ok()) done->error = Message(copied.status());
        return copied.ok() && *copied;
      },
      [this, done, dir = action.dir] { core_.OnArchived(dir, done->steps, done->error); });
}

void SimKeeper::CopyNext(std::function<bool(const StatusOr<std::optional<int64_t>>&)> go_on, Task over) {
  archived_ = parts_.archive.Find();
  const std::vector<std::string> due =
      ckpt::StepsToArchive(parts_.storage.Find(), archived_, parts_.saving.archive_every);
  if (due.empty()) {
    go_on(std::optional<int64_t>());
    return over();
  }
  copied_from_ = due.front();
  Later(Takes(), [this, go_on = std::move(go_on), over = std::move(over)]() mutable {
    const std::string name = std::exchange(copied_from_, "");
    const bool goes_on = go_on(Copied(name));
    if (!goes_on) return over();
    CopyNext(std::move(go_on), std::move(over));
  });
}

StatusOr<std::optional<int64_t>> SimKeeper::Copied(const std::string& name) {
  const StoredStep* const step = parts_.storage.Look(name);
  if (step == nullptr || !step->manifest) return absl::NotFoundError(fmt::format("{} is gone", name));
  if (parts_.machine.random.OneIn(5)) return absl::UnavailableError("the archive is away");
  const ckpt::Manifest& manifest = *step->manifest;
  PHX_ASSIGN_OR_RETURN(const std::string copy, parts_.archive.Claim({manifest.epoch, manifest.step}));
  for (const auto& [rank, image] : step->shards) {
    PHX_RETURN_IF_ERROR(parts_.archive.WriteShard(copy, rank, image));
  }
  PHX_RETURN_IF_ERROR(parts_.archive.WriteManifest(copy, manifest));
  return std::optional(manifest.step);
}

}  // namespace phalanx::simulation

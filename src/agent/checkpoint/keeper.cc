#include "agent/checkpoint/keeper.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "agent/checkpoint/selection.h"
#include "agent/checkpoint/storage.h"
#include "agent/workers/wire.h"
#include "base/clock.h"
#include "checkpoint/files/files.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/memory_names.h"
#include "checkpoint/storage/posix.h"
#include "checkpoint/storage/publish.h"

namespace phalanx::agent {
namespace {

namespace ckpt = phalanx::checkpoint;

std::string PageName(int local_rank) { return std::to_string(local_rank); }

void AddPath(JsonObject& object, const char* role, const std::string& path) {
  if (path.empty()) {
    object.AddNull(role);
  } else {
    object.Add(role, path);
  }
}

}  // namespace

CheckpointKeeper::CheckpointKeeper(EventLoop& loop, Options options, Links links)
    : loop_(loop),
      options_(std::move(options)),
      links_(std::move(links)),
      core_(options_.local_world_size),
      exchange_(options_.lends ? options_.address : "", options_.lending_ports) {}

CheckpointKeeper::~CheckpointKeeper() {
  *alive_ = false;
  exchange_.OnRound();  // what is being fetched is waited for
  for (const auto& [local_rank, socket] : ranks_) loop_.Unwatch(socket.get());
  for (auto& [dir, lane] : lanes_) {
    lane.writes.Abandon();
    lane.reads.Abandon();
    lane.copies.Abandon();
  }
  for (const auto& [dir, tiers] : tiers_) tiers.storage->StopArchiving();
}

template <typename Work, typename Done>
void CheckpointKeeper::RunOn(TaskThread& thread, Work work, Done done) {
  thread.Post([this, &loop = loop_, alive = alive_, work = std::move(work), done = std::move(done)] {
    auto result = work();
    loop.Post([this, alive, done, result = std::move(result)] {
      if (!*alive) return;
      done(result);
      Run();
    });
  });
}

template <typename Work, typename Done>
void CheckpointKeeper::RunOnLane(const std::string& dir, TaskThread Lane::*thread, Work work, Done done) {
  Lane& lane = lanes_[dir];
  if (const auto tiers = tiers_.find(dir); tiers != tiers_.end()) lane.storage = tiers->second.storage;
  if (!lane.storage) lane.storage = OpenStorage(dir);
  ++lane.waiting;
  RunOn(
      lane.*thread, [storage = lane.storage, work = std::move(work)] { return work(*storage); },
      [this, dir, done = std::move(done)](const auto& result) {
        const auto behind = lanes_.find(dir);
        if (--behind->second.waiting == 0) lanes_.erase(behind);
        done(result);
      });
}

void CheckpointKeeper::TellLeftMemory() {
  StatusOr<std::vector<ckpt::MemoryFolder>> all = ckpt::ReadMemories(ckpt::kMemoryRoot);
  if (!all.ok()) return links_.say(fmt::format("checkpoint: {}", Message(all.status())));
  left_ = *std::move(all);
  struct statvfs room {};
  const uint64_t free_bytes = statvfs(ckpt::kMemoryRoot, &room) == 0 ? uint64_t{room.f_bavail} * room.f_frsize : 0;
  const std::string text = LeftMemoryText(left_, options_.job_id, free_bytes);
  if (!text.empty()) links_.say(text);
}

// Once for each directory.
void CheckpointKeeper::TellLeftStep(const std::string& dir) {
  if (!told_left_.insert(dir).second) return;
  const std::string text = LeftStepText(left_, options_.job_id, dir);
  if (!text.empty()) links_.say(text);
}

uint64_t CheckpointKeeper::TakeUp() {
  TellLeftMemory();
  if (!ckpt::NodeMemory::IsLeft(ckpt::kMemoryRoot, options_.job_id, options_.address)) return 0;
  const Status opened = OpenMemory();
  if (!opened.ok())
    links_.say(fmt::format("checkpoint memory of an earlier agent cannot be read: {}", Message(opened)));
  return memory_ ? memory_->highest_epoch() : 0;
}

Status CheckpointKeeper::OpenMemory() {
  if (memory_) return absl::OkStatus();
  PHX_ASSIGN_OR_RETURN(memory_, ckpt::NodeMemory::Open(ckpt::kMemoryRoot, options_.job_id, options_.address));
  memory_->SetLiveEpoch(epoch_);
  return absl::OkStatus();
}

// --- ranks --------------------------------------------------------------------------------------------------------

StatusOr<Fd> CheckpointKeeper::NewRank(int local_rank) {
  CloseRank(local_rank);
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoStatus(errno, "making a checkpoint socket");
  }
  ranks_[local_rank] = Fd(ends[0]);
  loop_.Watch(ends[0], EPOLLIN, [this, local_rank](uint32_t) { Serve(local_rank); });
  return Fd(ends[1]);
}

void CheckpointKeeper::CloseRank(int local_rank) {
  const auto rank = ranks_.find(local_rank);
  if (rank == ranks_.end()) return;
  loop_.Unwatch(rank->second.get());
  ranks_.erase(rank);
  for (auto& [asking, packet] : preparing_) asking = asking == local_rank ? -1 : asking;
  for (auto& [asking, packet] : opening_) asking = asking == local_rank ? -1 : asking;
  shards_.OnRankGone(local_rank);
  Feed(saving::RankGone{local_rank});
}

void CheckpointKeeper::OnRankEnded(int local_rank) {
  if (ranks_.contains(local_rank)) Serve(local_rank);
}

void CheckpointKeeper::Serve(int local_rank) {
  std::string packet(kCheckpointPacketMax, '\0');
  while (true) {
    const auto rank = ranks_.find(local_rank);
    if (rank == ranks_.end()) return;
    const ssize_t n = recv(rank->second.get(), packet.data(), packet.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return CloseRank(local_rank);
    Hear(local_rank, packet.substr(0, static_cast<size_t>(n)));
  }
}

void CheckpointKeeper::Hear(int local_rank, const std::string& text) {
  const StatusOr<RankPacket> packet = ParseRankPacket(text);
  if (!packet.ok()) {
    links_.say(fmt::format("checkpoint: local rank {}: {}", local_rank, Message(packet.status())));
    return CloseRank(local_rank);
  }
  std::visit([this, local_rank](const auto& each) { On(local_rank, each); }, *packet);
  Run();
}

void CheckpointKeeper::Answer(int local_rank, const std::string& json) {
  const auto rank = ranks_.find(local_rank);
  if (rank == ranks_.end()) return;
  // A rank waits for its answer, so there is room; one that does not read has lost its mind.
  const ssize_t n = send(rank->second.get(), json.data(), json.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(json.size())) CloseRank(local_rank);
}

void CheckpointKeeper::AnswerError(int local_rank, int64_t id, const std::string& sentence) {
  Answer(local_rank, JsonObject().Add("id", id).Add("error", sentence).Text());
}

Status CheckpointKeeper::OpenPages(int local_rank, const OpenPacket& packet, std::string* own, std::string* main) {
  PHX_RETURN_IF_ERROR(OpenMemory());
  PHX_ASSIGN_OR_RETURN(*own, memory_->OpenPage(packet.dir, PageName(local_rank)));
  memory_->MarkOpened(packet.dir, PageName(local_rank));
  if (!packet.options.form.shared) return absl::OkStatus();
  PHX_ASSIGN_OR_RETURN(*main, memory_->OpenPage(packet.dir, ckpt::kMainPageName));
  memory_->MarkOpened(packet.dir, ckpt::kMainPageName);
  return absl::OkStatus();
}

void CheckpointKeeper::On(int local_rank, const OpenPacket& packet) {
  if (looking_at_ > 0) {
    opening_.emplace_back(local_rank, packet);
    return;
  }
  std::string own, main;
  const Status is_storage = options_.open_storage(packet.dir).status();
  if (!is_storage.ok()) return AnswerError(local_rank, packet.id, Message(is_storage));
  const Status opened = OpenPages(local_rank, packet, &own, &main);
  if (!opened.ok()) return AnswerError(local_rank, packet.id, Message(opened));
  if (memory_->WantsMark(packet.dir)) {
    RunOnLane(
        packet.dir, &Lane::reads, [dir = packet.dir](ckpt::Storage&) { return ckpt::MarkOf(dir); },
        [this](const ckpt::DirectoryMark& mark) { memory_->SetMark(mark); });
  }
  CheckpointOptions given = packet.options;
  given.at_breakpoint = given.at_breakpoint || options_.at_breakpoint;
  TellLeftStep(packet.dir);
  const std::string refused = Feed(saving::Opened{local_rank, packet.dir, std::move(given)});
  if (!refused.empty()) return AnswerError(local_rank, packet.id, refused);
  const CheckpointOptions options = core_.OptionsOf(packet.dir);
  UseTiers(packet.dir, options.archive, options.archive_every);
  JsonObject answer;
  answer.Add("id", packet.id).Add("control", own);
  AddPath(answer, "main", main);
  Answer(local_rank, answer.Text());
}

std::shared_ptr<ckpt::Storage> CheckpointKeeper::OpenStorage(const std::string& location) const {
  return options_.open_storage(location).value_or(std::make_shared<ckpt::PosixStorage>(location));
}

void CheckpointKeeper::UseTiers(const std::string& dir, const std::string& archive, int64_t every) {
  if (archive.empty()) {
    tiers_.erase(dir);
    return;
  }
  Tiers& tiers = tiers_[dir];
  if (tiers.storage && tiers.archive == archive && tiers.every == every) return;
  tiers = {archive, every, std::make_shared<ckpt::TieredStorage>(OpenStorage(dir), OpenStorage(archive), every)};
}

void CheckpointKeeper::UseArchive(const std::string& dir, const std::string& archive) {
  if (!archive.empty() && !tiers_.contains(dir)) UseTiers(dir, archive, 0);
}

void CheckpointKeeper::On(int local_rank, const PreparePacket& packet) {
  if (!memory_) return AnswerError(local_rank, packet.id, fmt::format("{} has not been opened", packet.dir));
  preparing_.emplace_back(local_rank, packet);
  if (preparing_.size() == 1) PrepareNext();
}

// One at a time: what one takes is not free for the next.
void CheckpointKeeper::PrepareNext() {
  const auto& [local_rank, packet] = preparing_.front();
  const std::string page = packet.main ? ckpt::kMainPageName : PageName(local_rank);
  const StatusOr<ckpt::SlotPlan> plan =
      memory_->Plan(packet.dir, page, packet.bytes, packet.slots, packet.memory_budget);
  if (!plan.ok()) return OnPrepared(plan.status(), {});
  RunOn(
      memory_thread_, [files = plan->files] { return ckpt::MakeSlotFiles(files); },
      [this, plan = *plan](const Status& made) { OnPrepared(made, plan); });
}

void CheckpointKeeper::OnPrepared(const Status& made, const ckpt::SlotPlan& plan) {
  const auto [local_rank, packet] = std::move(preparing_.front());
  preparing_.pop_front();
  if (made.ok()) {
    memory_->Install(plan);
    prepared_[plan.dir][plan.page] = {plan.bytes, plan.slots, packet.slots};
    Answer(local_rank, JsonObject()
                           .Add("id", packet.id)
                           .Add("slots", plan.slots)
                           .Add("bytes", static_cast<int64_t>(plan.bytes))
                           .Add("why", plan.why)
                           .Text());
  } else {
    memory_->Abandon(plan);
    AnswerError(local_rank, packet.id, Message(made));
  }
  if (AllArePrepared(packet.dir)) SayCost(packet.dir);
  if (!preparing_.empty()) return PrepareNext();
  ReplaceSlots();  // what was begun for slots of other sizes begins anew
}

bool CheckpointKeeper::AllArePrepared(const std::string& dir) const {
  const auto prepared = prepared_.find(dir);
  if (prepared == prepared_.end()) return false;
  if (core_.FormOfDirectory(dir).shared && !prepared->second.contains(ckpt::kMainPageName)) return false;
  for (int rank = 0; rank < options_.local_world_size; ++rank) {
    if (!prepared->second.contains(PageName(rank))) return false;
  }
  return true;
}

// Once, when each rank of the node has slots; where not all need some, with the first save that is committed.
void CheckpointKeeper::SayCost(const std::string& dir) {
  const auto prepared = prepared_.find(dir);
  if (prepared == prepared_.end()) return;
  if (cost_said_.insert(dir).second) {
    links_.say(CostText(dir, prepared->second, ckpt::FreeMemoryBytes(memory_->path())));
  }
  prepared_.erase(prepared);
}

void CheckpointKeeper::On(int local_rank, const SealedPacket& packet) {
  Feed(saving::Sealed{local_rank, packet.dir, packet.main, packet.save.step, packet.store, packet.save.branch,
                      packet.values});
}

void CheckpointKeeper::On(int local_rank, const SkippedPacket& packet) {
  Feed(saving::Skipped{local_rank, packet.dir, packet.save.step, packet.why, packet.save.branch});
  ReplaceSlots();  // what it had no slot for may have room by now
}

void CheckpointKeeper::On(int local_rank, const WaitPacket& packet) {
  Feed(saving::WaitAsked{local_rank, packet.id, packet.dir, packet.save.step, packet.until_stored, packet.save.branch});
}

void CheckpointKeeper::On(int local_rank, const RestorePacket& packet) {
  Feed(saving::RestoreAsked{local_rank, packet.id, packet.dir, packet.branch});
}

void CheckpointKeeper::On(int local_rank, const ImagesPacket& packet) {
  Feed(saving::ImagesAsked{local_rank, packet.id, packet.dir, packet.branch, packet.parts});
}

void CheckpointKeeper::On(int local_rank, const RestoredPacket& packet) {
  Feed(saving::RestoreDone{local_rank, packet.dir, packet.branch});
}

void CheckpointKeeper::On(int local_rank, const AbsentPacket& packet) {
  const auto ranks = [this](const std::vector<int>& local_ranks) {
    std::vector<std::string> numbers;
    numbers.reserve(local_ranks.size());
    for (const int rank : local_ranks) numbers.push_back(std::to_string(int64_t{rank_base_} + rank));
    return numbers;
  };
  const AbsentRanks absent = core_.AbsentFrom(packet.dir, {0, packet.save.step, packet.save.branch});
  Answer(local_rank, JsonObject()
                         .Add("id", packet.id)
                         .Add("unopened", ranks(absent.unopened))
                         .Add("unsaved", ranks(absent.unsaved))
                         .Add("behind", ranks(absent.behind))
                         .Text());
}

// --- the master ---------------------------------------------------------------------------------------------------

void CheckpointKeeper::OnRound(const v1::StartRound& round) {
  rank_base_ = round.rank_base();
  world_size_ = round.world_size();
  BeginEpoch(round.epoch());
  FeedAndRun(saving::RoundBegun{epoch_, round.group_rank()});
}

void CheckpointKeeper::BeginEpoch(uint64_t epoch) {
  epoch_ = epoch;
  if (memory_) memory_->SetLiveEpoch(epoch_);
  exchange_.OnRound();
  shards_.OnRound(epoch_);
}

void CheckpointKeeper::OnAttached() {
  FeedAndRun(saving::Attached{});
  AskForShardsAgain();
}

void CheckpointKeeper::OnMasterSilent(const std::string& why) {
  FeedAndRun(saving::MasterSilent{why});
  GiveUpShards(why);
}

void CheckpointKeeper::OnOrder(const v1::CheckpointOrder& order) { FeedAndRun(saving::Ordered{order}); }

void CheckpointKeeper::OnJobEnded() { FeedAndRun(saving::JobEnded{}); }

// --- actions ------------------------------------------------------------------------------------------------------

std::string CheckpointKeeper::Feed(const saving::Event& event) {
  saving::Decided decided = links_.step(core_, event);
  std::ranges::move(decided.actions, std::back_inserter(decided_));
  return std::move(decided.refused);
}

void CheckpointKeeper::Run() {
  if (std::exchange(running_, true)) return;
  while (!decided_.empty()) {
    const CheckpointAction action = std::move(decided_.front());
    decided_.pop_front();
    std::visit([this](const auto& each) { Do(each); }, action);
  }
  running_ = false;
  if (when_unneeded_ && !Storing() && !Lending()) std::exchange(when_unneeded_, nullptr)();
}

void CheckpointKeeper::FeedAndRun(const saving::Event& event) {
  Feed(event);
  Run();
}

void CheckpointKeeper::Do(const TellMaster& action) { links_.tell(action.report); }

void CheckpointKeeper::Do(const SayCheckpoint& action) { links_.say(action.text); }

void CheckpointKeeper::Do(const ScanMemory& action) {
  if (action.to_lend) BeginEpoch(action.epoch);
  if (scan_epoch_ != action.epoch) {
    read_.clear();
    read_all_of_.clear();
  }
  scan_epoch_ = action.epoch;
  if (!action.older_of.empty()) read_all_of_.insert(action.older_of);
  if (!memory_) {
    Feed(saving::Scanned{action.epoch, {}, std::nullopt});
    return;
  }
  if (looking_at_ > 0) return;  // it goes on from there
  if (!memory_->TakenUp().empty()) return LookAtDirectories();
  Scan();
}

// Whose checkpoints were deleted does not want them back from memory. A file system that does not answer in time keeps
// nobody from going on.
void CheckpointKeeper::LookAtDirectories() {
  const std::vector<ckpt::DirectoryMark> taken_up = memory_->TakenUp();
  looking_at_ = taken_up.size();
  for (const ckpt::DirectoryMark& mark : taken_up) {
    RunOnLane(
        mark.dir, &Lane::reads, [mark](ckpt::Storage&) { return ckpt::GoneOf({mark}); },
        [this](const std::set<std::string>& gone) { OnDirectoryLookedAt(gone); });
  }
  loop_.At(MonotonicMs() + kLookMs, [this, alive = alive_] {
    if (*alive) GoOnBehindLook();
  });
}

void CheckpointKeeper::OnDirectoryLookedAt(const std::set<std::string>& gone) {
  if (looking_at_ == 0) return;  // it was too late
  gone_.insert(gone.begin(), gone.end());
  if (looking_at_ == 1) return GoOnBehindLook();
  --looking_at_;
}

void CheckpointKeeper::GoOnBehindLook() {
  if (std::exchange(looking_at_, 0) == 0) return;
  const std::set<std::string> gone = std::exchange(gone_, {});
  for (const std::string& dir : gone) {
    links_.say(fmt::format("checkpoint: {} was deleted since: its memory goes too", dir));
  }
  memory_->KeepAllBut(gone);
  Scan();
  for (const auto& [local_rank, packet] : std::exchange(opening_, {})) {
    if (local_rank >= 0) On(local_rank, packet);
  }
  Run();
}

void CheckpointKeeper::Scan() {
  std::vector<ckpt::MemoryImage> images = memory_->Images();
  std::erase_if(images, [this](const ckpt::MemoryImage& each) { return KeyOf(each.image).epoch >= scan_epoch_; });
  const auto check = [images, read = read_, all_of = read_all_of_, lends = exchange_.lends()] {
    LookedAt looked{read, {}, {}};
    for (auto next = NextToRead(images, read, all_of); !next.empty();
         next = NextToRead(images, looked.images, all_of)) {
      for (const ckpt::MemoryImage& image : next) {
        ckpt::ImageFault fault = ckpt::CheckMemoryImage(image);
        looked.images.push_back({image, std::move(fault.why), fault.is_damage});
      }
    }
    looked.unread = UnreadOf(images, looked.images);
    if (lends) looked.lent = ToLend(looked.images);
    return looked;
  };
  RunOn(memory_thread_, check, [this, epoch = scan_epoch_](const LookedAt& looked) { OnScanned(epoch, looked); });
}

void CheckpointKeeper::OnScanned(uint64_t epoch, const LookedAt& looked) {
  if (epoch != scan_epoch_) return;
  for (size_t i = read_.size(); i < looked.images.size(); ++i) {
    const auto& [image, wrong, is_damaged] = looked.images[i];
    if (wrong.empty() || (is_damaged && !memory_->GiveUp(image))) continue;
    links_.say(fmt::format("checkpoint memory is passed over: {}", wrong));
  }
  read_ = looked.images;
  const StatusOr<std::optional<v1::ImageSource>> source = exchange_.Lend(looked.lent);
  if (!source.ok()) links_.say(fmt::format("checkpoint: {}", Message(source.status())));
  Feed(saving::Scanned{epoch, HeldPages(read_, looked.unread), source.ok() ? *source : std::nullopt});
}

void CheckpointKeeper::Do(const MarkCommitted& action) {
  if (!memory_) return;
  // First: what is committed over may be written over, and is lent no more. Of a save of the live round: the one of an
  // older round is what nodes go on from.
  if (action.save.epoch == epoch_) exchange_.OnCommitted(action.dir, action.save);
  memory_->Commit(action.dir, action.save);
  memory_->FreeUnneeded(action.dir, action.save);
  SayCost(action.dir);
  ReplaceSlots();
}

void CheckpointKeeper::Do(const MarkDropped& action) {
  if (!memory_) return;
  memory_->Drop(action.dir, action.save);
  ReplaceSlots();
}

void CheckpointKeeper::Do(const HoldSave& action) {
  if (!memory_) return;
  std::vector<ckpt::MemoryImage> images = memory_->Images(action.dir, action.save);
  std::erase_if(images, [this](const ckpt::MemoryImage& image) { return !memory_->Hold(image); });
  held_[{action.dir, action.save}] = std::move(images);
}

void CheckpointKeeper::Do(const ReleaseSave& action) {
  const auto held = held_.extract({action.dir, action.save});
  if (held.empty()) return;
  for (const ckpt::MemoryImage& image : held.mapped()) memory_->Release(image);
  ReplaceSlots();
}

// Images that were handed out, and are no longer the newest, stay with whoever has them mapped; saves get fresh files.
void CheckpointKeeper::ReplaceSlots() {
  if (!memory_) return;
  for (const ckpt::SlotPlan& plan : memory_->Replacements()) {
    if (!memory_->HasRoomFor(plan)) {
      Postpone(plan, "there is no memory for it");
      continue;
    }
    RunOn(
        memory_thread_, [files = plan.files] { return ckpt::MakeSlotFiles(files); },
        [this, plan](const Status& made) { made.ok() ? memory_->Install(plan) : Postpone(plan, Message(made)); });
  }
}

void CheckpointKeeper::Postpone(const ckpt::SlotPlan& plan, const std::string& why) {
  if (!memory_->Postpone(plan)) return;
  links_.say(
      fmt::format("checkpoint: {} goes on with one slot less, until what was restored is unmapped: {}", plan.dir, why));
}

void CheckpointKeeper::Do(const AnswerWait& action) {
  if (action.state.empty()) return AnswerError(action.local_rank, action.request, action.why);
  Answer(action.local_rank,
         JsonObject().Add("id", action.request).Add("state", action.state).Add("why", action.why).Text());
}

void CheckpointKeeper::Do(const AnswerRestore& action) {
  if (!action.refused.empty()) return AnswerError(action.local_rank, action.request, action.refused);
  const v1::RestoreDecided& decided = action.order.restore();
  const v1::SaveId& save = action.order.save();
  const uint32_t rank = rank_base_ + static_cast<uint32_t>(action.local_rank);
  JsonObject answer, files;
  answer.Add("id", action.request).Add("step", save.step()).Add("epoch", static_cast<int64_t>(save.epoch()));
  answer.Add("world_size", static_cast<int64_t>(decided.world_size())).Add("why", action.order.reason());
  std::vector<ckpt::MemoryImage> in_memory;
  if (memory_) in_memory = memory_->Images(action.dir, KeyOf(save));
  const ImagesToRestore restore =
      ToRestore(action.order, rank, in_memory, checked_[action.dir], exchange_.WholeOf(action.dir, KeyOf(save)),
                core_.FormOfDirectory(action.dir));
  bool stable = true;
  for (const ckpt::MemoryImage& image : restore.images) stable = memory_->HandOut(image) && stable;
  ReplaceSlots();
  const RestoreFiles& paths = restore.files;
  AddPath(files, "own", paths.own);
  AddPath(files, "main", paths.main);
  if (!paths.ranks.empty()) files.Add("ranks", paths.ranks);
  switch (decided.source()) {
    case v1::RestoreDecided::MEMORY:
      answer.Add("source", "memory");
      if (!in_memory.empty()) answer.Add("kind", std::string(KindOf(in_memory.front().image.form)));
      if (stable) answer.AddTrue("stable");
      break;
    case v1::RestoreDecided::DISK:
      answer.Add("source", "disk");
      files.Add("directory", checked_[action.dir].name == decided.name() ? checked_[action.dir].place
                                                                         : action.dir + "/" + decided.name());
      answer.Add("layout", checked_[action.dir].layout);
      break;
    default:
      answer.Add("source", "none");
  }
  Answer(action.local_rank, answer.Add("files", files).Text());
}

void CheckpointKeeper::Do(const FindSteps& action) {
  UseArchive(action.dir, action.archive);
  RunOnLane(
      action.dir, &Lane::reads,
      [but = action.but, doubted = action.doubted, job = options_.job_id](ckpt::Storage& storage) {
        return FindNewestStep(storage, but, doubted, job);
      },
      [this, action](const FoundSteps& steps) {
        Feed(saving::Found{action.epoch, action.dir, steps});
      });
}

void CheckpointKeeper::Do(const CheckStep& action) {
  UseArchive(action.dir, action.archive);
  const auto ranks = static_cast<uint32_t>(options_.local_world_size);
  RunOnLane(
      action.dir, &Lane::reads,
      [name = action.name, first = rank_base_, ranks, world = world_size_](ckpt::Storage& storage) {
        return CheckShards(storage, name, first, ranks, world);
      },
      [this, action](const CheckedStep& checked) {
        checked_[action.dir] = {action.name, checked.files, checked.layout, checked.place};
        Feed(saving::Checked{action.epoch, action.dir, action.name, checked.error, checked.unreadable});
      });
}

// Before what is only read ahead: a rank waits for it. What is being read ahead of another directory is given up.
void CheckpointKeeper::Do(const FetchImages& action) {
  if (fetches_.empty()) {
    fetches_.push_back(action);
    return FetchNext();
  }
  const auto is_ahead = [](const FetchImages& fetch) { return fetch.ahead; };
  const auto behind = std::next(fetches_.begin());
  const auto place = action.ahead ? fetches_.end() : std::find_if(behind, fetches_.end(), is_ahead);
  fetches_.insert(place, action);
  if (!action.ahead && fetches_.front().ahead && fetches_.front().dir != action.dir) exchange_.StopAhead();
}

void CheckpointKeeper::Do(const ForgetAhead& action) {
  exchange_.Forget(action.dir);
  const auto is_meant = [&](const FetchImages& fetch) { return fetch.ahead && fetch.dir == action.dir; };
  for (FetchImages& fetch : fetches_) {
    if (is_meant(fetch)) fetch.epoch = 0;  // no round's: its files have no owner
  }
  if (!fetches_.empty() && is_meant(fetches_.front())) exchange_.StopAhead();
}

// One at a time: what one has brought the next need not read, and ranks may have it mapped.
void CheckpointKeeper::FetchNext() {
  const FetchImages& action = fetches_.front();
  FetchJob job = exchange_.WithoutKept(action.order, action.parts);
  if (action.epoch != epoch_ || job.order.restore().elsewhere().empty()) return OnFetched(action, {});
  const Status opened = OpenMemory();
  const StatusOr<std::string> folder = opened.ok() ? memory_->FetchedFolder() : opened;
  if (!folder.ok()) return OnFetched(action, {{}, Message(folder.status())});
  job.form = core_.FormOfDirectory(action.dir);
  job.folder = *folder;
  job.number = exchange_.NextNumber();
  job.ahead = action.ahead;
  const std::shared_ptr<const Fd> stop = action.ahead ? exchange_.ahead_stop() : exchange_.stop();
  RunOn(
      fetch_thread_, [job = std::move(job), stop] { return FetchAll(job, *stop); },
      [this](const FetchedFiles& fetched) { OnFetched(fetches_.front(), fetched); });
}

void CheckpointKeeper::OnFetched(const FetchImages& action, const FetchedFiles& fetched) {
  if (action.epoch == epoch_) {
    if (fetched.error.empty()) exchange_.Keep(action.dir, KeyOf(action.order.save()), fetched.files);
    const v1::RestoreDecided& restore = action.order.restore();
    if (!action.ahead) {
      Feed(saving::Fetched{action.epoch, action.dir, restore.branch(), restore.request(), fetched.error});
    }
  } else {  // of a round that is over: its files have no owner any more
    for (const auto& [rank, file] : fetched.files) unlink(file.path.c_str());
  }
  fetches_.pop_front();
  if (!fetches_.empty()) FetchNext();
}

void CheckpointKeeper::Do(const AnswerImages& action) {
  if (!action.refused.empty()) return AnswerError(action.local_rank, action.request, action.refused);
  std::map<std::string, std::string> paths;
  for (const auto& [rank, ranges] : action.parts) {
    const std::string path = exchange_.Find(action.dir, action.save, rank, ranges);
    if (path.empty()) {
      const std::string gone = fmt::format("the image of rank {} is no longer here: a newer save is committed", rank);
      return AnswerError(action.local_rank, action.request, gone);
    }
    paths[std::to_string(rank)] = path;
  }
  Answer(action.local_rank, JsonObject().Add("id", action.request).Add("ranks", paths).Text());
}

void CheckpointKeeper::Do(const MakeStepFolder& action) {
  RunOnLane(
      action.dir, &Lane::writes,
      [save = action.save](ckpt::Storage& storage) { return storage.Begin(save.step, save.epoch); },
      [this, action](const StatusOr<std::string>& name) {
        Feed(saving::FolderMade{action.dir, action.save, name.ok() ? *name : "", Message(name.status())});
      });
}

void CheckpointKeeper::Do(const WriteImages& action) {
  std::vector<ckpt::MemoryImage> images;
  if (memory_) images = memory_->Images(action.dir, action.save);
  images = ImagesToStore(std::move(images), action.main);
  std::erase_if(images, [&](const ckpt::MemoryImage& image) { return !memory_->Hold(image); });
  const std::string refused = StoreRefusal(images, options_.local_world_size);
  if (!refused.empty()) {
    for (const ckpt::MemoryImage& image : images) memory_->Release(image);
    Feed(saving::ImagesWritten{action.dir, action.save, action.name, {}, refused});
    return;
  }
  RunOnLane(
      action.dir, &Lane::writes,
      [name = action.name, images](ckpt::Storage& storage) { return WriteShards(storage, name, images); },
      [this, action, images](const WrittenImages& written) {
        for (const ckpt::MemoryImage& image : images) memory_->Release(image);
        ReplaceSlots();
        Feed(saving::ImagesWritten{action.dir, action.save, action.name, written.shards, written.error});
      });
}

void CheckpointKeeper::Do(const CloseStep& action) {
  RunOnLane(
      action.dir, &Lane::writes,
      [step = ToPublish(action, options_.job_id, UnixMs())](ckpt::Storage& storage) {
        return ckpt::PublishStep(storage, step);
      },
      [this, action](const StatusOr<std::vector<std::string>>& closed) {
        if (closed.ok()) {
          for (const std::string& warning : *closed) links_.say(fmt::format("checkpoint: {}", warning));
        }
        Feed(saving::StepClosed{action.dir, KeyOf(action.order.save()), Message(closed.status())});
      });
}

void CheckpointKeeper::Do(const ArchiveSteps& action) {
  const auto tiers = tiers_.find(action.dir);
  if (tiers == tiers_.end()) return (void)Feed(saving::Archived{action.dir, {}, ""});
  RunOnLane(
      action.dir, &Lane::copies,
      [tiers = tiers->second.storage, trackers = action.options.trackers](ckpt::Storage&) {
        return tiers->Archive(trackers);
      },
      [this, dir = action.dir](const ckpt::ArchivedSteps& done) {
        Feed(saving::Archived{dir, done.steps, done.error});
      });
}

// --- the end ------------------------------------------------------------------------------------------------------

void CheckpointKeeper::OnLeaving() { FeedAndRun(saving::Leaving{}); }

void CheckpointKeeper::Tidy() { FeedAndRun(saving::TidyAsked{}); }

void CheckpointKeeper::Do(const TidyUp& action) {
  RunOnLane(
      action.dir, &Lane::writes, [](ckpt::Storage& storage) { return storage.Tidy(); },
      [this, dir = action.dir](const Status& removed) {
        Feed(saving::Tidied{dir, Message(removed)});
      });
}

void CheckpointKeeper::End(bool failed) {
  if (memory_) FeedAndRun(saving::Ended{HeldPages(memory_->Images()), failed});
}

void CheckpointKeeper::Do(const RemoveMemory& /*action*/) {
  memory_thread_.Finish();  // a file that it made while its folder is removed would keep that
  exchange_.OnRound();
  fetch_thread_.Finish();  // the same
  memory_->Remove();
}

void CheckpointKeeper::Do(const LeaveMemory& action) {
  exchange_.OnRound();
  fetch_thread_.Finish();
  links_.say(
      fmt::format("checkpoint: {0} is only in memory, {1} ({2} MiB): {3} goes on from it, `phalanx ckpt rescue {1} "
                  "--to DIRECTORY --free` writes it to a directory, `phalanx ckpt discard {1}` gives it up",
                  action.unstored, memory_->path(), memory_->Bytes() >> 20, options_.run_again));
}

}  // namespace phalanx::agent

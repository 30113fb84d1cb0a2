#include "checkpoint/rank/saver.h"

#include <sys/socket.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/crc/crc32.h"
#include "checkpoint/rank/frame.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kChunkBytes = 256 << 10;  // fits the second cache beside what training keeps there
constexpr int kThreadsMax = 64;
constexpr int kTakeTries = 3;
// What is copied before Begin returns is copied again where another thread has written it meanwhile, so often.
constexpr int kCollectsMax = 3;
// Of each chunk that is copied later so much is looked at when the save begins: what writes a whole tensor before its
// copy has come to it is found by that.
constexpr uint64_t kSampleBytes = 64;

int64_t NowNs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

// Into memory that is there already, mostly.
void PutText(const void* data, uint64_t bytes, std::string* text) {
  text->clear();
  if (bytes != 0) text->append(static_cast<const char*>(data), bytes);
}

uint8_t WhenOf(const phx_ckpt_save& save, uint64_t i) {
  return save.when == nullptr ? static_cast<uint8_t>(PHX_CKPT_LATER) : save.when[i];
}

// From its middle: a write may begin or end with the chunk.
uint32_t SampleOf(const uint8_t* data, uint64_t bytes) {
  const uint64_t sampled = std::min(bytes, kSampleBytes);
  return Crc32(0, data + (bytes - sampled) / 2, sampled);
}

// What a caller got wrong; empty: nothing.
std::string Misuse(const phx_ckpt_save& save) {
  if (save.step < 0) return "step " + std::to_string(save.step) + " is below 0";
  if (save.rank >= save.world_size) {
    return "rank " + std::to_string(save.rank) + " of a world of " + std::to_string(save.world_size);
  }
  if (save.threads < 0 || save.threads > kThreadsMax)
    return std::to_string(save.threads) + " threads, and 0 to 64 can be";
  if (!FormOfNumber(save.form)) return "no save is of the form " + std::to_string(save.form);
  if (save.n > kImageRecordsMax) return TooManyRecords(save.n);
  for (uint64_t i = 0; i < save.n; ++i) {
    const uint8_t when = WhenOf(save, i);
    if (when > PHX_CKPT_FILLED) return "record " + std::to_string(i) + " is to be copied at no known time";
    if (when != PHX_CKPT_FILLED && save.bytes[i] != 0 && save.source[i] == nullptr) {
      return "record " + std::to_string(i) + " has no source";
    }
  }
  return {};
}

}  // namespace

Saver::Saver(uint64_t epoch) : epoch_(epoch), forks_(ForksSoFar()), outcome_{PHX_CKPT_NOTHING, 0, 0, 0} {}

Saver::~Saver() {
  {
    MutexLock lock(mutex_);
    while (IsAtWork()) changed_.Wait(mutex_);
    if (phase_ == Phase::kAwaitingFill) files_.control().Abandon(slot_, generation_);
    stopping_ = true;
    changed_.WakeAll();
  }
  for (const pthread_t thread : threads_) JoinThread(thread);
}

int Saver::Map(std::string* why) {
  if (files_.Outdated()) *why = files_.Map();
  if (!why->empty()) return PHX_CKPT_BROKEN;
  int mapped = 0;
  for (int i = 0; i < static_cast<int>(kSlotsMax); ++i) mapped += files_.data(i) != nullptr ? 1 : 0;
  return mapped;
}

int Saver::Begin(const phx_ckpt_save& save, const phx_ckpt_frame* frame, std::string* why) {
  if (const int code = Refuse(save, why); code != 0) return code;
  const int threads = StartThreads(save.threads);
  PutText(save.pickle, save.pickle_bytes, &pickle_);
  PutText(save.info, save.info_bytes, &info_);
  PutText(save.notify, save.notify_bytes, &notify_);
  notify_fd_ = save.notify_fd;
  if (*why = Plan(save, frame); !why->empty()) return PHX_CKPT_NO_ROOM;
  for (int turn = 0; const int code = TakeSlot(why); ++turn) {
    if (!files_.Outdated() || turn == kTakeTries) return code;
    if (const int refused = Refuse(save, why); refused != 0) return refused;  // maps them anew
  }

  began_ns_ = NowNs(CLOCK_MONOTONIC);
  workers_max_ = threads;
  image_ = {save.step, epoch_,      layout_.file_bytes,      layout_.hash, save.rank, save.world_size, 0, 0,
            0,         save.branch, *FormOfNumber(save.form)};
  image_.records = static_cast<uint32_t>(save.n);
  crc32_.assign(save.n, 0);
  if (framed_) PutFrame(data_, layout_, *frame);
  chunks_.clear();
  if (threads > 0) QueueChunks(save, PHX_CKPT_LATER);
  copied_chunks_ = chunks_.size();
  QueueChunks(save, PHX_CKPT_FILLED);
  compare_ = save.verify != 0;
  consent_ = save.consent != 0 || copied_chunks_ != chunks_.size();
  const std::optional<uint64_t> changed = CopyNow(save, threads == 0);

  MutexLock lock(mutex_);
  outcome_ = {PHX_CKPT_COPYING, 0, 0, 0};
  for (const uint64_t bytes : layout_.bytes) outcome_.bytes += bytes;
  notify_error_ = 0;
  filled_ = false;
  differing_ = changed;
  Enter(Phase::kCopying, 0, copied_chunks_);
  return slot_;
}

int Saver::Refuse(const phx_ckpt_save& save, std::string* why) {
  {
    MutexLock lock(mutex_);
    if (phase_ != Phase::kNone && phase_ != Phase::kOver) {
      *why = "the save of step " + std::to_string(image_.step) + " is not over";
      return PHX_CKPT_BUSY;
    }
  }
  if (*why = Misuse(save); !why->empty()) return PHX_CKPT_BROKEN;
  if (const uint64_t live = files_.control().live_epoch(); live != epoch_) {
    *why = "epoch " + std::to_string(live) + " lives and this is a rank of epoch " + std::to_string(epoch_);
    return PHX_CKPT_STALE;
  }
  if (files_.Outdated()) *why = files_.Map();
  if (!why->empty()) return PHX_CKPT_BROKEN;
  if (files_.slot_bytes() == save.file_bytes && save.file_bytes != 0) return 0;
  *why = "the image is " + std::to_string(save.file_bytes) + " bytes long and a slot has " +
         std::to_string(files_.slot_bytes());
  return PHX_CKPT_NO_ROOM;
}

// Brings the layout, and what else is needed to finish the image, up to this save; the reason where they do not fit.
std::string Saver::Plan(const phx_ckpt_save& save, const phx_ckpt_frame* frame) {
  const bool was_framed = std::exchange(framed_, frame != nullptr);
  if (framed_) {
    frame_crcs_ = CrcsOf(*frame);
    return PlanFrame(save, *frame, &layout_);
  }
  if (was_framed) layout_ = {};
  return PlanZip(save);
}

std::string Saver::PlanZip(const phx_ckpt_save& save) {
  const bool known = layout_.file_bytes == save.file_bytes && layout_.bytes.size() == save.n &&
                     std::equal(layout_.bytes.begin(), layout_.bytes.end(), save.bytes);
  if (!known) {
    std::string why = PlanImage(save.bytes, save.n, save.pickle_bytes, save.file_bytes, &layout_);
    if (!why.empty()) return why;
  }
  char id[48];
  std::snprintf(id, sizeof id, "%020llu%020llu", static_cast<unsigned long long>(layout_.hash),
                static_cast<unsigned long long>(save.step));
  serialization_id_ = id;
  return TailFits(layout_, Tail());
}

int Saver::TakeSlot(std::string* why) {
  ControlPage page;
  if (*why = files_.Read(&page); !why->empty()) return PHX_CKPT_BROKEN;
  SlotChoice choice = ChooseSlots(page);
  for (const int slot : choice.slots) {
    std::string reason = files_.why_not(slot);
    if (files_.data(slot) != nullptr &&
        files_.control().Begin(slot, page.slots[static_cast<size_t>(slot)], &generation_, &reason)) {
      slot_ = slot;
      data_ = files_.data(slot);
      if (files_.IsCurrent(slot)) return 0;
      // The agent has replaced it since it was mapped: what is written there, nobody would ever read.
      files_.control().Abandon(slot, generation_);
      reason = "slot " + std::to_string(slot) + " is being replaced";
    }
    choice.why_not += (choice.why_not.empty() ? "" : "; ") + reason;
  }
  *why = "no slot is free: " + choice.why_not;
  return PHX_CKPT_NO_SLOT;
}

// As many as asked for, or as the system gives; 0: the caller copies.
int Saver::StartThreads(int wanted) {
  while (static_cast<int>(threads_.size()) < wanted) {
    pthread_t thread{};
    if (!StartThread(ThreadBody, this, &thread)) break;
    threads_.push_back(thread);
  }
  return std::min(wanted, static_cast<int>(threads_.size()));
}

// Until a look at all of them finds none that has changed. Returns one that changes again and again: another thread
// writes it.
std::optional<uint64_t> Saver::CopyNow(const phx_ckpt_save& save, bool all) {
  uint64_t changed = 0;
  CopyRecords(save, all, false, &changed);
  for (int collects = 1; compare_; ++collects) {
    if (!CopyRecords(save, all, true, &changed)) return std::nullopt;
    if (collects == kCollectsMax) return changed;
  }
  return std::nullopt;
}

// Whether one was copied (`changed`: the last).
bool Saver::CopyRecords(const phx_ckpt_save& save, bool all, bool only_changed, uint64_t* changed) {
  bool copied = false;
  for (uint64_t i = 0; i < save.n; ++i) {
    const uint8_t when = WhenOf(save, i);
    if (save.bytes[i] == 0 || when == PHX_CKPT_FILLED || (when == PHX_CKPT_LATER && !all)) continue;
    if (only_changed && Crc32(0, save.source[i], save.bytes[i]) == crc32_[i]) continue;
    crc32_[i] = CopyCrc32(0, data_ + layout_.data_at[i], save.source[i], save.bytes[i]);
    copied = true;
    *changed = i;
  }
  return copied;
}

void Saver::QueueChunks(const phx_ckpt_save& save, uint8_t when) {
  for (uint64_t i = 0; i < save.n; ++i) {
    if (WhenOf(save, i) != when) continue;
    const auto* source = when == PHX_CKPT_FILLED ? nullptr : static_cast<const uint8_t*>(save.source[i]);
    for (uint64_t at = 0; at < save.bytes[i]; at += kChunkBytes) {
      const uint64_t bytes = std::min(kChunkBytes, save.bytes[i] - at);
      if (source == nullptr) {
        chunks_.push_back({nullptr, i, at, bytes, 0, 0});
      } else {
        chunks_.push_back({source + at, i, at, bytes, 0, SampleOf(source + at, bytes)});
      }
    }
  }
}

ImageTail Saver::Tail() const { return {pickle_, info_, serialization_id_}; }

void Saver::Filled() {
  MutexLock lock(mutex_);
  filled_ = true;
  if (phase_ == Phase::kAwaitingFill) OnAllCopied();
  while (workers_max_ == 0 && (phase_ == Phase::kComparing || phase_ == Phase::kFilling)) DoBatch();
}

void Saver::GiveUpRecord(uint64_t record) {
  MutexLock lock(mutex_);
  differing_ = record;
  if (phase_ == Phase::kAwaitingFill) GiveUp(record);
}

phx_ckpt_outcome Saver::Wait() {
  MutexLock lock(mutex_);
  while (IsAtWork()) changed_.Wait(mutex_);
  return outcome_;
}

phx_ckpt_outcome Saver::WaitUntil(int64_t deadline_ns) {
  MutexLock lock(mutex_);
  while (IsAtWork() && changed_.WaitUntil(mutex_, deadline_ns)) {
  }
  return outcome_;
}

phx_ckpt_outcome Saver::Poll() {
  MutexLock lock(mutex_);
  return outcome_;
}

int Saver::notify_error() {
  MutexLock lock(mutex_);
  return notify_error_;
}

void* Saver::ThreadBody(void* saver) {
  static_cast<Saver*>(saver)->Serve();
  return nullptr;
}

void Saver::Serve() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (HasWork()) {
      DoBatch();
    } else {
      changed_.Wait(mutex_);
    }
  }
}

bool Saver::IsAtWork() const {
  return phase_ == Phase::kCopying || phase_ == Phase::kComparing || phase_ == Phase::kFilling ||
         phase_ == Phase::kSealing;
}

bool Saver::HasWork() const {
  return IsAtWork() && phase_ != Phase::kSealing && next_ < limit_ && workers_ < workers_max_;
}

// With the lock held, which it gives up while it reads.
void Saver::DoBatch() {
  const Phase phase = phase_;
  const size_t first = next_;
  for (uint64_t bytes = 0; next_ < limit_ && bytes < kChunkBytes; ++next_) bytes += chunks_[next_].bytes;
  const size_t end = next_;
  ++workers_;
  mutex_.unlock();
  std::optional<uint64_t> differing;
  for (size_t i = first; i < end; ++i) {
    if (!DoChunk(chunks_[i], phase)) differing = chunks_[i].record;
  }
  mutex_.lock();
  --workers_;
  left_ -= end - first;
  if (differing) differing_ = differing;
  if (left_ == 0) OnPhaseDone();
}

// False where the source is not what it was when the save began, as far as that was looked at, or when it was copied.
bool Saver::DoChunk(Chunk& chunk, Phase phase) const {
  uint8_t* to = data_ + layout_.data_at[chunk.record] + chunk.at;
  if (phase == Phase::kComparing) return Crc32(0, chunk.source, chunk.bytes) == chunk.crc32;
  if (phase == Phase::kFilling) {
    chunk.crc32 = Crc32(0, to, chunk.bytes);
    return true;
  }
  chunk.crc32 = CopyCrc32(0, to, chunk.source, chunk.bytes);
  return !compare_ || SampleOf(to, chunk.bytes) == chunk.sample;
}

// With the lock held, like all below.
void Saver::Enter(Phase phase, size_t first, size_t end) {
  phase_ = phase;
  next_ = first;
  limit_ = end;
  left_ = end - first;
  if (left_ == 0) return OnPhaseDone();
  changed_.WakeAll();
}

void Saver::OnPhaseDone() {
  if (differing_) return GiveUp(*differing_);
  if (phase_ == Phase::kCopying) return OnCopied();
  if (phase_ == Phase::kComparing) return Enter(Phase::kFilling, copied_chunks_, chunks_.size());
  Seal();
}

void Saver::OnCopied() {
  if (filled_ || !consent_) return OnAllCopied();
  phase_ = Phase::kAwaitingFill;
  changed_.WakeAll();
}

// Here, and what the caller has filled: only a look behind all of it says that one moment had all of it.
void Saver::OnAllCopied() {
  if (compare_) return Enter(Phase::kComparing, 0, copied_chunks_);
  Enter(Phase::kFilling, copied_chunks_, chunks_.size());
}

void Saver::GiveUp(uint64_t differing_record) {
  files_.control().Abandon(slot_, generation_);
  outcome_.state = PHX_CKPT_CHANGED;
  outcome_.differing_record = differing_record;
  outcome_.copy_ns = NowNs(CLOCK_MONOTONIC) - began_ns_;
  phase_ = Phase::kOver;
  changed_.WakeAll();
}

// It gives the lock up meanwhile: the phase keeps others away.
void Saver::Seal() {
  phase_ = Phase::kSealing;
  const phx_ckpt_outcome before = outcome_;
  mutex_.unlock();
  phx_ckpt_outcome outcome = TrySeal();
  outcome.bytes = before.bytes;
  outcome.copy_ns = NowNs(CLOCK_MONOTONIC) - began_ns_;
  mutex_.lock();
  if (outcome.state == PHX_CKPT_SEALED) Notify();
  outcome_ = outcome;
  phase_ = Phase::kOver;
  changed_.WakeAll();
}

phx_ckpt_outcome Saver::TrySeal() {
  phx_ckpt_outcome outcome = {PHX_CKPT_SEALED, 0, 0, 0};
  Crc32Joiner joiner;
  for (const Chunk& chunk : chunks_) {
    crc32_[chunk.record] = joiner.Join(crc32_[chunk.record], chunk.crc32, chunk.bytes);
  }
  image_.crc32 = framed_ ? FinishFrame(data_, layout_, frame_crcs_, crc32_.data())
                         : FinishImage(data_, layout_, Tail(), crc32_.data());
  image_.sealed_unix_ms = NowNs(CLOCK_REALTIME) / 1000000;
  if (!files_.control().Seal(slot_, generation_, image_)) outcome.state = PHX_CKPT_LATE;
  return outcome;
}

void Saver::Notify() {
  if (notify_fd_ < 0) return;
  const ssize_t sent = send(notify_fd_, notify_.data(), notify_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  notify_error_ = sent < 0 ? errno : 0;
}

}  // namespace phalanx::checkpoint

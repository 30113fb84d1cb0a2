// Saves of one rank, one at a time: begun on the caller's thread, copied by threads of its own, sealed by whoever
// reads last.
//
// Whole by proof: behind the last byte that is copied all sources are read once more, and only an image whose CRCs are
// the same is sealed. Each byte was the same when it was copied and after all were, so one moment between had all of
// them (a double collect; Afek et al., "Atomic snapshots of shared memory", 1993).
#pragma once

#include <pthread.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/image/image.h"
#include "checkpoint/rank/capi.h"
#include "checkpoint/rank/frame.h"
#include "checkpoint/rank/slot_files.h"
#include "checkpoint/rank/thread.h"

namespace phalanx::checkpoint {

// The rules of threads, of lifetimes and of forks are those of capi.h.
class Saver {
 public:
  explicit Saver(uint64_t epoch);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;
  ~Saver();

  std::string Open(const std::string& control_path) { return files_.Open(control_path); }
  int Map(std::string* why);
  // `frame` null: the image is a zip file of torch's.
  int Begin(const phx_ckpt_save& save, const phx_ckpt_frame* frame, std::string* why);
  uint8_t* SlotData(int slot) const { return files_.data(slot); }
  void Filled();
  void GiveUpRecord(uint64_t record);
  phx_ckpt_outcome Wait();
  // Until then at most, by CLOCK_MONOTONIC: the outcome so far.
  phx_ckpt_outcome WaitUntil(int64_t deadline_ns);
  phx_ckpt_outcome Poll();
  int notify_error();

  // A copy of another process's: nothing in it may be touched.
  bool forgotten() const { return forks_ != ForksSoFar(); }

 private:
  enum class Phase { kNone, kCopying, kComparing, kAwaitingFill, kFilling, kSealing, kOver };

  // A piece of a record for one thread. `source` null: it is in the slot already, and only read.
  struct Chunk {
    const uint8_t* source;
    uint64_t record;
    uint64_t at;  // in the record
    uint64_t bytes;
    uint32_t crc32;
    uint32_t sample;  // of the source when the save began
  };

  static void* ThreadBody(void* saver);
  void Serve();
  // Whether somebody reads, or writes the slot: without the caller it comes to an end.
  bool IsAtWork() const;
  bool HasWork() const;
  void DoBatch();
  bool DoChunk(Chunk& chunk, Phase phase) const;
  void Enter(Phase phase, size_t first, size_t end);
  void OnPhaseDone();
  void OnCopied();
  void OnAllCopied();
  void Seal();
  void GiveUp(uint64_t differing_record);
  phx_ckpt_outcome TrySeal();
  void Notify();

  int Refuse(const phx_ckpt_save& save, std::string* why);
  std::string Plan(const phx_ckpt_save& save, const phx_ckpt_frame* frame);
  std::string PlanZip(const phx_ckpt_save& save);
  int TakeSlot(std::string* why);
  int StartThreads(int wanted);
  std::optional<uint64_t> CopyNow(const phx_ckpt_save& save, bool all);
  bool CopyRecords(const phx_ckpt_save& save, bool all, bool only_changed, uint64_t* changed);
  void QueueChunks(const phx_ckpt_save& save, uint8_t when);
  ImageTail Tail() const;

  const uint64_t epoch_;
  const unsigned forks_;
  SlotFiles files_;
  std::vector<pthread_t> threads_;

  // The save, written by Begin while nobody else looks. Chunks: each belongs to who took it.
  ImageLayout layout_;
  std::string pickle_, info_, serialization_id_, notify_;
  bool framed_ = false;   // the caller has laid the image out
  FrameCrcs frame_crcs_;  // of a framed one
  int notify_fd_ = -1;
  SlotImage image_;
  int slot_ = -1;
  uint64_t generation_ = 0;
  uint8_t* data_ = nullptr;
  std::vector<Chunk> chunks_;  // copied ones, then those that are only read
  size_t copied_chunks_ = 0;   // the first part
  std::vector<uint32_t> crc32_;
  int workers_max_ = 0;
  bool compare_ = false;
  bool consent_ = false;  // the caller is waited for before the second look
  int64_t began_ns_ = 0;

  // Guarded by the mutex.
  Mutex mutex_;
  Condition changed_;
  bool stopping_ = false;
  Phase phase_ = Phase::kNone;
  int workers_ = 0;   // in a chunk now
  size_t next_ = 0;   // chunk to take, in this phase
  size_t limit_ = 0;  // the end of those of this phase
  size_t left_ = 0;   // of this phase
  bool filled_ = false;
  std::optional<uint64_t> differing_;  // a record whose source has changed
  phx_ckpt_outcome outcome_;
  int notify_error_ = 0;
};

}  // namespace phalanx::checkpoint

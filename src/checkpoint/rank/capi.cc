#include "checkpoint/rank/capi.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "base/error_text.h"
#include "checkpoint/image/image.h"
#include "checkpoint/rank/saver.h"
#include "checkpoint/rank/zip_frame.h"

using phalanx::PutErrorText;
using phalanx::checkpoint::Saver;

struct phx_ckpt {
  Saver saver;
};

namespace {

constexpr char kForked[] = "this is a fork of the process that opened it: only that one saves";

// Maps a file to read; what is wrong with it, else empty.
std::string CheckFile(const char* path) {
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::strerror(errno);
  const off_t end = lseek(file, 0, SEEK_END);
  std::string why = "it is empty";
  if (end < 0) why = std::strerror(errno);
  if (end > 0) {
    const auto bytes = static_cast<uint64_t>(end);
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
    if (data == MAP_FAILED) {
      why = std::strerror(errno);
    } else {
      why = phalanx::checkpoint::CheckImage(data, bytes);
      munmap(data, bytes);
    }
  }
  close(file);
  return why;
}

}  // namespace

uint32_t phx_ckpt_abi_version() { return 10; }

phx_ckpt* phx_ckpt_open(const char* control_path, uint64_t epoch, char* error, size_t error_size) {
  phalanx::checkpoint::CountForks();
  std::unique_ptr<phx_ckpt> ckpt(new phx_ckpt{Saver(epoch)});
  const std::string why = ckpt->saver.Open(control_path);
  if (why.empty()) return ckpt.release();
  PutErrorText(why, error, error_size);
  return nullptr;
}

void phx_ckpt_close(phx_ckpt* ckpt) {
  // In a child its threads are not there to be waited for; the mappings were not inherited.
  if (ckpt == nullptr || ckpt->saver.forgotten()) return;
  delete ckpt;
}

int phx_ckpt_map(phx_ckpt* ckpt, char* error, size_t error_size) {
  std::string why = kForked;
  const int mapped = ckpt->saver.forgotten() ? PHX_CKPT_BROKEN : ckpt->saver.Map(&(why = ""));
  PutErrorText(why, error, error_size);
  return mapped;
}

int phx_ckpt_layout(const uint64_t* record_bytes, uint64_t n, uint64_t pickle_bytes, uint64_t* file_bytes,
                    uint64_t* offsets, uint64_t* hash) {
  phalanx::checkpoint::ImageLayout layout;
  if (!phalanx::checkpoint::PlanImage(record_bytes, n, pickle_bytes, 0, &layout).empty()) return PHX_CKPT_NO_ROOM;
  *file_bytes = layout.file_bytes;
  *hash = layout.hash;
  std::copy(layout.data_at.begin(), layout.data_at.end(), offsets);
  return 0;
}

int phx_ckpt_begin(phx_ckpt* ckpt, const phx_ckpt_save* save, char* error, size_t error_size) {
  return phx_ckpt_begin_framed(ckpt, save, nullptr, error, error_size);
}

int phx_ckpt_begin_framed(phx_ckpt* ckpt, const phx_ckpt_save* save, const phx_ckpt_frame* frame, char* error,
                          size_t error_size) {
  std::string why = kForked;
  const int slot = ckpt->saver.forgotten() ? PHX_CKPT_BROKEN : ckpt->saver.Begin(*save, frame, &(why = ""));
  PutErrorText(why, error, error_size);
  return slot;
}

void* phx_ckpt_slot_data(phx_ckpt* ckpt, int slot) {
  return ckpt->saver.forgotten() ? nullptr : ckpt->saver.SlotData(slot);
}

void phx_ckpt_filled(phx_ckpt* ckpt) {
  if (!ckpt->saver.forgotten()) ckpt->saver.Filled();
}

void phx_ckpt_give_up(phx_ckpt* ckpt, uint64_t record) {
  if (!ckpt->saver.forgotten()) ckpt->saver.GiveUpRecord(record);
}

int phx_ckpt_wait_copied(phx_ckpt* ckpt, phx_ckpt_outcome* outcome) {
  *outcome = {PHX_CKPT_NOTHING, 0, 0, 0};
  if (ckpt->saver.forgotten()) return PHX_CKPT_BROKEN;
  *outcome = ckpt->saver.Wait();
  return 0;
}

int phx_ckpt_wait_copied_until(phx_ckpt* ckpt, int64_t deadline_ns, phx_ckpt_outcome* outcome) {
  *outcome = {PHX_CKPT_NOTHING, 0, 0, 0};
  if (ckpt->saver.forgotten()) return PHX_CKPT_BROKEN;
  *outcome = ckpt->saver.WaitUntil(deadline_ns);
  return 0;
}

int phx_ckpt_poll(phx_ckpt* ckpt, phx_ckpt_outcome* outcome) {
  *outcome = {PHX_CKPT_NOTHING, 0, 0, 0};
  if (ckpt->saver.forgotten()) return PHX_CKPT_BROKEN;
  *outcome = ckpt->saver.Poll();
  return 0;
}

int phx_ckpt_zip_lengths(const phx_ckpt_zip* zip, uint64_t* frame_bytes, uint64_t* file_bytes, char* error,
                         size_t error_size) {
  const std::string why = phalanx::checkpoint::WhyNoZip(*zip);
  PutErrorText(why, error, error_size);
  if (!why.empty()) return PHX_CKPT_BROKEN;
  const phalanx::checkpoint::ZipLengths lengths = phalanx::checkpoint::LengthsOf(*zip);
  *frame_bytes = lengths.frame;
  *file_bytes = lengths.file;
  return 0;
}

uint64_t phx_ckpt_zip_frame(const phx_ckpt_zip* zip, void* frame, uint64_t* record_at, phx_ckpt_patch* patches) {
  return phalanx::checkpoint::PutZipFrame(static_cast<uint8_t*>(frame), *zip, record_at, patches);
}

int phx_ckpt_notify_error(phx_ckpt* ckpt) { return ckpt->saver.forgotten() ? 0 : ckpt->saver.notify_error(); }

void phx_ckpt_forget_in_child() { phalanx::checkpoint::ForgetInChild(); }

int phx_ckpt_parts(const void* image, uint64_t bytes, uint64_t* at, uint64_t* part_bytes, uint64_t room, char* error,
                   size_t error_size) {
  std::vector<phalanx::checkpoint::ImagePart> parts;
  const std::string why = phalanx::checkpoint::FindParts(image, bytes, &parts);
  PutErrorText(why, error, error_size);
  if (!why.empty()) return PHX_CKPT_BROKEN;
  for (uint64_t i = 0; i < std::min<uint64_t>(room, parts.size()); ++i) {
    at[i] = parts[i].offset;
    part_bytes[i] = parts[i].bytes;
  }
  return static_cast<int>(parts.size());
}

int phx_ckpt_check_file(const char* path, char* error, size_t error_size) {
  const std::string why = CheckFile(path);
  PutErrorText(why, error, error_size);
  return why.empty() ? 0 : PHX_CKPT_BROKEN;
}

void phx_ckpt_scatter(const void* from, const uint64_t* to, const uint64_t* bytes, uint64_t n) {
  const auto* source = static_cast<const uint8_t*>(from);
  for (uint64_t i = 0; i < n; ++i) {
    std::memcpy(reinterpret_cast<void*>(to[i]), source, bytes[i]);
    source += bytes[i];
  }
}

int phx_ckpt_queue_copies(phx_ckpt_async_copy copy, void* stream, const uint64_t* to, const uint64_t* from,
                          const uint64_t* bytes, uint64_t n) {
  constexpr int kByAddress = 4;  // cudaMemcpyDefault
  for (uint64_t i = 0; i < n; ++i) {
    const int error =
        copy(reinterpret_cast<void*>(to[i]), reinterpret_cast<const void*>(from[i]), bytes[i], kByAddress, stream);
    if (error != 0) return error;
  }
  return 0;
}

uint32_t phx_crc32(uint32_t crc, const void* data, uint64_t n) { return phalanx::Crc32(crc, data, n); }

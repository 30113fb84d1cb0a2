#include "checkpoint/rank/zip_frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "checkpoint/image/image.h"
#include "checkpoint/image/image_bytes.h"
#include "checkpoint/image/tensor_name.h"
#include "checkpoint/image/zip_parts.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kCrcInDescriptor = 4;
constexpr uint64_t kCrcInEntry = 16;
constexpr size_t kTailRecords = 3;

std::array<SmallRecord, kTailRecords> SmallRecords(const phx_ckpt_zip& zip) {
  return {{{"archive/data.pkl", {static_cast<const char*>(zip.pickle), zip.pickle_bytes}},
           {"archive/byteorder", "little"},
           {"archive/version", "3\n"}}};
}

struct Plan {
  uint64_t records_bytes = 0;
  uint64_t directory_at = 0;
  uint64_t file_bytes = 0;
};

Plan PlanOf(const phx_ckpt_zip& zip) {
  Plan plan;
  ZipSpan span;
  for (uint64_t i = 0; i < zip.n; ++i) {
    span.Add(TensorNameBytes(i), zip.bytes[i]);
    plan.records_bytes += zip.bytes[i];
  }
  for (const SmallRecord& small : SmallRecords(zip)) span.Add(small.name.size(), small.data.size());
  plan.file_bytes = std::max(zip.length, span.end + span.entries_bytes + kEndingBytes);
  plan.directory_at = plan.file_bytes - span.entries_bytes - kEndingBytes;
  return plan;
}

}  // namespace

std::string WhyNoZip(const phx_ckpt_zip& zip) {
  if (zip.n > kImageRecordsMax) return TooManyRecords(zip.n);
  uint64_t bytes = zip.pickle_bytes;
  for (uint64_t i = 0; i < zip.n && bytes <= kImageBytesMax; ++i) {
    bytes = zip.bytes[i] > kImageBytesMax ? zip.bytes[i] : bytes + zip.bytes[i];
  }
  if (std::max(bytes, zip.length) > kImageBytesMax) return "records of more bytes than a file may have";
  return {};
}

ZipLengths LengthsOf(const phx_ckpt_zip& zip) {
  const Plan plan = PlanOf(zip);
  return {plan.file_bytes - plan.records_bytes, plan.file_bytes};
}

uint64_t PutZipFrame(uint8_t* frame, const phx_ckpt_zip& zip, uint64_t* record_at, phx_ckpt_patch* patches) {
  const Plan plan = PlanOf(zip);
  uint8_t* const directory = frame + (plan.directory_at - plan.records_bytes);
  uint8_t* entry = directory;
  phx_ckpt_patch* patch = patches;
  uint64_t at = 0;
  for (uint64_t i = 0; i < zip.n; ++i) {
    const TensorName name(i);
    const uint64_t bytes = zip.bytes[i];
    const ZipPlace place = PlaceRecord(at, name.view().size(), bytes);
    PutLocal(frame, place, name.view(), bytes);
    frame += place.data_at - at;
    PutDescriptor(frame, place, bytes, 0);
    frame += place.end - place.data_at - bytes;
    record_at[i] = place.data_at;
    if (bytes > 0) *patch++ = {place.data_at + bytes + kCrcInDescriptor, i};
    *patch++ = {plan.directory_at + static_cast<uint64_t>(entry - directory) + kCrcInEntry, i};
    entry = PutEntry(entry, at, name.view(), bytes, 0);
    at = place.end;
  }
  for (const SmallRecord& small : SmallRecords(zip)) {
    uint8_t* const behind = PutRecord(frame, at, small, &entry);
    at += static_cast<uint64_t>(behind - frame);
    frame = behind;
  }
  std::memset(frame, 0, static_cast<size_t>(directory - frame));
  PutEnding(entry, plan.file_bytes - kEndingBytes, plan.directory_at, zip.n + kTailRecords);
  return static_cast<uint64_t>(patch - patches);
}

}  // namespace phalanx::checkpoint

#include "checkpoint/image/image.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/fnv.h"
#include "checkpoint/image/image_bytes.h"
#include "checkpoint/image/running_crc.h"
#include "checkpoint/image/tensor_name.h"
#include "checkpoint/image/zip_parts.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kTailRoomBytes = 64 << 10;
constexpr size_t kTailRecords = 7;

std::array<SmallRecord, kTailRecords> SmallRecords(const ImageTail& tail) {
  return {{{"archive/data.pkl", tail.pickle},
           {"archive/.format_version", "1"},
           {"archive/.storage_alignment", "64"},
           {"archive/byteorder", "little"},
           {"archive/version", "3\n"},
           {"archive/.data/serialization_id", tail.serialization_id},
           {"archive/.phalanx/info", tail.info}}};
}

// Of the directory without its ending.
ZipSpan SpanTail(const ImageLayout& layout, const ImageTail& tail) {
  ZipSpan span;
  for (uint64_t i = 0; i < layout.bytes.size(); ++i) {
    span.entries_bytes += EntryBytes(layout.header_at[i], TensorNameBytes(i), layout.bytes[i]);
  }
  span.end = layout.tail_at;
  for (const SmallRecord& small : SmallRecords(tail)) span.Add(small.name.size(), small.data.size());
  return span;
}

uint64_t HashLayout(const ImageLayout& layout) {
  Fnv1a hash;
  hash.Add(kImageAlignment).Add(layout.file_bytes);
  for (const uint64_t bytes : layout.bytes) hash.Add(bytes);
  return hash.value();
}

}  // namespace

std::string TooManyRecords(uint64_t n) { return std::to_string(n) + " records are more than an image may have"; }

std::string PlanImage(const uint64_t* record_bytes, uint64_t n, uint64_t pickle_bytes, uint64_t file_bytes,
                      ImageLayout* layout) {
  if (n > kImageRecordsMax) return TooManyRecords(n);
  layout->bytes.assign(record_bytes, record_bytes + n);
  layout->header_at.resize(n);
  layout->data_at.resize(n);
  uint64_t at = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (record_bytes[i] > kImageBytesMax || at > kImageBytesMax) return "records of more bytes than a file may have";
    const ZipPlace place = PlaceRecord(at, TensorNameBytes(i), record_bytes[i]);
    layout->header_at[i] = place.header_at;
    layout->data_at[i] = place.data_at;
    at = place.end;
  }
  if (at > kImageBytesMax || pickle_bytes > kImageBytesMax) return "records of more bytes than a file may have";
  layout->tail_at = at;
  layout->file_bytes = file_bytes;
  if (file_bytes == 0) {
    // The pickle's length is added below: there is nothing to point to yet.
    const ImageTail tail = {{}, {}, "0123456789012345678901234567890123456789"};
    const ZipSpan span = SpanTail(*layout, tail);
    const uint64_t tail_bytes = span.end - at + pickle_bytes + kImageAlignment + span.entries_bytes + kEndingBytes;
    layout->file_bytes = RoundUp(at + tail_bytes + std::max(kTailRoomBytes, tail_bytes / 4), kImagePage);
  }
  layout->hash = HashLayout(*layout);
  return {};
}

std::string TailFits(const ImageLayout& layout, const ImageTail& tail) {
  const ZipSpan span = SpanTail(layout, tail);
  const uint64_t wanted = span.end + span.entries_bytes + kEndingBytes;
  if (wanted <= layout.file_bytes) return {};
  return "the image takes " + std::to_string(wanted) + " bytes and its slot has " + std::to_string(layout.file_bytes);
}

uint32_t FinishImage(uint8_t* image, const ImageLayout& layout, const ImageTail& tail, const uint32_t* record_crc32) {
  const ZipSpan span = SpanTail(layout, tail);
  const uint64_t directory_at = layout.file_bytes - span.entries_bytes - kEndingBytes;
  uint8_t* entry = image + directory_at;
  RunningCrc crc(image);
  for (uint64_t i = 0; i < layout.bytes.size(); ++i) {
    const TensorName name(i);
    const uint64_t bytes = layout.bytes[i];
    const ZipPlace place = PlaceRecord(layout.header_at[i], name.view().size(), bytes);
    PutLocal(image + place.header_at, place, name.view(), bytes);
    PutDescriptor(image + place.data_at + bytes, place, bytes, record_crc32[i]);
    entry = PutEntry(entry, place.header_at, name.view(), bytes, record_crc32[i]);
    if (bytes < kJoinFrom) continue;
    crc.Read(place.data_at);
    crc.Pass(bytes, record_crc32[i]);
  }
  uint8_t* at = image + layout.tail_at;
  for (const SmallRecord& small : SmallRecords(tail)) {
    at = PutRecord(at, static_cast<uint64_t>(at - image), small, &entry);
  }
  std::memset(at, 0, static_cast<size_t>(image + directory_at - at));
  PutEnding(entry, layout.file_bytes - kEndingBytes, directory_at, layout.bytes.size() + kTailRecords);
  crc.Read(layout.file_bytes);
  return crc.value();
}

}  // namespace phalanx::checkpoint

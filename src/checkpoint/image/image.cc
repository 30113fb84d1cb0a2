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

struct Small {
  std::string_view name;
  std::string_view data;
};

std::array<Small, kTailRecords> SmallRecords(const ImageTail& tail) {
  return {{{"archive/data.pkl", tail.pickle},
           {"archive/.format_version", "1"},
           {"archive/.storage_alignment", "64"},
           {"archive/byteorder", "little"},
           {"archive/version", "3\n"},
           {"archive/.data/serialization_id", tail.serialization_id},
           {"archive/.phalanx/info", tail.info}}};
}

// Where the small records end, and how long the directory is with its ending.
struct TailSpan {
  uint64_t end = 0;
  uint64_t directory_bytes = 0;
};

TailSpan SpanTail(const ImageLayout& layout, const ImageTail& tail) {
  TailSpan span;
  span.end = layout.tail_at;
  span.directory_bytes = kEndingBytes;
  for (uint64_t i = 0; i < layout.bytes.size(); ++i) {
    span.directory_bytes += EntryBytes(layout.header_at[i], TensorNameBytes(i), layout.bytes[i]);
  }
  for (const Small& small : SmallRecords(tail)) {
    span.directory_bytes += EntryBytes(span.end, small.name.size(), small.data.size());
    span.end = PlaceRecord(span.end, small.name.size(), small.data.size()).end;
  }
  return span;
}

uint64_t HashLayout(const ImageLayout& layout) {
  Fnv1a hash;
  hash.Add(kImageAlignment).Add(layout.file_bytes);
  for (const uint64_t bytes : layout.bytes) hash.Add(bytes);
  return hash.value();
}

}  // namespace

std::string PlanImage(const uint64_t* record_bytes, uint64_t n, uint64_t pickle_bytes, uint64_t file_bytes,
                      ImageLayout* layout) {
  if (n > kImageRecordsMax) return std::to_string(n) + " records are more than an image may have";
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
    const TailSpan span = SpanTail(*layout, tail);
    const uint64_t tail_bytes = span.end - at + pickle_bytes + kImageAlignment + span.directory_bytes;
    layout->file_bytes = RoundUp(at + tail_bytes + std::max(kTailRoomBytes, tail_bytes / 4), kImagePage);
  }
  layout->hash = HashLayout(*layout);
  return {};
}

std::string TailFits(const ImageLayout& layout, const ImageTail& tail) {
  const TailSpan span = SpanTail(layout, tail);
  const uint64_t wanted = span.end + span.directory_bytes;
  if (wanted <= layout.file_bytes) return {};
  return "the image takes " + std::to_string(wanted) + " bytes and its slot has " + std::to_string(layout.file_bytes);
}

uint32_t FinishImage(uint8_t* image, const ImageLayout& layout, const ImageTail& tail, const uint32_t* record_crc32) {
  const TailSpan span = SpanTail(layout, tail);
  const uint64_t directory_at = layout.file_bytes - span.directory_bytes;
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
  uint64_t at = layout.tail_at;
  for (const Small& small : SmallRecords(tail)) {
    const uint64_t bytes = small.data.size();
    const ZipPlace place = PlaceRecord(at, small.name.size(), bytes);
    PutLocal(image + place.header_at, place, small.name, bytes);
    const uint32_t crc32 = bytes == 0 ? 0 : CopyCrc32(0, image + place.data_at, small.data.data(), bytes);
    PutDescriptor(image + place.data_at + bytes, place, bytes, crc32);
    entry = PutEntry(entry, place.header_at, small.name, bytes, crc32);
    at = place.end;
  }
  std::memset(image + at, 0, directory_at - at);
  PutEnding(entry, layout.file_bytes - kEndingBytes, directory_at, layout.bytes.size() + kTailRecords);
  crc.Read(layout.file_bytes);
  return crc.value();
}

}  // namespace phalanx::checkpoint

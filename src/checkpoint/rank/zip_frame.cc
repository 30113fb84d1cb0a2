#include "checkpoint/rank/zip_frame.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "base/crc/crc32.h"
#include "checkpoint/image/image.h"
#include "checkpoint/image/image_bytes.h"
#include "checkpoint/image/tensor_name.h"
#include "checkpoint/image/zip_parts.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kCrcInDescriptor = 4;
constexpr uint64_t kCrcInEntry = 16;
constexpr size_t kTailRecords = 3;

struct Small {
  std::string_view name;
  std::string_view data;
};

std::array<Small, kTailRecords> SmallRecords(const phx_ckpt_zip& zip) {
  return {{{"archive/data.pkl", {static_cast<const char*>(zip.pickle), zip.pickle_bytes}},
           {"archive/byteorder", "little"},
           {"archive/version", "3\n"}}};
}

// Where the records and the tail end, and how long the directory is without its ending.
struct Span {
  uint64_t records_bytes = 0;
  uint64_t end = 0;
  uint64_t entries_bytes = 0;
};

Span SpanOf(const phx_ckpt_zip& zip) {
  Span span;
  for (uint64_t i = 0; i < zip.n; ++i) {
    span.entries_bytes += EntryBytes(span.end, TensorNameBytes(i), zip.bytes[i]);
    span.end = PlaceRecord(span.end, TensorNameBytes(i), zip.bytes[i]).end;
    span.records_bytes += zip.bytes[i];
  }
  for (const Small& small : SmallRecords(zip)) {
    span.entries_bytes += EntryBytes(span.end, small.name.size(), small.data.size());
    span.end = PlaceRecord(span.end, small.name.size(), small.data.size()).end;
  }
  return span;
}

// What is in front of a record's data; behind it.
uint8_t* PutFront(uint8_t* at, const ZipPlace& place, std::string_view name, uint64_t bytes) {
  PutLocal(at, place, name, bytes);
  return at + (place.data_at - place.header_at);
}

uint8_t* PutBack(uint8_t* at, const ZipPlace& place, uint64_t bytes, uint32_t crc32) {
  PutDescriptor(at, place, bytes, crc32);
  return at + (place.end - place.data_at - bytes);
}

}  // namespace

std::string WhyNoZip(const phx_ckpt_zip& zip) {
  if (zip.n > kImageRecordsMax) return std::to_string(zip.n) + " records are more than an image may have";
  uint64_t bytes = zip.pickle_bytes;
  for (uint64_t i = 0; i < zip.n && bytes <= kImageBytesMax; ++i) {
    bytes = zip.bytes[i] > kImageBytesMax ? zip.bytes[i] : bytes + zip.bytes[i];
  }
  if (std::max(bytes, zip.length) > kImageBytesMax) return "records of more bytes than a file may have";
  return {};
}

ZipLengths LengthsOf(const phx_ckpt_zip& zip) {
  const Span span = SpanOf(zip);
  const uint64_t file = std::max(zip.length, span.end + span.entries_bytes + kEndingBytes);
  return {file - span.records_bytes, file};
}

uint64_t PutZipFrame(uint8_t* frame, const phx_ckpt_zip& zip, uint64_t* record_at, phx_ckpt_patch* patches) {
  const Span span = SpanOf(zip);
  const uint64_t file_bytes = LengthsOf(zip).file;
  const uint64_t directory_at = file_bytes - span.entries_bytes - kEndingBytes;
  uint8_t* entry = frame + (directory_at - span.records_bytes);
  phx_ckpt_patch* patch = patches;
  uint64_t at = 0;
  for (uint64_t i = 0; i < zip.n; ++i) {
    const TensorName name(i);
    const uint64_t bytes = zip.bytes[i];
    const ZipPlace place = PlaceRecord(at, name.view().size(), bytes);
    frame = PutBack(PutFront(frame, place, name.view(), bytes), place, bytes, 0);
    if (bytes > 0) *patch++ = {place.data_at + bytes + kCrcInDescriptor, i};
    record_at[i] = place.data_at;
    at = place.end;
  }
  uint64_t entry_at = directory_at;
  at = 0;
  for (uint64_t i = 0; i < zip.n; ++i) {
    const TensorName name(i);
    *patch++ = {entry_at + kCrcInEntry, i};
    entry_at += EntryBytes(at, name.view().size(), zip.bytes[i]);
    entry = PutEntry(entry, at, name.view(), zip.bytes[i], 0);
    at = PlaceRecord(at, name.view().size(), zip.bytes[i]).end;
  }
  for (const Small& small : SmallRecords(zip)) {
    const uint64_t bytes = small.data.size();
    const ZipPlace place = PlaceRecord(at, small.name.size(), bytes);
    frame = PutFront(frame, place, small.name, bytes);
    std::memcpy(frame, small.data.data(), bytes);
    const uint32_t crc32 = Crc32(0, frame, bytes);
    frame = PutBack(frame + bytes, place, bytes, crc32);
    entry = PutEntry(entry, at, small.name, bytes, crc32);
    at = place.end;
  }
  std::memset(frame, 0, directory_at - at);
  PutEnding(entry, file_bytes - kEndingBytes, directory_at, zip.n + kTailRecords);
  return static_cast<uint64_t>(patch - patches);
}

}  // namespace phalanx::checkpoint

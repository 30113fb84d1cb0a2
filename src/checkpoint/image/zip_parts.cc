#include "checkpoint/image/zip_parts.h"

#include <algorithm>
#include <cstring>

#include "base/crc/crc32.h"
#include "checkpoint/image/image.h"
#include "checkpoint/image/image_bytes.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint16_t kFlags = 0x0800;            // the name is UTF-8
constexpr uint16_t kFlagsDescriptor = 0x0808;  // and the sizes stand behind the data
constexpr uint16_t kMadeBy = 798;              // as torch's writer has it
constexpr uint16_t kNeeded = 45;

uint64_t Zip64Bytes(uint64_t header_at, uint64_t bytes) {
  const uint64_t fields = (bytes >= kMax32 ? 16 : 0) + (header_at >= kMax32 ? 8 : 0);
  return fields == 0 ? 0 : 4 + fields;
}

uint64_t DescriptorBytes(uint64_t header_at, uint64_t bytes) {
  if (bytes == 0) return 0;
  return bytes >= kMax32 || header_at >= kMax32 ? 24 : 16;
}

void PutZip64(uint8_t* at, uint64_t zip64_bytes, uint64_t header_at, uint64_t bytes, uint64_t stored_bytes) {
  if (zip64_bytes == 0) return;
  Put<uint16_t>(at, kZip64Id);
  Put<uint16_t>(at + 2, static_cast<uint16_t>(zip64_bytes - 4));
  at += 4;
  if (bytes >= kMax32) {
    Put<uint64_t>(at, bytes);
    Put<uint64_t>(at + 8, stored_bytes);
    at += 16;
  }
  if (header_at >= kMax32) Put<uint64_t>(at, header_at);
}

}  // namespace

ZipPlace PlaceRecord(uint64_t header_at, uint64_t name_bytes, uint64_t bytes) {
  ZipPlace place;
  place.header_at = header_at;
  place.zip64_bytes = Zip64Bytes(header_at, bytes);
  place.data_at = RoundUp(header_at + kLocalBytes + name_bytes + place.zip64_bytes + 4, kImageAlignment);
  place.end = place.data_at + bytes + DescriptorBytes(header_at, bytes);
  return place;
}

uint64_t EntryBytes(uint64_t header_at, uint64_t name_bytes, uint64_t bytes) {
  return kEntryBytes + name_bytes + Zip64Bytes(header_at, bytes);
}

void PutLocal(uint8_t* at, const ZipPlace& place, std::string_view name, uint64_t bytes) {
  const uint64_t extra_bytes = place.data_at - place.header_at - kLocalBytes - name.size();
  std::memset(at, 0, kLocalBytes);
  Put<uint32_t>(at, kLocalSignature);
  Put<uint16_t>(at + 6, bytes == 0 ? kFlags : kFlagsDescriptor);
  Put<uint16_t>(at + 26, static_cast<uint16_t>(name.size()));
  Put<uint16_t>(at + 28, static_cast<uint16_t>(extra_bytes));
  at += kLocalBytes;
  std::memcpy(at, name.data(), name.size());
  at += name.size();
  // The second size is 0, as torch's writer leaves it.
  PutZip64(at, place.zip64_bytes, place.header_at, bytes, 0);
  at += place.zip64_bytes;
  const uint64_t padding = extra_bytes - place.zip64_bytes - 4;
  Put<uint16_t>(at, kPaddingId);
  Put<uint16_t>(at + 2, static_cast<uint16_t>(padding));
  std::memset(at + 4, 'Z', padding);
}

void PutDescriptor(uint8_t* at, const ZipPlace& place, uint64_t bytes, uint32_t crc32) {
  const uint64_t length = DescriptorBytes(place.header_at, bytes);
  if (length == 0) return;
  Put<uint32_t>(at, kDescriptorSignature);
  Put<uint32_t>(at + 4, crc32);
  if (length == 24) {
    Put<uint64_t>(at + 8, bytes);
    Put<uint64_t>(at + 16, bytes);
  } else {
    Put<uint32_t>(at + 8, static_cast<uint32_t>(bytes));
    Put<uint32_t>(at + 12, static_cast<uint32_t>(bytes));
  }
}

uint8_t* PutEntry(uint8_t* at, uint64_t header_at, std::string_view name, uint64_t bytes, uint32_t crc32) {
  const uint64_t zip64_bytes = Zip64Bytes(header_at, bytes);
  const auto short_bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, kMax32));
  std::memset(at, 0, kEntryBytes);
  Put<uint32_t>(at, kEntrySignature);
  Put<uint16_t>(at + 8, bytes == 0 ? kFlags : kFlagsDescriptor);
  Put<uint32_t>(at + 16, crc32);
  Put<uint32_t>(at + 20, short_bytes);
  Put<uint32_t>(at + 24, short_bytes);
  Put<uint16_t>(at + 28, static_cast<uint16_t>(name.size()));
  Put<uint16_t>(at + 30, static_cast<uint16_t>(zip64_bytes));
  Put<uint32_t>(at + 42, static_cast<uint32_t>(std::min<uint64_t>(header_at, kMax32)));
  std::memcpy(at + kEntryBytes, name.data(), name.size());
  PutZip64(at + kEntryBytes + name.size(), zip64_bytes, header_at, bytes, bytes);
  return at + kEntryBytes + name.size() + zip64_bytes;
}

void ZipSpan::Add(uint64_t name_bytes, uint64_t bytes) {
  entries_bytes += EntryBytes(end, name_bytes, bytes);
  end = PlaceRecord(end, name_bytes, bytes).end;
}

uint8_t* PutRecord(uint8_t* at, uint64_t header_at, const SmallRecord& record, uint8_t** entry) {
  const uint64_t bytes = record.data.size();
  const ZipPlace place = PlaceRecord(header_at, record.name.size(), bytes);
  PutLocal(at, place, record.name, bytes);
  at += place.data_at - place.header_at;
  const uint32_t crc32 = bytes == 0 ? 0 : CopyCrc32(0, at, record.data.data(), bytes);
  PutDescriptor(at + bytes, place, bytes, crc32);
  *entry = PutEntry(*entry, header_at, record.name, bytes, crc32);
  return at + (place.end - place.data_at);
}

void PutEnding(uint8_t* at, uint64_t end64_at, uint64_t directory_at, uint64_t entries) {
  const uint64_t directory_bytes = end64_at - directory_at;
  std::memset(at, 0, kEndingBytes);
  Put<uint32_t>(at, kEnd64Signature);
  Put<uint64_t>(at + 4, kEnd64Bytes - 12);
  Put<uint16_t>(at + 12, kMadeBy);
  Put<uint16_t>(at + 14, kNeeded);
  Put<uint64_t>(at + 24, entries);
  Put<uint64_t>(at + 32, entries);
  Put<uint64_t>(at + 40, directory_bytes);
  Put<uint64_t>(at + 48, directory_at);
  at += kEnd64Bytes;
  Put<uint32_t>(at, kLocatorSignature);
  Put<uint64_t>(at + 8, end64_at);
  Put<uint32_t>(at + 16, 1);
  at += kLocatorBytes;
  const auto short_entries = static_cast<uint16_t>(std::min<uint64_t>(entries, kMax16));
  Put<uint32_t>(at, kEndSignature);
  Put<uint16_t>(at + 8, short_entries);
  Put<uint16_t>(at + 10, short_entries);
  Put<uint32_t>(at + 12, static_cast<uint32_t>(std::min<uint64_t>(directory_bytes, kMax32)));
  Put<uint32_t>(at + 16, static_cast<uint32_t>(std::min<uint64_t>(directory_at, kMax32)));
}

}  // namespace phalanx::checkpoint

#include <algorithm>
#include <cstring>
#include <string_view>

#include "checkpoint/image/image.h"
#include "checkpoint/image/image_bytes.h"

namespace phalanx::checkpoint {
namespace {

const std::string kStorages = "archive/data/";
constexpr std::string_view kPickle = "archive/data.pkl";

struct Directory {
  uint64_t at = 0;
  uint64_t end = 0;
  uint64_t entries = 0;
};

// The file's last 98 bytes: three records whose places are thereby known.
std::string FindDirectory(const uint8_t* image, uint64_t bytes, Directory* directory) {
  if (bytes < kEndingBytes) return "it is " + std::to_string(bytes) + " bytes long, too short for an image";
  const uint64_t end64_at = bytes - kEndingBytes;
  const uint8_t* end64 = image + end64_at;
  const uint8_t* locator = end64 + kEnd64Bytes;
  const uint8_t* end = locator + kLocatorBytes;
  if (Get<uint32_t>(end) != kEndSignature || Get<uint16_t>(end + 20) != 0) {
    return "it does not end with the end of a zip directory: not an image, or cut short";
  }
  if (Get<uint32_t>(locator) != kLocatorSignature || Get<uint64_t>(locator + 8) != end64_at ||
      Get<uint32_t>(end64) != kEnd64Signature || Get<uint64_t>(end64 + 4) != kEnd64Bytes - 12) {
    return "the zip64 end of its directory is missing: not an image, or not in one piece";
  }
  const uint64_t directory_bytes = Get<uint64_t>(end64 + 40);
  directory->entries = Get<uint64_t>(end64 + 32);
  directory->at = Get<uint64_t>(end64 + 48);
  directory->end = end64_at;
  if (directory->at > end64_at || directory_bytes != end64_at - directory->at) {
    return "its directory of " + std::to_string(directory_bytes) + " bytes at " + std::to_string(directory->at) +
           " does not end where it should";
  }
  if (directory->entries != Get<uint64_t>(end64 + 24) || directory->entries > directory_bytes / kEntryBytes) {
    return "its directory of " + std::to_string(directory_bytes) + " bytes cannot hold " +
           std::to_string(directory->entries) + " records";
  }
  return {};
}

struct Entry {
  std::string_view name;
  uint64_t bytes = 0;
  uint64_t header_at = 0;
  uint32_t crc32 = 0;
  uint64_t length = 0;  // of the entry itself
};

// Puts the 64-bit numbers of an entry in the place of those that did not fit.
bool TakeZip64(const uint8_t* extra, uint64_t extra_bytes, uint64_t stored_bytes, Entry* entry) {
  const bool wants_bytes = entry->bytes == kMax32;
  const bool wants_header = entry->header_at == kMax32;
  if (!wants_bytes && !wants_header) return stored_bytes == entry->bytes;
  const uint64_t wanted = (wants_bytes ? 16 : 0) + (wants_header ? 8 : 0);
  if (extra_bytes < 4 + wanted || Get<uint16_t>(extra) != kZip64Id || Get<uint16_t>(extra + 2) < wanted) return false;
  extra += 4;
  if (wants_bytes) {
    if (stored_bytes != kMax32 || Get<uint64_t>(extra) != Get<uint64_t>(extra + 8)) return false;
    entry->bytes = Get<uint64_t>(extra);
    extra += 16;
  }
  if (wants_header) entry->header_at = Get<uint64_t>(extra);
  return wants_bytes || stored_bytes == entry->bytes;
}

// One entry of at most `room` bytes.
bool ReadEntry(const uint8_t* at, uint64_t room, Entry* entry) {
  if (room < kEntryBytes || Get<uint32_t>(at) != kEntrySignature || Get<uint16_t>(at + 10) != 0) return false;
  const uint64_t name_bytes = Get<uint16_t>(at + 28);
  const uint64_t extra_bytes = Get<uint16_t>(at + 30);
  entry->length = kEntryBytes + name_bytes + extra_bytes + Get<uint16_t>(at + 32);
  if (entry->length > room) return false;
  entry->name = {reinterpret_cast<const char*>(at + kEntryBytes), name_bytes};
  entry->crc32 = Get<uint32_t>(at + 16);
  entry->bytes = Get<uint32_t>(at + 24);
  entry->header_at = Get<uint32_t>(at + 42);
  return TakeZip64(at + kEntryBytes + name_bytes, extra_bytes, Get<uint32_t>(at + 20), entry);
}

// Where the entry's data begins, by its local header, which must be of the same name. Headers begin at `begin` or
// later, data ends at `end` or sooner.
bool FindData(const uint8_t* image, uint64_t begin, uint64_t end, const Entry& entry, uint64_t* data_at) {
  if (entry.header_at < begin || entry.header_at > end || end - entry.header_at < kLocalBytes) return false;
  const uint8_t* local = image + entry.header_at;
  const uint64_t name_bytes = Get<uint16_t>(local + 26);
  const uint64_t length = kLocalBytes + name_bytes + Get<uint16_t>(local + 28);
  const uint64_t room = end - entry.header_at;
  if (Get<uint32_t>(local) != kLocalSignature || Get<uint16_t>(local + 8) != 0 || length > room) return false;
  if (entry.name != std::string_view(reinterpret_cast<const char*>(local + kLocalBytes), name_bytes)) return false;
  *data_at = entry.header_at + length;
  return entry.bytes <= end - *data_at;
}

// A name as it may be shown to people, whatever is in it.
std::string Printable(std::string_view name) {
  std::string text(name.substr(0, 200));
  for (char& c : text) {
    if (c < ' ' || c > '~') c = '?';
  }
  return text;
}

}  // namespace

std::string ParseImage(const void* image, uint64_t bytes, std::vector<ImageRecord>* records) {
  const auto* data = static_cast<const uint8_t*>(image);
  records->clear();
  Directory directory;
  if (std::string why = FindDirectory(data, bytes, &directory); !why.empty()) return why;
  records->reserve(directory.entries);
  uint64_t at = directory.at;
  uint64_t begin = 0;  // records lie in the directory's order, each behind the one before
  for (uint64_t i = 0; i < directory.entries; ++i) {
    Entry entry;
    ImageRecord record;
    if (!ReadEntry(data + at, directory.end - at, &entry)) {
      return "entry " + std::to_string(i) + " of its directory is none of a stored record";
    }
    if (!FindData(data, begin, directory.at, entry, &record.offset)) {
      return "entry " + std::to_string(i) + " of its directory names a record that is not there";
    }
    record.name = entry.name;
    record.bytes = entry.bytes;
    record.crc32 = entry.crc32;
    begin = record.offset + record.bytes;
    records->push_back(std::move(record));
    at += entry.length;
  }
  if (at != directory.end) return "its directory is longer than its records";
  return {};
}

std::string FindParts(const void* image, uint64_t bytes, std::vector<ImagePart>* parts) {
  const auto* data = static_cast<const uint8_t*>(image);
  Directory directory;
  if (std::string why = FindDirectory(data, bytes, &directory); !why.empty()) return why;
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> headers_at;
  Entry entry;
  for (uint64_t at = directory.at;; at += entry.length) {
    if (!ReadEntry(data + at, directory.end - at, &entry)) return "its directory names no pickle behind the storages";
    if (entry.name != kStorages + std::to_string(sizes.size())) break;
    sizes.push_back(entry.bytes);
    headers_at.push_back(entry.header_at);
  }
  ImageLayout layout;
  if (std::string why = PlanImage(sizes.data(), sizes.size(), 0, bytes, &layout); !why.empty()) return why;
  ImagePart pickle = {0, entry.bytes};
  if (entry.name != kPickle || layout.header_at != headers_at ||
      !FindData(data, layout.tail_at, directory.at, entry, &pickle.offset)) {
    return "its records do not lie as those of an image";
  }
  parts->assign(1, pickle);
  for (size_t i = 0; i < sizes.size(); ++i) parts->push_back({layout.data_at[i], sizes[i]});
  return {};
}

std::string CheckImage(const void* image, uint64_t bytes) {
  std::vector<ImageRecord> records;
  if (std::string why = ParseImage(image, bytes, &records); !why.empty()) return why;
  for (const ImageRecord& record : records) {
    const uint32_t found = Crc32(0, static_cast<const uint8_t*>(image) + record.offset, record.bytes);
    if (found == record.crc32) continue;
    return "record " + Printable(record.name) + " of " + std::to_string(record.bytes) + " bytes at " +
           std::to_string(record.offset) + " has changed: its CRC is not the one in the directory";
  }
  return {};
}

}  // namespace phalanx::checkpoint

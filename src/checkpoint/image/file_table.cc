#include "checkpoint/image/file_table.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/crc/crc32.h"
#include "base/utf8.h"
#include "checkpoint/image/image.h"
#include "checkpoint/image/image_bytes.h"

namespace phalanx::checkpoint {
namespace {

constexpr char kMagic[8] = {'P', 'H', 'X', 'F', 'I', 'L', 'E', 'S'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kVersionAt = 8;
constexpr uint64_t kCountAt = 12;
constexpr uint64_t kTableBytesAt = 16;
constexpr uint64_t kTableCrcAt = 24;
constexpr uint64_t kHeaderBytes = 32;

// Of an entry: offset, bytes, CRC, flags, length of the name; the name follows, with zeros up to a multiple of 8.
constexpr uint64_t kBytesAt = 8;
constexpr uint64_t kCrcAt = 16;
constexpr uint64_t kFlagsAt = 20;
constexpr uint64_t kNameBytesAt = 24;
constexpr uint64_t kEntryHeadBytes = 32;
constexpr uint32_t kCopiedElsewhere = 1;

// The entry at `at`, which ends before `end`. The reason where there is none.
std::string ParseEntry(const uint8_t* image, uint64_t end, uint64_t* at, FileOfImage* file) {
  if (end - *at < kEntryHeadBytes) return "its table of files is cut off";
  const uint8_t* const entry = image + *at;
  const auto name_bytes = Get<uint32_t>(entry + kNameBytesAt);
  const auto flags = Get<uint32_t>(entry + kFlagsAt);
  if (name_bytes > kFileOfImageNameMax || RoundUp(name_bytes, 8) > end - *at - kEntryHeadBytes) {
    return "its table of files has a name that is too long";
  }
  file->name.assign(reinterpret_cast<const char*>(entry + kEntryHeadBytes), name_bytes);
  file->offset = Get<uint64_t>(entry);
  file->bytes = Get<uint64_t>(entry + kBytesAt);
  file->crc32 = Get<uint32_t>(entry + kCrcAt);
  file->copied_elsewhere = (flags & kCopiedElsewhere) != 0;
  *at += kEntryHeadBytes + RoundUp(name_bytes, 8);
  if (!IsNameOfFile(file->name)) return "a file in it has no plain name";
  return flags > kCopiedElsewhere ? "'" + file->name + "' in it says what is not known here" : std::string();
}

}  // namespace

bool IsNameOfFile(std::string_view name) {
  const bool is_plain =
      !name.empty() && name.size() <= kFileOfImageNameMax && name[0] != '.' && std::ranges::none_of(name, [](char c) {
        return c == '/' || static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) == 0x7F;
      });
  return is_plain && name != "manifest.json" && ToUtf8(name) == name;
}

std::string ParseFileTable(const void* data, uint64_t bytes, std::vector<FileOfImage>* files) {
  files->clear();
  const auto* const image = static_cast<const uint8_t*>(data);
  if (bytes < kHeaderBytes || std::memcmp(image, kMagic, sizeof kMagic) != 0) return "it has no table of files";
  if (Get<uint32_t>(image + kVersionAt) != kVersion) return "its table of files is of another version";
  const auto count = Get<uint32_t>(image + kCountAt);
  const auto table_bytes = Get<uint64_t>(image + kTableBytesAt);
  if (count > kFilesOfImageMax || table_bytes > bytes - kHeaderBytes) return "its table of files is cut off";
  if (Crc32(0, image + kHeaderBytes, table_bytes) != Get<uint32_t>(image + kTableCrcAt)) {
    return "its table of files has a wrong CRC";
  }
  const uint64_t end = kHeaderBytes + table_bytes;
  uint64_t at = kHeaderBytes, free_from = RoundUp(end, kImagePage);
  std::set<std::string> names;
  std::vector<FileOfImage> found(count);
  for (FileOfImage& file : found) {
    if (std::string why = ParseEntry(image, end, &at, &file); !why.empty()) return why;
    if (!names.insert(file.name).second) return "two files in it are '" + file.name + "'";
    const bool is_within = file.offset <= bytes && file.bytes <= bytes - file.offset;
    if (file.bytes == 0 || file.offset < free_from || file.offset % kImagePage != 0 || !is_within) {
      return "'" + file.name + "' in it does not lie behind the file before and within the image";
    }
    free_from = file.offset + file.bytes;
  }
  if (at != end) return "its table of files is longer than what it names";
  *files = std::move(found);
  return {};
}

}  // namespace phalanx::checkpoint

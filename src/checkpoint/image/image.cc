#include "checkpoint/image/image.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "checkpoint/image/image_bytes.h"
#include "checkpoint/image/running_crc.h"

namespace phalanx::checkpoint {
namespace {

constexpr char kTensorPrefix[] = "archive/data/";
constexpr uint64_t kTensorPrefixBytes = sizeof kTensorPrefix - 1;
constexpr uint64_t kTailRoomBytes = 64 << 10;
constexpr uint64_t kFileBytesMax = uint64_t{1} << 56;
constexpr size_t kTailRecords = 7;
constexpr uint16_t kFlags = 0x0800;            // the name is UTF-8
constexpr uint16_t kFlagsDescriptor = 0x0808;  // and the sizes stand behind the data
constexpr uint16_t kMadeBy = 798;              // as torch's writer has it
constexpr uint16_t kNeeded = 45;

// Where one record lies, and how long the parts around its data are.
struct Place {
  uint64_t header_at = 0;
  uint64_t zip64_bytes = 0;
  uint64_t data_at = 0;
  uint64_t end = 0;  // behind its descriptor
};

// Of the zip64 block, with its own header; 0: there is none.
uint64_t Zip64Bytes(uint64_t header_at, uint64_t bytes) {
  const uint64_t fields = (bytes >= kMax32 ? 16 : 0) + (header_at >= kMax32 ? 8 : 0);
  return fields == 0 ? 0 : 4 + fields;
}

uint64_t DescriptorBytes(uint64_t header_at, uint64_t bytes) {
  if (bytes == 0) return 0;
  return bytes >= kMax32 || header_at >= kMax32 ? 24 : 16;
}

Place PlaceRecord(uint64_t header_at, uint64_t name_bytes, uint64_t bytes) {
  Place place;
  place.header_at = header_at;
  place.zip64_bytes = Zip64Bytes(header_at, bytes);
  place.data_at = RoundUp(header_at + kLocalBytes + name_bytes + place.zip64_bytes + 4, kImageAlignment);
  place.end = place.data_at + bytes + DescriptorBytes(header_at, bytes);
  return place;
}

// "archive/data/<key>", without an allocation.
class TensorName {
 public:
  explicit TensorName(uint64_t key) {
    std::memcpy(text_.data(), kTensorPrefix, kTensorPrefixBytes);
    std::array<char, 20> digits;
    size_t n = 0;
    for (; n == 0 || key != 0; key /= 10) digits[n++] = static_cast<char>('0' + key % 10);
    bytes_ = kTensorPrefixBytes;
    while (n > 0) text_[bytes_++] = digits[--n];
  }
  std::string_view view() const { return {text_.data(), bytes_}; }

 private:
  std::array<char, kTensorPrefixBytes + 20> text_;
  size_t bytes_ = 0;
};

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

uint64_t EntryBytes(uint64_t header_at, uint64_t name_bytes, uint64_t bytes) {
  return kEntryBytes + name_bytes + Zip64Bytes(header_at, bytes);
}

uint64_t TensorNameBytes(uint64_t key) {
  uint64_t digits = 1;
  for (; key >= 10; key /= 10) ++digits;
  return kTensorPrefixBytes + digits;
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
  uint64_t hash = 0xCBF29CE484222325;  // FNV-1a
  const auto add = [&hash](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte, value >>= 8) hash = (hash ^ (value & 0xFF)) * 0x100000001B3;
  };
  add(kImageAlignment);
  add(layout.file_bytes);
  for (const uint64_t bytes : layout.bytes) add(bytes);
  return hash;
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

// Local header, name, extra fields. The second size of its zip64 block is 0, as torch's writer leaves it.
void PutLocal(uint8_t* image, const Place& place, std::string_view name, uint64_t bytes) {
  uint8_t* at = image + place.header_at;
  const uint64_t extra_bytes = place.data_at - place.header_at - kLocalBytes - name.size();
  std::memset(at, 0, kLocalBytes);
  Put<uint32_t>(at, kLocalSignature);
  Put<uint16_t>(at + 6, bytes == 0 ? kFlags : kFlagsDescriptor);
  Put<uint16_t>(at + 26, static_cast<uint16_t>(name.size()));
  Put<uint16_t>(at + 28, static_cast<uint16_t>(extra_bytes));
  at += kLocalBytes;
  std::memcpy(at, name.data(), name.size());
  at += name.size();
  PutZip64(at, place.zip64_bytes, place.header_at, bytes, 0);
  at += place.zip64_bytes;
  const uint64_t padding = extra_bytes - place.zip64_bytes - 4;
  Put<uint16_t>(at, kPaddingId);
  Put<uint16_t>(at + 2, static_cast<uint16_t>(padding));
  std::memset(at + 4, 'Z', padding);
}

void PutDescriptor(uint8_t* image, const Place& place, uint64_t bytes, uint32_t crc32) {
  uint8_t* at = image + place.data_at + bytes;
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

// The zip64 end record, its locator and the end record, which the file ends with.
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

}  // namespace

std::string PlanImage(const uint64_t* record_bytes, uint64_t n, uint64_t pickle_bytes, uint64_t file_bytes,
                      ImageLayout* layout) {
  if (n > kImageRecordsMax) return std::to_string(n) + " records are more than an image may have";
  layout->bytes.assign(record_bytes, record_bytes + n);
  layout->header_at.resize(n);
  layout->data_at.resize(n);
  uint64_t at = 0;
  for (uint64_t i = 0; i < n; ++i) {
    if (record_bytes[i] > kFileBytesMax || at > kFileBytesMax) return "records of more bytes than a file may have";
    const Place place = PlaceRecord(at, TensorNameBytes(i), record_bytes[i]);
    layout->header_at[i] = place.header_at;
    layout->data_at[i] = place.data_at;
    at = place.end;
  }
  if (at > kFileBytesMax || pickle_bytes > kFileBytesMax) return "records of more bytes than a file may have";
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
    const Place place = PlaceRecord(layout.header_at[i], name.view().size(), bytes);
    PutLocal(image, place, name.view(), bytes);
    PutDescriptor(image, place, bytes, record_crc32[i]);
    entry = PutEntry(entry, place.header_at, name.view(), bytes, record_crc32[i]);
    if (bytes < kJoinFrom) continue;
    crc.Read(place.data_at);
    crc.Pass(bytes, record_crc32[i]);
  }
  uint64_t at = layout.tail_at;
  for (const Small& small : SmallRecords(tail)) {
    const uint64_t bytes = small.data.size();
    const Place place = PlaceRecord(at, small.name.size(), bytes);
    PutLocal(image, place, small.name, bytes);
    const uint32_t crc32 = bytes == 0 ? 0 : CopyCrc32(0, image + place.data_at, small.data.data(), bytes);
    PutDescriptor(image, place, bytes, crc32);
    entry = PutEntry(entry, place.header_at, small.name, bytes, crc32);
    at = place.end;
  }
  std::memset(image + at, 0, directory_at - at);
  PutEnding(entry, layout.file_bytes - kEndingBytes, directory_at, layout.bytes.size() + kTailRecords);
  crc.Read(layout.file_bytes);
  return crc.value();
}

}  // namespace phalanx::checkpoint

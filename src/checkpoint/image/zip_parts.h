// What stands around the data of a stored record in a zip file of torch's, and behind all of them, part by part:
// docs/formats/checkpoint-image.md. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace phalanx::checkpoint {

// Where one record lies, and how long the parts around its data are.
struct ZipPlace {
  uint64_t header_at = 0;
  uint64_t zip64_bytes = 0;  // of the zip64 block, with its own header; 0: there is none
  uint64_t data_at = 0;      // a multiple of kImageAlignment
  uint64_t end = 0;          // behind its descriptor
};

ZipPlace PlaceRecord(uint64_t header_at, uint64_t name_bytes, uint64_t bytes);

// Of the record's entry in the directory.
uint64_t EntryBytes(uint64_t header_at, uint64_t name_bytes, uint64_t bytes);

// From the local header to the data: `place.data_at - place.header_at` bytes at `at`.
void PutLocal(uint8_t* at, const ZipPlace& place, std::string_view name, uint64_t bytes);

// From the data's end to `place.end`: nothing of a record without bytes.
void PutDescriptor(uint8_t* at, const ZipPlace& place, uint64_t bytes, uint32_t crc32);

// Behind what it has written, EntryBytes further.
uint8_t* PutEntry(uint8_t* at, uint64_t header_at, std::string_view name, uint64_t bytes, uint32_t crc32);

// A record that is written whole.
struct SmallRecord {
  std::string_view name;
  std::string_view data;
};

// How far the records go, and how long their entries are.
struct ZipSpan {
  uint64_t end = 0;
  uint64_t entries_bytes = 0;

  void Add(uint64_t name_bytes, uint64_t bytes);
};

// From its local header, which is to stand at `header_at` of the file, to behind its descriptor, which is returned; and
// its entry at *entry, which is put behind that.
uint8_t* PutRecord(uint8_t* at, uint64_t header_at, const SmallRecord& record, uint8_t** entry);

// The zip64 end record, its locator and the end record, which the file ends with: kEndingBytes.
void PutEnding(uint8_t* at, uint64_t end64_at, uint64_t directory_at, uint64_t entries);

}  // namespace phalanx::checkpoint

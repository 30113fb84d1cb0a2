// The image of a rank's state: byte for byte the zip file that torch.save would be content with, its tensor records
// first, at places that depend on their sizes alone. docs/formats/checkpoint-image.md. Everything here is pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc/crc32.h"

namespace phalanx::checkpoint {

constexpr uint64_t kImageAlignment = 64;  // of each record's data
constexpr uint64_t kImagePage = 4096;     // of the file's size
constexpr uint64_t kImageRecordsMax = 1 << 24;
constexpr uint64_t kImageBytesMax = uint64_t{1} << 56;

// The sentence for so many records, which are more than kImageRecordsMax.
std::string TooManyRecords(uint64_t n);

// Where everything of an image lies. The same sizes and the same file size: the same layout, from save to save.
struct ImageLayout {
  std::vector<uint64_t> bytes;      // of the records archive/data/0, archive/data/1, ..
  std::vector<uint64_t> header_at;  // their local headers
  std::vector<uint64_t> data_at;
  uint64_t tail_at = 0;  // behind the last of them
  uint64_t file_bytes = 0;
  uint64_t hash = 0;  // of the sizes and the file's size
};

// The layout for records of these sizes. `file_bytes` 0: a first plan, with room in the tail for a pickle of
// `pickle_bytes` to grow; else that of an earlier plan. The reason where there can be none, else empty.
std::string PlanImage(const uint64_t* record_bytes, uint64_t n, uint64_t pickle_bytes, uint64_t file_bytes,
                      ImageLayout* layout);

// What follows the tensor records.
struct ImageTail {
  std::string_view pickle;  // archive/data.pkl
  std::string_view info;    // archive/.phalanx/info
  std::string_view serialization_id;
};

// Whether the tail fits between the tensor records and the directory; the reason where it does not.
std::string TailFits(const ImageLayout& layout, const ImageTail& tail);

// Writes everything but the data of the tensor records, which is there already and has these CRCs, and returns the CRC
// of the whole image, `layout.file_bytes` long. The tail must fit.
uint32_t FinishImage(uint8_t* image, const ImageLayout& layout, const ImageTail& tail, const uint32_t* record_crc32);

struct ImageRecord {
  std::string name;
  uint64_t offset = 0;  // of its data
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // as the directory has it
};

// The records of a zip file as torch writes it: stored, one directory with its zip64 end, nothing behind that. Reads
// the directory and each local header, and believes nothing: every place it names is within the file. The reason where
// it is none, else empty.
std::string ParseImage(const void* image, uint64_t bytes, std::vector<ImageRecord>* records);

struct ImagePart {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// What a loader looks for: the pickle and, behind it, the storages in order. Reads the directory alone, and computes
// from it where the storages lie: each page of a file that is read for the first time takes microseconds. So it is for
// files of PlanImage only, and says of all others why they are none.
std::string FindParts(const void* image, uint64_t bytes, std::vector<ImagePart>* parts);

// As ParseImage, and reads every byte: the reason where a record does not have the CRC that it should.
std::string CheckImage(const void* image, uint64_t bytes);

}  // namespace phalanx::checkpoint

// A file that calls itself an image, of either layout: whatever it says, no record lies outside of it, and reading it
// all stays within. The CRC of a safetensors header is not compared before the header is taken apart.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "checkpoint/image/image.h"
#include "checkpoint/image/safetensors.h"

namespace {

using phalanx::checkpoint::ImagePart;
using phalanx::checkpoint::ImageRecord;

void AllWithin(const std::vector<ImageRecord>& records, size_t size) {
  uint64_t behind = 0;
  for (const ImageRecord& record : records) {
    if (record.offset < behind || record.offset > size || record.bytes > size - record.offset) std::abort();
    behind = record.offset + record.bytes;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<ImageRecord> records;
  std::string why = phalanx::checkpoint::ParseImage(data, size, &records);
  AllWithin(records, size);
  std::vector<ImagePart> parts;
  if (phalanx::checkpoint::FindParts(data, size, &parts).empty()) {
    for (const ImagePart& part : parts) {
      if (part.offset > size || part.bytes > size - part.offset) std::abort();
    }
  }
  if (phalanx::checkpoint::CheckImage(data, size).empty() && !why.empty()) std::abort();

  std::string info;
  why = phalanx::checkpoint::ParseSafetensors(data, size, &records, &info);
  AllWithin(records, size);
  if (why.empty() && (records.empty() || records.back().offset + records.back().bytes != size)) std::abort();
  if (phalanx::checkpoint::CheckSafetensors(data, size).empty() && !why.empty()) std::abort();
  return 0;
}

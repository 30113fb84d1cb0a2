// An image that says which files it holds: whatever it says, none lies outside of it or over another, and each has a
// plain name of its own. The CRC of the table is set right before it is taken apart, or little would come behind it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/image/file_table.h"
#include "checkpoint/image/image_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using phalanx::checkpoint::FileOfImage;
  std::vector<uint8_t> image(data, data + size);
  if (size >= 32) {
    const auto table = std::min<uint64_t>(phalanx::checkpoint::Get<uint64_t>(image.data() + 16), size - 32);
    phalanx::checkpoint::Put<uint32_t>(image.data() + 24, phalanx::Crc32(0, image.data() + 32, table));
  }
  std::vector<FileOfImage> files;
  if (!phalanx::checkpoint::ParseFileTable(image.data(), size, &files).empty()) {
    if (!files.empty()) std::abort();
    return 0;
  }
  uint64_t behind = 32;
  std::set<std::string> names;
  for (const FileOfImage& file : files) {
    if (file.offset < behind || file.offset > size || file.bytes > size - file.offset) std::abort();
    if (!phalanx::checkpoint::IsNameOfFile(file.name) || !names.insert(file.name).second) std::abort();
    behind = file.offset + file.bytes;
  }
  return 0;
}

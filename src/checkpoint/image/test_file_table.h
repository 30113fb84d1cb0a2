// Images that hold files, for tests: as python/phalanx/checkpoint/formats/several.py writes them, whatever they say.
#pragma once

#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/image/file_table.h"
#include "checkpoint/image/image_bytes.h"

namespace phalanx::checkpoint {

// `bytes` long; what lies in the files is zeros.
inline std::string ImageOfFiles(const std::vector<FileOfImage>& files, uint64_t bytes) {
  const auto put = [](std::string& to, auto value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); };
  std::string table;
  for (const FileOfImage& file : files) {
    put(table, file.offset);
    put(table, file.bytes);
    put(table, file.crc32);
    put(table, uint32_t{file.copied_elsewhere});
    put(table, static_cast<uint32_t>(file.name.size()));
    put(table, uint32_t{0});
    table += file.name;
    table.resize((table.size() + 7) / 8 * 8);
  }
  std::string image = "PHXFILES";
  put(image, uint32_t{1});
  put(image, static_cast<uint32_t>(files.size()));
  put(image, uint64_t{table.size()});
  put(image, Crc32(0, table.data(), table.size()));
  put(image, uint32_t{0});
  image += table;
  image.resize(bytes);
  return image;
}

}  // namespace phalanx::checkpoint

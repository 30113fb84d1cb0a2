// The table at the beginning of an image that holds named files (docs/formats/checkpoint-image.md, "Several files").
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::checkpoint {

constexpr size_t kFilesOfImageMax = 4'096;
constexpr size_t kFileOfImageNameMax = 200;  // bytes; storage adds the step's name and some more

struct FileOfImage {
  std::string name;
  uint64_t offset = 0;  // in the image, a whole number of pages
  uint64_t bytes = 0;   // 1 or more
  uint32_t crc32 = 0;
  bool copied_elsewhere = false;  // another rank's copy of it is the one that goes to storage
};

// A name that such a file may have: plain, short, printable in UTF-8's sense of no control character, and none that a
// step's folder has for something else.
bool IsNameOfFile(std::string_view name);

// Believes nothing: names are plain and different, files lie behind the table, in order, within the image, and
// overlap nowhere. The reason where it is none, else empty.
std::string ParseFileTable(const void* image, uint64_t bytes, std::vector<FileOfImage>* files);

}  // namespace phalanx::checkpoint

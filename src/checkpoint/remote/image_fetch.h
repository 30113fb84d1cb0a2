// Reads an image from the memory of other nodes into a file here (docs/formats/image-read.md). Blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/remote/byte_ranges.h"
#include "checkpoint/remote/image_request.h"

namespace phalanx::checkpoint {

// A node that lends the image.
struct ImageSource {
  std::string address;  // textual IP
  uint16_t port = 0;
  ImageKey key{};
};

// Into `path`, a new file, mode 0600, whose memory is reserved first: `bytes_max` at most. In parts, from all sources
// at once that hold the same bytes; where one fails another is asked. `stop_fd`: once that can be read the work is
// given up. OK: the file is what one of them lends, byte for byte. Else it is removed, and the error says what the last
// said.
Status FetchImage(const ImageName& image, std::vector<ImageSource> sources, const std::string& path, uint64_t bytes_max,
                  int stop_fd);

// A file with parts of an image.
struct PartsFile {
  std::string path;
  bool is_there = false;  // it has others; else it is made
};

// Only these parts of it, up to its end, into the same places of a file as long as the image. Memory is reserved for
// what is read alone. OK: each part is what one of them lends. Else a file that was made is removed, and one that was
// there has what it had. Cancelled where one that is to be there is gone.
Status FetchRanges(const ImageName& image, std::vector<ImageSource> sources, const PartsFile& to,
                   const ByteRanges& ranges, uint64_t bytes_max, int stop_fd);

}  // namespace phalanx::checkpoint

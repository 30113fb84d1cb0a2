// The CRC of a file's bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace phalanx::checkpoint {

// Of the first `bytes` of the file `fd`, which is called `path`, by up to so many threads. Blocks for as long as
// storage takes: every byte is read, into a block of our own, which for a file in memory costs less than to map it and
// unmap it again. DataLoss where it is shorter.
StatusOr<uint32_t> FileCrc(int fd, const std::string& path, uint64_t bytes, size_t threads);

}  // namespace phalanx::checkpoint

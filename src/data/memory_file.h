// Bytes as a file, for fuzzers.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "data/in_file.h"

namespace phalanx::data {

inline InFile MemoryFile(const char* name, const void* data, size_t bytes, uint64_t file_bytes) {
  Fd fd(memfd_create(name, MFD_CLOEXEC));
  PHX_CHECK(fd.valid() && write(fd.get(), data, bytes) == static_cast<ssize_t>(bytes), "no file in memory");
  PHX_CHECK(ftruncate(fd.get(), static_cast<off_t>(file_bytes)) == 0, "no room in memory");
  Result<InFile> file = InFile::Of(std::move(fd), name);
  PHX_CHECK(file.ok(), "no file in memory");
  return *std::move(file);
}

}  // namespace phalanx::data

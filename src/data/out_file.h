// A file on its way to its place: `<path>.writing`, locked, and removed with this unless it was moved.
#pragma once

#include <cstdint>
#include <string>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "data/result.h"

namespace phalanx::data {

class OutFile {
 public:
  // Empty, by the umask, over what a dead writer may have left there. Refused while another writer lives.
  static Result<OutFile> Create(const std::string& path);
  OutFile(OutFile&& other) noexcept;
  OutFile& operator=(OutFile&&) = delete;
  ~OutFile();

  // Room for so many bytes, so that a disk too small is noticed before anything is copied; file systems that cannot do
  // that are taken as they are.
  Result<Done> Reserve(uint64_t bytes);

  // `crc32`: of these bytes, as the caller knows it.
  Result<Done> Write(const void* data, uint64_t bytes, uint32_t crc32);
  Result<Done> Write(const void* data, uint64_t bytes) { return Write(data, bytes, Crc32(0, data, bytes)); }

  // On the disk, all of it.
  Result<Done> Sync();
  // To its place, over what is there. The folder is not synced.
  Result<Done> Place();

  uint64_t bytes() const { return bytes_; }
  uint32_t crc32() const { return crc32_; }

 private:
  OutFile(std::string path, Fd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  Result<Done> WriteAll(const void* data, uint64_t bytes);
  std::string draft() const { return path_ + ".writing"; }

  std::string path_;  // empty: moved
  Fd fd_;
  uint64_t bytes_ = 0;
  uint64_t begun_bytes_ = 0;  // what is on its way to the disk, so that Sync has little left to wait for
  uint32_t crc32_ = 0;
  Crc32Joiner joiner_;
};

// So that the names in the folder of `path` survive a crash. File systems that cannot do that are taken as they are.
Result<Done> SyncFolderOf(const std::string& path);

}  // namespace phalanx::data

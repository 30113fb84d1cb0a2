// A file that is read: whole pieces of it, or an error that names it.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "data/result.h"

namespace phalanx::data {

// "<path>: <call>: <text of errno>"
Error CallFailed(const std::string& path, const char* call, int error_number);

class InFile {
 public:
  // Of a regular file.
  static Result<InFile> Open(const std::string& path);
  // Of one that is open, which is called `path`.
  static Result<InFile> Of(Fd fd, const std::string& path);

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return bytes_; }

  // All of them; where the file has become shorter since, an error. Blocks for as long as storage takes.
  Result<Done> Read(uint64_t at, void* to, uint64_t bytes) const;

  // CRC-32 of a piece.
  Result<uint32_t> Crc(uint64_t at, uint64_t bytes) const;

  // "<path>: <what>"
  Error Wrong(const std::string& what) const { return {path_ + ": " + what}; }

 private:
  InFile(Fd fd, std::string path, uint64_t bytes) : fd_(std::move(fd)), path_(std::move(path)), bytes_(bytes) {}

  Fd fd_;
  std::string path_;
  uint64_t bytes_;
};

}  // namespace phalanx::data

#include "data/in_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "base/crc/crc32.h"

namespace phalanx::data {
namespace {

constexpr uint64_t kCrcBytes = uint64_t{128} << 10;  // what a core's cache keeps between the two passes

}  // namespace

Error CallFailed(const std::string& path, const char* call, int error_number) {
  return {path + ": " + call + ": " + std::strerror(error_number)};
}

Result<InFile> InFile::Open(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  return Of(std::move(fd), path);
}

Result<InFile> InFile::Of(Fd fd, const std::string& path) {
  const off_t end = lseek(fd.get(), 0, SEEK_END);  // fstat would bind us to a newer C library
  if (end < 0) return errno == ESPIPE ? Error{path + " is not a regular file"} : CallFailed(path, "lseek", errno);
  return InFile(std::move(fd), path, static_cast<uint64_t>(end));
}

Result<Done> InFile::Read(uint64_t at, void* to, uint64_t bytes) const {
  auto* out = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t n = pread(fd_.get(), out, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(path_, "read", errno);
    if (n == 0) return Wrong("it ends at byte " + std::to_string(at) + " now; somebody cuts it while it is read");
    out += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return Done{};
}

Result<uint32_t> InFile::Crc(uint64_t at, uint64_t bytes) const {
  std::vector<char> block(std::min(bytes, kCrcBytes));
  uint32_t crc = 0;
  while (bytes > 0) {
    const uint64_t piece = std::min<uint64_t>(bytes, block.size());
    PHX_TRY_DONE(Read(at, block.data(), piece));
    crc = Crc32(crc, block.data(), piece);
    at += piece;
    bytes -= piece;
  }
  return crc;
}

}  // namespace phalanx::data

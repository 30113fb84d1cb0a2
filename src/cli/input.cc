#include "cli/input.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "base/fd.h"

namespace phalanx::cli {
namespace {

constexpr size_t kChunkBytes = 256 << 10;

// 0 at the end.
StatusOr<size_t> ReadChunk(int fd, const std::string& name, std::vector<char>* chunk) {
  ssize_t n = -1;
  do {
    n = read(fd, chunk->data(), chunk->size());
  } while (n < 0 && errno == EINTR);
  if (n < 0) return ErrnoStatus(errno, name);
  return static_cast<size_t>(n);
}

Status WriteAll(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(STDOUT_FILENO, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "standard output");
    text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::string> ReadInput(const std::string& path, size_t max_bytes) {
  const bool is_standard = path == "-";
  const std::string name = is_standard ? "standard input" : path;
  Fd opened(is_standard ? -1 : open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  if (!is_standard && !opened.valid()) return ErrnoStatus(errno, name);
  const int fd = is_standard ? STDIN_FILENO : opened.get();
  std::string text;
  std::vector<char> chunk(kChunkBytes);
  while (true) {
    PHX_ASSIGN_OR_RETURN(const size_t n, ReadChunk(fd, name, &chunk));
    if (n == 0) return text;
    text.append(chunk.data(), n);
    if (text.size() > max_bytes) {
      return absl::OutOfRangeError(fmt::format("{}: more than the {} bytes that are read", name, max_bytes));
    }
  }
}

Status AnswerLines(const std::function<std::string(std::string_view line)>& answer, size_t max_line_bytes) {
  std::vector<char> chunk(kChunkBytes);
  std::string pending;  // of a line whose end has not come
  while (true) {
    PHX_ASSIGN_OR_RETURN(const size_t n, ReadChunk(STDIN_FILENO, "standard input", &chunk));
    std::string_view rest(chunk.data(), n);
    std::string answers;
    for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
      pending.append(rest.substr(0, end));
      answers += answer(pending) + "\n";
      pending.clear();
      rest.remove_prefix(end + 1);
    }
    pending.append(rest);
    if (n == 0 && !pending.empty()) answers += answer(pending) + "\n";
    PHX_RETURN_IF_ERROR(WriteAll(answers));
    if (n == 0) return absl::OkStatus();
    if (pending.size() > max_line_bytes) {
      return absl::OutOfRangeError(
          fmt::format("standard input: a line has more than the {} bytes that are read", max_line_bytes));
    }
  }
}

}  // namespace phalanx::cli

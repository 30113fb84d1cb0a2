#include "agent/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "base/clock.h"

namespace phalanx::agent {
namespace {

constexpr size_t kHeaderBytes = 64;
constexpr size_t kSlotBytes = 128;
constexpr int64_t kMaxPid = 1 << 22;  // PID_MAX_LIMIT of 64-bit Linux

uint64_t WordAt(const unsigned char* bytes, size_t offset) {
  uint64_t word = 0;
  memcpy(&word, bytes + offset, sizeof word);
  return word;
}

int64_t TimeAt(const unsigned char* bytes, size_t offset, int64_t now_ns) {
  const auto time = static_cast<int64_t>(WordAt(bytes, offset));
  return time >= 0 && time <= now_ns ? time : 0;
}

std::array<unsigned char, kHeaderBytes> Header(uint64_t epoch, uint32_t slots) {
  std::array<unsigned char, kHeaderBytes> header{};
  const uint32_t version = 1;
  const uint32_t slot_bytes = kSlotBytes;
  memcpy(header.data(), "PHXBOARD", 8);
  memcpy(header.data() + 8, &version, 4);
  memcpy(header.data() + 12, &slot_bytes, 4);
  memcpy(header.data() + 16, &slots, 4);
  memcpy(header.data() + 24, &epoch, 8);
  return header;
}

// A file of our own under a name nobody can guess, 0600.
StatusOr<std::pair<std::string, Fd>> CreateIn(const std::string& dir, size_t bytes) {
  uint64_t random[2] = {};
  if (getrandom(random, sizeof random, 0) != sizeof random) return ErrnoStatus(errno, "getrandom");
  std::string path = fmt::format("{}/phalanx-{:016x}{:016x}.board", dir, random[0], random[1]);
  Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, path);
  // Allocated now: a rank that writes to a hole of a full file system dies of SIGBUS.
  if (const int rc = posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); rc != 0) {
    unlink(path.c_str());
    return ErrnoStatus(rc, path);
  }
  return std::make_pair(std::move(path), std::move(file));
}

}  // namespace

BoardSlot ParseBoardSlot(const void* bytes, size_t size, int64_t now_ns) {
  BoardSlot slot;
  if (size < kSlotBytes) return slot;
  std::array<unsigned char, kSlotBytes> copy;
  memcpy(copy.data(), bytes, copy.size());
  const auto pid = static_cast<int64_t>(WordAt(copy.data(), 0));
  const uint64_t phase = WordAt(copy.data(), 48);
  const auto steps = static_cast<int64_t>(WordAt(copy.data(), 8));
  if (pid <= 0 || pid > kMaxPid || phase > static_cast<uint64_t>(RankPhase::kExiting) || steps < 0) return slot;
  slot.pid = pid;
  slot.optimizer_steps = static_cast<uint64_t>(steps);
  const auto step = static_cast<int64_t>(WordAt(copy.data(), 16));
  slot.step = step >= 0 ? step : -1;
  slot.changed_ns = TimeAt(copy.data(), 24, now_ns);
  slot.started_ns = TimeAt(copy.data(), 32, now_ns);
  slot.first_step_ns = TimeAt(copy.data(), 40, now_ns);
  slot.phase = static_cast<RankPhase>(phase);
  return slot;
}

StatusOr<std::unique_ptr<Board>> Board::Create(uint64_t epoch, int slots, const std::string& fallback_dir) {
  const size_t bytes = kHeaderBytes + static_cast<size_t>(slots) * kSlotBytes;
  auto created = CreateIn("/dev/shm", bytes);
  if (!created.ok()) created = CreateIn(fallback_dir, bytes);
  if (!created.ok()) return created.status();
  auto [path, file] = *std::move(created);
  std::unique_ptr<Board> board(new Board(std::move(path), std::move(file), slots));
  const auto header = Header(epoch, static_cast<uint32_t>(slots));
  if (pwrite(board->file_.get(), header.data(), header.size(), 0) != static_cast<ssize_t>(header.size())) {
    return ErrnoStatus(errno, board->path_);
  }
  return board;
}

Board::Board(std::string path, Fd file, int slots)
    : path_(std::move(path)), file_(std::move(file)), last_(static_cast<size_t>(slots)) {}

Board::~Board() { unlink(path_.c_str()); }

BoardSlot Board::Read(int slot) {
  const auto index = static_cast<size_t>(slot);
  if (slot < 0 || index >= last_.size()) return {};
  std::array<unsigned char, kSlotBytes> bytes{};
  const ssize_t n = pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(kHeaderBytes + index * kSlotBytes));
  const BoardSlot read = ParseBoardSlot(bytes.data(), n > 0 ? static_cast<size_t>(n) : 0, MonotonicNs());
  BoardSlot& last = last_[index];
  if (read.pid == last.pid && read.optimizer_steps < last.optimizer_steps) return last;
  return last = read;
}

}  // namespace phalanx::agent

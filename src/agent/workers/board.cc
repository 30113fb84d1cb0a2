#include "agent/workers/board.h"

#include <endian.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/clock.h"

namespace phalanx::agent {
namespace {

constexpr char kNamePrefix[] = "phalanx-board-";
constexpr int64_t kStaleS = 60;

constexpr char kMagic[8] = {'P', 'H', 'X', 'B', 'O', 'A', 'R', 'D'};
constexpr uint32_t kVersion = 5;
constexpr size_t kHeaderBytes = 64;
constexpr size_t kSlotBytes = 192;
constexpr size_t kSlotWords = 16;
constexpr off_t kRescaleAt = 40;
constexpr off_t kNodeLeaves = 48;
constexpr size_t kLockAt = 128;
constexpr int kSlotsMax = 1 << 16;
constexpr int64_t kPidMax = 1 << 22;  // the kernel's own limit

void PutU32(std::string& bytes, size_t at, uint32_t value) {
  value = htole32(value);
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

void PutI64(std::string& bytes, size_t at, int64_t value) {
  const uint64_t word = htole64(static_cast<uint64_t>(value));
  std::memcpy(bytes.data() + at, &word, sizeof word);
}

// Header and slots that nobody has taken.
std::string FreshBoard(uint64_t epoch, int slots, int64_t redo_until) {
  std::string bytes(kHeaderBytes + kSlotBytes * static_cast<size_t>(slots), '\0');
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  PutU32(bytes, 8, kVersion);
  PutU32(bytes, 12, kSlotBytes);
  PutU32(bytes, 16, static_cast<uint32_t>(slots));
  PutI64(bytes, 24, static_cast<int64_t>(epoch));
  PutI64(bytes, 32, redo_until);
  for (int slot = 0; slot < slots; ++slot) {
    const size_t at = kHeaderBytes + kSlotBytes * static_cast<size_t>(slot);
    PutI64(bytes, at + 16, -1);
    PutI64(bytes, at + 56, -1);
  }
  return bytes;
}

std::string RandomName() {
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t n = getrandom(&random, sizeof random, 0);  // so few bytes always come whole
  return fmt::format("{}{:016x}", kNamePrefix, random);
}

StatusOr<std::pair<std::string, Fd>> CreateIn(const std::string& dir, const std::string& bytes) {
  const std::string path = fmt::format("{}/{}", dir, RandomName());
  Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, fmt::format("creating {}", path));
  flock(file.get(), LOCK_EX | LOCK_NB);  // ours alone: tells the living from what RemoveStale may remove
  // Written, not only sized: a full /dev/shm says so here and not by SIGBUS in a rank.
  const ssize_t n = pwrite(file.get(), bytes.data(), bytes.size(), 0);
  if (n == static_cast<ssize_t>(bytes.size())) return std::pair{path, std::move(file)};
  const int error = n < 0 ? errno : ENOSPC;
  unlink(path.c_str());
  return ErrnoStatus(error, fmt::format("writing {}", path));
}

int64_t TimeOrNever(uint64_t ns, int64_t now_ns) {
  return ns <= static_cast<uint64_t>(now_ns) ? static_cast<int64_t>(ns) : 0;
}

}  // namespace

BoardSlot ParseBoardSlot(const void* bytes, size_t size, int64_t now_ns) {
  BoardSlot slot;
  if (size < kSlotBytes) return slot;
  std::array<uint64_t, kSlotWords> words;
  std::memcpy(words.data(), bytes, sizeof words);
  for (uint64_t& word : words) word = le64toh(word);
  const auto [pid, optimizer_steps, step, changed, started, first_step, phase, from_step, saving, saving_since,
              caught_up, hears_rescale, split_steps, own, waited, counts_on] = words;
  if (pid == 0 || pid > static_cast<uint64_t>(kPidMax)) return slot;
  slot.pid = static_cast<int64_t>(pid);
  if (optimizer_steps <= static_cast<uint64_t>(INT64_MAX)) slot.optimizer_steps = optimizer_steps;
  slot.step = std::max<int64_t>(-1, static_cast<int64_t>(step));
  slot.changed_ns = TimeOrNever(changed, now_ns);
  slot.started_ns = TimeOrNever(started, now_ns);
  slot.first_step_ns = TimeOrNever(first_step, now_ns);
  if (phase <= static_cast<uint64_t>(RankPhase::kExiting)) slot.phase = static_cast<RankPhase>(phase);
  slot.from_step = std::max<int64_t>(-1, static_cast<int64_t>(from_step));
  slot.saving_ns = TimeOrNever(saving, now_ns);  // no longer than the machine runs
  slot.saving_since_ns = TimeOrNever(saving_since, now_ns);
  slot.caught_up_ns = TimeOrNever(caught_up, now_ns);
  slot.hears_rescale = hears_rescale == 1 || hears_rescale > static_cast<uint64_t>(std::max<int64_t>(now_ns, 0));
  if (split_steps <= slot.optimizer_steps) slot.split_steps = split_steps;
  slot.own_ns = TimeOrNever(own, now_ns);  // as saving_ns
  slot.waited_ns = TimeOrNever(waited, now_ns);
  slot.counts_on = counts_on == 1;
  return slot;
}

Board::Board(std::string path, Fd file, int slots)
    : path_(std::move(path)), file_(std::move(file)), last_(static_cast<size_t>(slots)) {}

Board::~Board() { unlink(path_.c_str()); }

StatusOr<std::unique_ptr<Board>> Board::Create(uint64_t epoch, int slots, int64_t redo_until,
                                               const std::string& fallback_dir) {
  if (slots < 1 || slots > kSlotsMax) return absl::InvalidArgumentError(fmt::format("a rank board of {} slots", slots));
  const std::string bytes = FreshBoard(epoch, slots, redo_until);
  auto created = CreateIn("/dev/shm", bytes);
  if (!created.ok()) {
    const Status first = created.status();
    created = CreateIn(fallback_dir, bytes);
    if (!created.ok()) return WithContext(created.status(), Message(first));
  }
  return std::unique_ptr<Board>(new Board(std::move(created->first), std::move(created->second), slots));
}

void Board::RemoveStale(const std::string& dir) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error)) {
    if (entry.path().filename().string().rfind(kNamePrefix, 0) != 0) continue;
    const Fd file(open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat info {};
    if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) continue;
    // A young one may be on its way from creation to its lock.
    const bool old = UnixMs() / 1000 - info.st_mtime > kStaleS;
    if (old && flock(file.get(), LOCK_EX | LOCK_NB) == 0) unlink(entry.path().c_str());
  }
}

// A rank that sees the step is to see the rest: that comes last.
Status Board::AnnounceRescale(int64_t at_step, bool node_leaves) {
  const uint64_t leaves = htole64(uint64_t{node_leaves});
  const uint64_t step = htole64(static_cast<uint64_t>(std::max<int64_t>(1, at_step)));
  const bool written = pwrite(file_.get(), &leaves, sizeof leaves, kNodeLeaves) == sizeof leaves &&
                       pwrite(file_.get(), &step, sizeof step, kRescaleAt) == sizeof step;
  return written ? absl::OkStatus() : ErrnoStatus(errno, fmt::format("writing {}", path_));
}

off_t BoardLockAt(int slot) {
  return static_cast<off_t>(kHeaderBytes + kSlotBytes * static_cast<size_t>(slot) + kLockAt);
}

BoardSlot Board::Read(int slot) {
  if (slot < 0 || slot >= static_cast<int>(last_.size())) return BoardSlot{};
  std::array<char, kSlotBytes> bytes;
  const off_t at = static_cast<off_t>(kHeaderBytes + kSlotBytes * static_cast<size_t>(slot));
  const ssize_t n = pread(file_.get(), bytes.data(), bytes.size(), at);
  BoardSlot now = ParseBoardSlot(bytes.data(), n > 0 ? static_cast<size_t>(n) : 0, MonotonicNs());
  BoardSlot& last = last_[static_cast<size_t>(slot)];
  if (now.pid != 0 && now.pid == last.pid) {
    now.optimizer_steps = std::max(now.optimizer_steps, last.optimizer_steps);
    now.changed_ns = std::max(now.changed_ns, last.changed_ns);
    now.saving_ns = std::max(now.saving_ns, last.saving_ns);
  }
  last = now;
  return now;
}

}  // namespace phalanx::agent

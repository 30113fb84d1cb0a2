#include "agent/workers/death_watch.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "agent/workers/board.h"
#include "base/fd.h"
#include "base/signals_blocked.h"

namespace phalanx::agent {
namespace {

// Only the kernel looks at the word: a rank that truncates the file must not take the agent with it.
long Futex(void* word, int operation, uint32_t value) {
  return syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

bool IsHeld(uint32_t word) {
  return (word & FUTEX_TID_MASK) != 0 && (word & FUTEX_WAITERS) != 0 && (word & FUTEX_OWNER_DIED) == 0;
}

}  // namespace

struct DeathWatch::Lock {
  Fd file;
  off_t at = 0;
  char* page = nullptr;
  uint32_t held = 0;  // what the word is while the rank lives

  std::mutex mutex;
  EventLoop* loop = nullptr;  // null once nobody wants to know; guarded by `mutex`
  bool let_go = false;        // the thread waits no more; guarded by `mutex`
  std::function<void()> on_let_go;

  Lock() = default;
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (page != nullptr) munmap(page, PageBytes());
  }

  static size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }
  void* word() const { return page + static_cast<size_t>(at) % PageBytes(); }

  bool Open(const std::string& path, int slot) {
    file = Fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    at = BoardLockAt(slot);
    const std::optional<uint32_t> now = Read();
    if (!now || !IsHeld(*now)) return false;
    held = *now;
    const auto page_at = static_cast<off_t>(static_cast<size_t>(at) / PageBytes() * PageBytes());
    void* mapped = mmap(nullptr, PageBytes(), PROT_READ, MAP_SHARED, file.get(), page_at);
    if (mapped == MAP_FAILED) return false;
    page = static_cast<char*>(mapped);
    return true;
  }

  std::optional<uint32_t> Read() const {
    uint32_t now = 0;
    if (!file.valid() || pread(file.get(), &now, sizeof now, at) != sizeof now) return std::nullopt;
    return now;
  }

  // On the thread: returns when the word is another.
  void Wait() const {
    std::optional<uint32_t> now = held;
    while (now == held && (Futex(word(), FUTEX_WAIT, held) == 0 || errno == EINTR || errno == EAGAIN)) now = Read();
  }

  void Tell(const std::shared_ptr<Lock>& self) {
    const std::lock_guard<std::mutex> guard(mutex);
    let_go = true;
    if (loop == nullptr) return;
    loop->Post([self] {
      // Dropped on the loop's thread, which this is, or still wanted.
      const std::function<void()> tell = self->loop != nullptr ? self->on_let_go : nullptr;
      if (tell) tell();
    });
  }

  // The rank is gone, or nobody cares: the thread ends, whatever the word was. Where it has ended the word may be that
  // of the program that the rank executes now.
  void Drop() {
    {
      const std::lock_guard<std::mutex> guard(mutex);
      loop = nullptr;
      on_let_go = nullptr;
      if (let_go) return;
    }
    const uint32_t nobody = 0;
    if (pwrite(file.get(), &nobody, sizeof nobody, at) == sizeof nobody) Futex(word(), FUTEX_WAKE, INT_MAX);
  }
};

std::unique_ptr<DeathWatch> DeathWatch::Start(EventLoop& loop, const std::string& board_path, int slot,
                                              std::function<void()> on_let_go) {
  auto lock = std::make_shared<Lock>();
  if (!lock->Open(board_path, slot)) return nullptr;
  lock->loop = &loop;
  lock->on_let_go = std::move(on_let_go);
  const SignalsBlocked blocked;
  try {
    std::thread([lock] {
      pthread_setname_np(pthread_self(), "phx-death");
      lock->Wait();
      lock->Tell(lock);
    }).detach();  // nobody waits for it: it may wait for ever where the rank has spoilt the file
  } catch (const std::system_error&) {
    return nullptr;  // too many threads
  }
  return std::unique_ptr<DeathWatch>(new DeathWatch(std::move(lock)));
}

DeathWatch::~DeathWatch() { lock_->Drop(); }

}  // namespace phalanx::agent

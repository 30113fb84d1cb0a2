#include "agent/watch/sysfs_thread.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

namespace phalanx::agent::watch {
namespace {

constexpr int64_t kMostAsked = 2;

}  // namespace

struct SysfsThread::Shared {
  explicit Shared(SysfsPlace place) : root(place.sysfs_root), reader(std::move(place)) {}

  const std::string root;
  SysfsReader reader;             // the reading thread's
  std::function<void()> on_read;  // the loop's thread's; null: nobody listens

  std::mutex mutex;  // guards what follows
  std::condition_variable has_read;
  EventLoop* loop = nullptr;  // null: nobody listens
  std::vector<Batch> batches;
  std::string under_way;
  int64_t done = 0;
};

SysfsThread::SysfsThread(EventLoop& loop, SysfsPlace place, std::function<void()> on_read)
    : shared_(std::make_shared<Shared>(std::move(place))) {
  shared_->on_read = std::move(on_read);
  shared_->loop = &loop;
}

SysfsThread::~SysfsThread() {
  shared_->on_read = nullptr;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->loop = nullptr;
  }
  thread_.Abandon();
}

bool SysfsThread::Ask(bool scans) {
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    if (asked_ - shared_->done >= kMostAsked) return false;
  }
  ++asked_;
  thread_.Post([shared = shared_, scans] { ReadOnce(shared, scans); });
  return true;
}

void SysfsThread::Wait(int64_t longest_us) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  shared_->has_read.wait_for(lock, std::chrono::microseconds(longest_us), [this] { return shared_->done >= asked_; });
}

std::vector<Batch> SysfsThread::Take() {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return std::exchange(shared_->batches, {});
}

std::string SysfsThread::UnderWay() const {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  return shared_->under_way;
}

void SysfsThread::ReadOnce(const std::shared_ptr<Shared>& shared, bool scans) {
  Shared& s = *shared;
  const auto begins = [&s](const std::string& path) {
    const std::lock_guard<std::mutex> lock(s.mutex);
    s.under_way = path;
  };
  begins(s.root);
  if (scans) s.reader.ScanWhereDue();
  s.reader.Read(begins, [&s](Sample sample) {
    const Instant now = MonotonicMs();
    const std::lock_guard<std::mutex> lock(s.mutex);
    if (s.batches.empty() || s.batches.back().at != now) s.batches.push_back({now, {}});
    s.batches.back().readings.push_back(std::move(sample));
  });
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.under_way.clear();
  ++s.done;
  s.has_read.notify_one();
  if (s.loop == nullptr) return;
  s.loop->Post([shared] {
    if (shared->on_read) shared->on_read();
  });
}

}  // namespace phalanx::agent::watch

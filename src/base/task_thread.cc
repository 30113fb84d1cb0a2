#include "base/task_thread.h"

#include <pthread.h>

#include <deque>
#include <utility>

#include "base/thread.h"

namespace phalanx {

struct TaskThread::Shared {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;
  bool over = false;
};

TaskThread::~TaskThread() { Finish(); }

void TaskThread::Finish() {
  Close();
  if (thread_.joinable()) thread_.join();
}

void TaskThread::Abandon() {
  Close();
  if (thread_.joinable()) thread_.detach();
}

void TaskThread::Post(std::function<void()> task) {
  if (!shared_) {
    auto shared = std::make_shared<Shared>();
    StatusOr<std::thread> thread = StartThread([shared] { Serve(shared); });
    if (!thread.ok()) return task();
    shared_ = std::move(shared);
    thread_ = *std::move(thread);
    pthread_setname_np(thread_.native_handle(), name_.c_str());
  }
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->tasks.push_back(std::move(task));
  }
  shared_->wake.notify_one();
}

void TaskThread::Close() {
  if (!shared_) return;
  {
    const std::lock_guard<std::mutex> lock(shared_->mutex);
    shared_->over = true;
    shared_->tasks.clear();
  }
  shared_->wake.notify_one();
}

void TaskThread::Serve(const std::shared_ptr<Shared>& shared) {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock<std::mutex> lock(shared->mutex);
      shared->wake.wait(lock, [&] { return shared->over || !shared->tasks.empty(); });
      if (shared->over) return;
      task = std::move(shared->tasks.front());
      shared->tasks.pop_front();
    }
    task();
  }
}

}  // namespace phalanx

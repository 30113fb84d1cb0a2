// A thread for what blocks: storage, the filling of memory. Tasks run one after the other, in order of posting.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace phalanx {

class TaskThread {
 public:
  // The thread starts with its first task, with all signals blocked. `name`: at most 15 bytes.
  explicit TaskThread(std::string name) : name_(std::move(name)) {}
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;
  // Waits for the task under way; tasks behind it are not run.
  ~TaskThread();

  // One thread posts. The task's captures must outlive it, or be its own. Where the machine has no room for a thread
  // the task is run at once, by the caller; the next one tries again.
  void Post(std::function<void()> task);

  // As the destructor does, before it. What is posted later is not run.
  void Finish();

  // As the destructor does, but nobody waits: storage may be dead. The captures of the task under way must be its own.
  void Abandon();

 private:
  void Close();
  struct Shared;
  static void Serve(const std::shared_ptr<Shared>& shared);

  const std::string name_;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace phalanx

// A lock, a condition and threads, over the C library alone: what is loaded into a rank brings no C++ runtime along.
#pragma once

#include <pthread.h>
#include <time.h>

#include <cstdint>

namespace phalanx::checkpoint {

class Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  ~Mutex() { pthread_mutex_destroy(&mutex_); }

  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  friend class Condition;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

class Condition {
 public:
  Condition();
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  ~Condition() { pthread_cond_destroy(&condition_); }

  void Wait(Mutex& mutex) { pthread_cond_wait(&condition_, &mutex.mutex_); }
  // False where CLOCK_MONOTONIC has come to `deadline_ns`.
  bool WaitUntil(Mutex& mutex, int64_t deadline_ns) {
    const timespec deadline = {static_cast<time_t>(deadline_ns / 1'000'000'000),
                               static_cast<long>(deadline_ns % 1'000'000'000)};
    return pthread_cond_timedwait(&condition_, &mutex.mutex_, &deadline) == 0;
  }
  void WakeAll() { pthread_cond_broadcast(&condition_); }

 private:
  pthread_cond_t condition_;
};

// A thread that handles no signal, named `phx-ckpt`. False where the system gives none.
bool StartThread(void* (*body)(void*), void* argument, pthread_t* thread);
void JoinThread(pthread_t thread);

// Grows by one in a process with every fork: who remembers another number is a copy in a child. Counted from the first
// CountForks on.
unsigned ForksSoFar();
void CountForks();
// What a fork does in the child.
void ForgetInChild();

}  // namespace phalanx::checkpoint

#include "checkpoint/rank/thread.h"

#include <signal.h>
#include <sys/prctl.h>

#include <atomic>

// What ranks load shall run with the glibc of long ago. Since 2.34 these have a newer version as well, which would be
// taken otherwise; the old one is in all of them.
#if defined(PHALANX_IN_RANKS) && defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver pthread_condattr_setclock, pthread_condattr_setclock@GLIBC_2.3.3");
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");
#endif

namespace phalanx::checkpoint {
namespace {

std::atomic<unsigned> forks{0};
std::atomic<bool> counting{false};

struct Start {
  void* (*body)(void*);
  void* argument;
};

void* Run(void* start) {
  const Start own = *static_cast<Start*>(start);
  delete static_cast<Start*>(start);
  prctl(PR_SET_NAME, "phx-ckpt");
  return own.body(own.argument);
}

}  // namespace

Condition::Condition() {
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&condition_, &attributes);
  pthread_condattr_destroy(&attributes);
}

bool StartThread(void* (*body)(void*), void* argument, pthread_t* thread) {
  auto* start = new Start{body, argument};
  // A thread has the mask of its maker: it must never run, or be woken by, what the training program handles.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(thread, nullptr, Run, start);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error != 0) delete start;
  return error == 0;
}

void JoinThread(pthread_t thread) { pthread_join(thread, nullptr); }

unsigned ForksSoFar() { return forks.load(); }

void CountForks() {
  if (!counting.exchange(true)) pthread_atfork(nullptr, nullptr, ForgetInChild);
}

void ForgetInChild() { forks.fetch_add(1); }

}  // namespace phalanx::checkpoint

// Threads that serve no signal.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace phalanx {

// While it lives every signal is blocked on the thread that made it. A thread inherits the mask it is born with, so one
// started now never handles a signal: those are for the threads that expect them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

}  // namespace phalanx

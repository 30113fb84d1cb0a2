// Pipes whose ends no executed program inherits unless it is given them.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx {

struct Pipe {
  Fd reader;
  Fd writer;
};

inline StatusOr<Pipe> MakePipe() {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  return Pipe{Fd(fds[0]), Fd(fds[1])};
}

// A pipe's end; the other one keeps its own mode.
inline void DoNotBlock(const Fd& fd) { fcntl(fd.get(), F_SETFL, fcntl(fd.get(), F_GETFL) | O_NONBLOCK); }

}  // namespace phalanx

// The guard: a small process that outlives the agent by a moment and leaves none of its processes behind, grandchildren
// included, when the agent is killed (PDEATHSIG reaches direct children only).
//
// It holds one end of a socket whose other end only the agent has. When that end closes without a farewell it sends
// SIGKILL to every process group it was told of, then to each process of its user whose environment holds this node's
// mark (those that made a session of their own), until a look around finds none. It touches nothing else.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx::agent {

// Environment variable that every process of this node's agent carries; its value is the node id. The embedded master,
// which may outlive the agent, does not.
constexpr char kNodeMark[] = "PHALANX_NODE_MARK";

class Guard {
 public:
  // Forks the guard. Call it from main before any thread, gRPC object or signal mask.
  static StatusOr<Guard> Start(const std::string& node_id);

  Guard(Guard&& other) noexcept : pid_(std::exchange(other.pid_, 0)), socket_(std::move(other.socket_)) {}
  Guard& operator=(Guard&&) = delete;
  // The agent ends in order: the guard ends too and touches nothing.
  ~Guard();

  // Never blocks. A guard that has died is not replaced.
  void Add(pid_t process_group);
  void Remove(pid_t process_group);

  pid_t pid() const { return pid_; }

 private:
  Guard(pid_t pid, Fd socket) : pid_(pid), socket_(std::move(socket)) {}
  void Tell(char what, pid_t process_group);

  pid_t pid_ = 0;
  Fd socket_;
};

}  // namespace phalanx::agent

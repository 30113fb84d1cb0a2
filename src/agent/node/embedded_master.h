// The job's master as a child of the first phalanx-run: one command, no service, as torchrun. The child has its own
// session, so that it outlives this node when other nodes still train, and ends by itself some time after its last
// agent.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "agent/flags/config.h"
#include "base/env.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"

namespace phalanx::agent {

// Whether this node may host the master, and the address it would be bound to: that of the endpoint where it is one of
// this machine's, else (--rdzv-conf is_host=1, a name that leads here by way of a service) any. Any, too, where this
// machine's own name is a loopback address to itself alone (Debian's 127.0.1.1) and other nodes are to come. Of an
// endpoint with addresses of several machines, as a name for all nodes has, the one with HostsAddress() may.
// `endpoint_addresses` are those the endpoint's name resolves to (may be empty), `is_local` tells whether an address is
// this machine's. Pure.
struct Hosting {
  bool host = false;
  std::string bind_address;
  std::string dial_host;  // where this node reaches it
};
Hosting DecideHosting(const LaunchConfig& config, const std::vector<std::string>& endpoint_addresses,
                      const std::function<bool(const std::string&)>& is_local);

// That of several addresses of an endpoint whose machine hosts the master; the same on all nodes, whatever order they
// are told them in: the lowest that is no loopback, IPv4 before IPv6. "": there are none. Pure.
std::string HostsAddress(const std::vector<std::string>& endpoint_addresses);

// Whether other nodes are to reach this job by a name that may mean something else to them than to this machine. Pure.
bool OthersComeByName(const LaunchConfig& config);

// Where other nodes reach this one: `towards_master`, the address that its stream to the master leaves from; the first
// of `interfaces` that others can reach, where that is a loopback address only because the machine's own name is one.
// Pure.
std::string AdvertisedAddress(const LaunchConfig& config, const std::string& towards_master,
                              const std::vector<std::string>& interfaces);

// What the child says on its ready descriptor: "ready <port>" or "error <code> <sentence>".
struct MasterReady {
  uint16_t port = 0;
};
struct MasterNotReady {
  bool address_in_use = false;
  std::string sentence;
};
std::variant<MasterReady, MasterNotReady> ParseReadyLine(const std::string& line);

// Where it listens.
struct MasterPlace {
  std::string bind_address;
  uint16_t port = 0;  // 0: any free one
};

// How it comes to the job.
struct MasterBegin {
  bool resume = false;          // the new master takes up the job of the one before
  bool elected = false;         // ... which was elected in the place of another node's
  uint64_t term = 0;            // which master of the job it is, whatever its journal says
  uint64_t candidate_term = 0;  // above 0: it is to be elected, in the place of another node's
  std::string before_id;        // ... that is called this
  bool before_broke = false;    // ... and was not silent, but broke its stream a moment ago
};

class EmbeddedMaster {
 public:
  struct Events {
    std::function<void(uint16_t port)> on_ready;
    std::function<void(const MasterNotReady&)> on_not_ready;
    // It has ended after it was ready.
    std::function<void(const std::string& why)> on_ended;
  };

  EmbeddedMaster(EventLoop& loop, Reaper& reaper, Events events)
      : loop_(loop), reaper_(reaper), events_(std::move(events)) {}
  EmbeddedMaster(const EmbeddedMaster&) = delete;
  EmbeddedMaster& operator=(const EmbeddedMaster&) = delete;
  // Lets go of the child without ending it.
  ~EmbeddedMaster();

  // Starts `phalanx-master` from beside this executable, else from PATH; on_ready or on_not_ready follows.
  // Not while one runs.
  [[nodiscard]] Status Start(const LaunchConfig& config, const Environment& env, const MasterPlace& place,
                             const MasterBegin& begin);

  // A child that is to be elected ends, where it was not. So it does when this program ends.
  void LetGo();

  bool running() const { return pid_ > 0; }
  // It has said that it listens, and lives.
  bool serves() const { return running() && is_ready_; }
  // The last one did not end by itself.
  bool was_killed() const { return was_killed_; }
  // Runs `done` when the child has ended, or after `timeout_ms`.
  void AwaitEnd(int64_t timeout_ms, std::function<void()> done);

 private:
  void ReadReady();
  void OnEnded(const ProcessEnd& end);

  EventLoop& loop_;
  Reaper& reaper_;
  Events events_;
  pid_t pid_ = 0;         // 0: not started, or ended
  Fd ready_;              // closed when the child has spoken, and is held no longer
  bool is_held_ = false;  // it is to be elected, and ends when ready_ is closed before that
  std::string line_;
  bool is_ready_ = false;
  bool was_killed_ = false;
  std::function<void()> done_;
  EventLoop::TimerId done_timer_{};
};

}  // namespace phalanx::agent

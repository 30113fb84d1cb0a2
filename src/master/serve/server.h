// The job's master as a gRPC server: a thin shell around src/master/core/core.h.
//
// One completion queue, polled by the thread that calls Run(): that thread is the component's one sequence, and waits
// on the queue no longer than until something is due. The event record has a thread of its own and nothing waits for
// it. Every session is one stream; messages to it are queued, with one write outstanding, and a peer that reads too
// little is cancelled rather than waited for.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "master/core/core.h"
#include "master/serve/shell_decisions.h"
#include "wire/credentials.h"

namespace phalanx::master {

struct ServerOptions {
  std::vector<std::string> hosts = {"127.0.0.1"};  // addresses to bind to, and nothing else
  uint16_t port = 0;                               // 0: any free one, the same on all hosts
  std::string job_id;
  bool any_job_id = false;          // nodes may call it as they like; for those that prove that they belong to it
  std::optional<v1::JobSpec> spec;  // absent: the first node's counts
  // What this master shows, and who is believed to belong to the job. Nothing: connections are in clear alone.
  wire::Credentials credentials;
  // Nodes may also come in clear. Nothing but membership is served to them.
  bool plain_nodes = false;
  std::string state_dir;  // for the record and the journal; empty: none is kept
  bool resume = false;    // go on with the job that the journal there tells of, where it does
  // A master that was started by an agent ends this long after its last agent went; absent: it waits on.
  std::optional<int64_t> linger_ms;
  // Other nodes of the job may take it up, where it has several: who trained last has to agree to what is decided.
  bool succession = false;
  bool elected = false;  // the one that it goes on for was
  uint64_t term = 0;     // which master of the job it is, where its journal names no later one
  // The master of this term that is to be elected: it takes the job up from its agents. 0: it is the job's first
  // master, or goes on in the place of that.
  uint64_t candidate_term = 0;
  // Of the master before (Welcome.master_id): its record is gone on with where that is here, too.
  std::string before_id;
  // Its stream to the node that starts this one broke a moment ago, and was not silent before.
  bool before_broke = false;
  // It is elected; on the thread that calls Run().
  std::function<void()> on_elected;
  // Another one was elected, and has the job; on the same thread.
  std::function<void()> on_moved;
  // A connection that carries no call for so long is closed; an agent's always carries one.
  int idle_ms = kHandshakeMs;
  // So long it waits for what a platform has to say before a round begins. 0: it does not.
  int64_t await_platform_ms = 0;
  // Which of the masters that the platform gives the job one after the other: it makes room for a later one. Absent: it
  // is none of those.
  std::optional<uint32_t> epoch;
  bool verbose = false;    // one line on stderr for each decision
  std::string replay_log;  // folder for a log of all steps (docs/formats/replay-log.md); empty: none is kept
};

// As of a program that SIGTERM has ended: the job has not failed, and another master may take it up.
constexpr int kStoppedExit = 143;

class MasterServer {
 public:
  // Binds, locks the state directory and listens. AlreadyExists: the port is taken. FailedPrecondition: another master
  // serves from the state directory. InvalidArgument: the journal's job has another --nnodes. Where no replay log can
  // be made, that is an error of a job's first master, and a warning of those that take it up.
  static StatusOr<std::unique_ptr<MasterServer>> Open(ServerOptions options);
  MasterServer(const MasterServer&) = delete;
  MasterServer& operator=(const MasterServer&) = delete;
  ~MasterServer();

  uint16_t port() const;

  // Serves until the job is over and its last agent has gone, the linger time is over, another master has taken its
  // place, or Stop(). Returns the job's exit code. Where it was not over: kStoppedExit if this master was told to end,
  // 1 if all have left it.
  int Run();

  // Ends Run() soon: streams are cancelled, agents train on. Any thread; once.
  void Stop();
  // Likewise where this master has not been elected by then, or is not to be: its node does not want it. Any thread.
  void LetGo();

 private:
  class Impl;
  explicit MasterServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx::master

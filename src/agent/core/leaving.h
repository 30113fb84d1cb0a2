// How a node leaves its job once that is decided (Exit of agent/core/core.h), decided purely: storage takes the last
// checkpoint, other nodes read what they need of this one's memory, the master hears the last words, and a master of
// this node's own ends with it. src/agent/node/leaving.cc carries the actions out, in order, and brings the events.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace phalanx::agent::leaving {

// The master needs the last words of a node that ends (a moment on a live stream), and its own record needs a moment
// more.
constexpr int64_t kGoodbyeMs = 2'000;
// The last checkpoint of a job is waited for that long; --stop-timeout where the node was asked to go.
constexpr int64_t kStorageAtEndMs = 600'000;
// Files that are kept on storage to be written over: they only cost room.
constexpr int64_t kTidyMs = 10'000;

struct Options {
  int64_t stop_timeout_ms = 30'000;
  uint32_t max_nodes = 1;
  int64_t rescale_grace_ms = 30'000;  // so long it stays for those that read its memory
};

// --- events -------------------------------------------------------------------------------------------------------

struct Begun {
  int exit_code = 0;
  bool asked = false;        // by a signal
  bool attached = false;     // the master hears this node
  bool finished = false;     // the job has ended, as far as this node knows
  bool has_workers = false;  // they were to be started: processes, spares and a zygote may be there
  bool has_stream = false;   // to the master, be it broken
  bool has_master = false;   // one that this node started
  int64_t beat_interval_ms = 1'000;
};
struct StorageSettled {  // follows SettleStorage
  bool storing = false;  // something is on its way to storage
  std::string what;      // for people; empty: it only tidies up
  bool lending = false;  // other nodes may need what this one's memory holds
};
struct StorageIdle {};  // nothing is on its way any more, and nobody needs this node's memory
struct AskedAgain {};   // by one of --signals-to-handle
struct StreamBroken {   // to the master; nobody has closed it
  std::string storing;  // what is on its way to storage now
};
struct StreamClosed {};  // follows CloseStream
struct MasterEnded {     // follows AwaitMaster, also where it lives on
  bool killed = false;
};
struct MasterAnswered {};  // one that was started is ready, or never will be
struct Tick {
  std::string storing;  // what is on its way to storage now
};

using Event = std::variant<Begun, StorageSettled, StorageIdle, AskedAgain, StreamBroken, StreamClosed, MasterEnded,
                           MasterAnswered, Tick>;

// --- actions ------------------------------------------------------------------------------------------------------

// Checkpoints hear that the node goes. StorageSettled follows.
struct SettleStorage {
  bool leaving = false;  // asked to go: the newest saves in memory are on their way
  bool tidy = false;     // the job has ended well
};
struct Say {
  std::string text;
};
struct Warn {
  std::string text;
};
struct Beat {};
// The node's part in the job is over: its memory of checkpoints goes or stays, reports are written, spares end.
struct Depart {
  int exit_code = 0;
};
struct CloseStream {
  int64_t longest_ms = 0;
};
struct AwaitMaster {
  int64_t longest_ms = 0;
};
struct StartMaster {};  // again, from its journal. MasterAnswered follows
struct EndProgram {};

using Action = std::variant<SettleStorage, Say, Warn, Beat, Depart, CloseStream, AwaitMaster, StartMaster, EndProgram>;

struct Decision {
  Action action;
  std::string reason;
};

// --- state --------------------------------------------------------------------------------------------------------

enum class Phase { kHere, kSettling, kStoring, kClosing, kMasterEnds, kMasterStarts, kGone };

struct State {
  Options options;
  Phase phase = Phase::kHere;
  Begun begun;
  Instant leave_by = kNever;  // storage, or a master that starts, is waited for until then
  Instant lend_by = kNever;   // ... and where that has taken all, those that read this node's memory, so long
  bool lending_told = false;
  bool lend_over = false;  // they have had their time
  Instant next_beat = kNever;
};

std::vector<Decision> Step(State& state, const Event& event, Instant now);

// When the shell must send Tick; kNever where nothing is due.
Instant NextDeadline(const State& state);

}  // namespace phalanx::agent::leaving

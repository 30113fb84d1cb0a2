// What one node does, decided purely: same state, event and time give the same decisions on every machine. No I/O,
// clock, thread or randomness; src/agent/node/shell.h carries the actions out, in order, and brings the events.
//
// A node's life: connecting -> waiting -> (starting -> running -> ending)* -> leaving or finished. A round is begun
// only when the whole process groups of the last one are gone; a newer StartRound replaces one that still waits for
// that.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/core/master_search.h"
#include "base/clock.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// How long the kernel may take to end a killed group before its node is given up (a rank in uninterruptible sleep).
constexpr int64_t kUnkillableMs = 30'000;
// Spares are forked after the round's first step, or after this long if no step comes (inference never steps).
constexpr int64_t kSparesWithoutStepMs = 10'000;
// A line for the user each so often while something is waited for.
constexpr int64_t kWaitingNoticeMs = 30'000;
// A node that has not found its job by now says so: the endpoint may be wrong.
constexpr int64_t kFirstNoticeMs = 2'000;
// Clients that a store has turned away: so many are told of each store. A scanner must not fill the console.
constexpr uint64_t kRefusalsTold = 8;
// Dialling again: at first after this, then ever later; and where the job's size is known, so that its nodes come back
// soon after their master and a large job does not flood it.
constexpr int64_t kReconnectFirstMs = 100;
constexpr int64_t kReconnectMaxMs = 1'000;
constexpr int64_t kReconnectsPerLease = 15;
constexpr int64_t kReconnectLeastMaxMs = 200;
// The embedded master is started again at once when it dies; one that dies young so often is given up, or, where the
// job has other nodes, tried each so often. Young is who has not lived so long since it welcomed this node: a program
// that is broken may well serve for some seconds, and then come to what ends it.
constexpr int kMasterStartsInVain = 5;
constexpr int64_t kMasterGrownUpMs = 10'000;
constexpr int64_t kMasterTriedAgainMs = 10'000;
// A master that has ended is started again by its own node within this. Then the first of its successors would take its
// place, each further one so much later. Where it was silent, its lease is over by then.
constexpr int64_t kTakeOverMs = 250;
constexpr int64_t kTakeOverTurnMs = 1'000;
constexpr int64_t kTakeOverAgainMs = 8'000;
constexpr uint64_t kMostSuccessors = 3;
// Only so soon behind its last word does the end of a master's node say that it gave its word to nobody else.
constexpr int64_t kBrokeMs = 600;

struct CoreOptions {
  int local_world_size = 1;  // until Prepared
  uint32_t max_nodes = 1;
  int spares = 0;  // waiting spares to keep while steps run; until Prepared
  int64_t stop_timeout_ms = 30'000;
  int64_t restart_grace_ms = 500;
  int64_t rescale_grace_ms = 30'000;
  int64_t join_timeout_ms = 600'000;
  std::string node_id;
  // It may host the job's master, where that is lost: no other program was named to be it.
  bool succession = false;
  // Where the master is, for texts; until Begin.
  std::string master_address;
};

// --- events -------------------------------------------------------------------------------------------------------

struct Prepared {  // the node knows how many workers it has
  int local_world_size = 1;
  int spares = 0;
};
struct Begin {  // the master's place is known
  std::string master_address;
  uint64_t seen_epoch = 0;    // that memory of an earlier agent knows
  bool hosts_master = false;  // it is this node's own child
};
struct LinkUp {                // the stream is open; Hello is due
  std::string master_ip = {};  // where it leads to; empty: not known
};
struct LinkDown {
  std::string why;
  bool hopeless = false;  // who answers there will not let it in: a node that was never let in need not dial again
  bool silent = false;    // nothing was heard from there, not even that nobody listens
};
struct FromMaster {
  v1::MasterMessage message;
};
struct Warm {};  // as many spares wait as there are local ranks, or none ever will
struct WorkerStarted {
  int local_rank = 0;
  uint64_t epoch = 0;
  int64_t pid = 0;
};
struct WorkerStartFailed {
  int local_rank = 0;
  uint64_t epoch = 0;
  std::string why;
  int64_t unix_ms = 0;
};
struct WorkerStepped {  // its first step
  int local_rank = 0;
  uint64_t epoch = 0;
  int64_t step = 0;
  bool warm = false;  // it began with its imports done
  v1::Progress progress = {};
};
struct WorkerEnded {
  v1::WorkerExited exited;
};
struct GroupSignalled {  // follows EndGroup
  int local_rank = 0;
  uint64_t epoch = 0;
  bool withstands = false;  // something in the group lives on: it catches or ignores the signal
};
struct GroupGone {
  int local_rank = 0;
  uint64_t epoch = 0;
};
struct StopSignal {  // one of --signals-to-handle
  int signal = 0;
  bool wants_safe_point = false;  // some local rank hears of rescales
};
struct SafePointAsked {  // follows AskForSafePoint
  uint64_t epoch = 0;
  std::set<int> local_ranks;  // that hear of it
};
struct WorkerSafe {  // it has done what it wanted before the round ends, and waits for that
  int local_rank = 0;
  uint64_t epoch = 0;
};
struct StoreRefusedClient {  // the store has turned one away, or closed its connection
  uint64_t epoch = 0;
  std::string sentence;
};
struct PassSignal {  // SIGUSR1, SIGUSR2
  int signal = 0;
};
struct MasterChildFailed {  // the embedded master could not be started
  std::string why;
};
struct MasterChildDied {  // the embedded master has ended, and was not asked to
  std::string why;
};
struct CandidateReady {  // follows TakeOver: the master that is to be listens there
  std::string address;
};
struct Tick {};

using Event =
    std::variant<Prepared, Begin, LinkUp, LinkDown, FromMaster, Warm, WorkerStarted, WorkerStartFailed, WorkerStepped,
                 WorkerEnded, GroupSignalled, GroupGone, StopSignal, SafePointAsked, WorkerSafe, StoreRefusedClient,
                 PassSignal, MasterChildFailed, MasterChildDied, CandidateReady, Tick>;

// --- actions ------------------------------------------------------------------------------------------------------

struct Dial {  // open a stream there, and let go of what was open or dialled before; LinkUp or LinkDown follows
  std::string address;
  int64_t timeout_ms = 0;
};
struct HangUp {};              // end the stream that is open; LinkDown follows
struct SendHello {};           // with the core's seen epoch and LiveRound
struct SendBeat {              // with the board's steps; also tells the next store port
  uint64_t epoch = 0;          // whose board that is
  uint64_t store_refused = 0;  // as Beat has it
};
struct TellSteps {  // as SendBeat, to who looks
  uint64_t epoch = 0;
  bool ranks = false;  // and what each of them does
  uint64_t store_refused = 0;
};
struct Send {
  v1::AgentMessage message;
};
struct OpenStore {  // of this epoch, on the reserved socket; reserves the next one
  uint64_t epoch = 0;
  uint32_t port = 0;
  std::vector<std::string> member_addresses;
  uint32_t world_size = 0;
};
struct CloseStore {};
struct OpenBoard {
  uint64_t epoch = 0;
  int64_t highest_step = -1;  // that the master knows of earlier rounds; -1: none
};
struct StartWorker {
  v1::StartRound round;
  int local_rank = 0;
};
// SIGTERM (or `signal`) to the group of a worker of that round, also when only its children are left; GroupSignalled
// follows.
struct EndGroup {
  int local_rank = 0;
  uint64_t epoch = 0;
  int signal = 0;
};
struct KillGroup {
  int local_rank = 0;
};
struct SignalWorker {  // to the worker's own process, where it catches the signal
  int local_rank = 0;
  int signal = 0;
};
// Tells the ranks that hear of rescales to come to a safe point; SafePointAsked follows. With step 0 it only looks who
// hears of them.
struct AskForSafePoint {
  uint64_t epoch = 0;
  int64_t at_step = 0;
  bool node_leaves = false;
};
struct WantSpares {
  int count = 0;
};
struct KillStrays {};
struct RestartMaster {  // the embedded one, from its journal, at the address it had
  uint64_t term = 0;
};
struct TakeOver {     // a master that is to be elected, in the place of one that is lost; CandidateReady follows, or
  uint64_t term = 0;  // MasterChildDied
  std::string before_id;
  bool before_broke = false;  // it was not silent, and its stream broke a moment ago
};
// The master that is to be is not wanted: it ends where it was not elected. MasterChildDied follows when it has.
struct LetGo {};
// From now on, until Exit, whoever serves at the job's endpoint, or where the master before was, is told where the
// job's master is.
struct Herald {
  std::vector<std::string> addresses;
};
struct StopHerald {};  // another node hosts the master now
// Ranks that wait for an answer of the master, or will ask it, are told so, until a master has welcomed this node.
struct GiveUpAnswers {
  std::string why;
};
struct Say {
  std::string text;
};
struct ReportFailure {  // the failure box, and the agent's own error file
  v1::Finish finish;
};
struct Exit {
  int code = 0;
};

using Action =
    std::variant<Dial, HangUp, SendHello, SendBeat, TellSteps, Send, OpenStore, CloseStore, OpenBoard, StartWorker,
                 EndGroup, KillGroup, SignalWorker, AskForSafePoint, WantSpares, KillStrays, RestartMaster, TakeOver,
                 LetGo, Herald, StopHerald, GiveUpAnswers, Say, ReportFailure, Exit>;

struct Decision {
  Action action;
  std::string reason;
};

// --- state --------------------------------------------------------------------------------------------------------

enum class Phase { kConnecting, kWaiting, kRunning, kEnding, kLeaving, kFinished };

struct WorkerState {
  int64_t pid = 0;      // 0: on its way
  bool ended = false;   // its own process has been reaped
  bool doomed = false;  // told to end; its exit is no failure
  bool stepped = false;
  int exit_code = 0;
  int signal = 0;
};

struct CoreState {
  CoreOptions options;
  Phase phase = Phase::kConnecting;

  // The stream to the master.
  bool attached = false;      // Welcome came on the open stream
  bool was_attached = false;  // ... or on one before
  int64_t beat_interval_ms = 1'000;
  int64_t lease_ms = 0;
  Instant heard_at = 0;  // from the master
  bool gave_up = false;  // as it said nothing
  Instant next_beat = kNever;
  Instant next_dial = kNever;
  int64_t reconnect_ms = kReconnectFirstMs;
  int64_t reconnect_max_ms = kReconnectMaxMs;
  Instant lost_since = 0;        // when the node was last without a master, or began
  bool gave_up_answers = false;  // GiveUpAnswers was said, of this silence
  Instant next_notice = kNever;
  std::string link_why;                 // what the last dial came to
  std::string turned_away;              // by another job's master, on the stream that is open
  std::string master_gone;              // why nobody will answer any more; empty: somebody may
  Instant master_welcomed_at = kNever;  // when the embedded one that lives welcomed this node first
  int master_starts_in_vain = 0;
  Instant master_start_at = kNever;
  Instant endpoint_start_at = kNever;  // the same of the endpoint's, while this node would take another one's place

  MasterSearch search;               // where it is looked for
  bool up = false;                   // a stream is open
  std::string master_ip;             // where it leads to
  bool hosts_first_master = false;   // the master that it joined at first is its own child
  bool moved_on = false;             // the master that this node started is the job's no more
  bool candidate = false;            // the one that it has started is to be elected
  Instant take_over_at = kNever;     // it starts one then
  Instant broke_at = kNever;         // the stream to the last one broke, which was not silent; kNever: it was
  uint64_t take_overs = 0;           // so often since a master was there
  bool hung_up = false;              // what still comes on the stream counts no more
  bool dial_at_once = false;         // somebody has said where
  std::string lost_why;              // why the stream to the last one ended
  size_t dials = 0;                  // since the last one was lost
  std::vector<std::string> told_at;  // Herald's addresses

  bool warming = true;        // until Warm: a job that trains need not stop for this node yet
  bool told_warming = false;  // by the last Hello

  // Rounds.
  uint64_t seen_epoch = 0;
  std::optional<v1::StartRound> round;  // whose workers live here
  std::optional<v1::StartRound> next;   // begins when the groups of `round` are gone
  std::map<int, WorkerState> workers;   // of `round`; erased when the group is gone
  Instant kill_at = kNever;             // SIGKILL to groups that still are
  Instant give_up_at = kNever;          // groups that outlive SIGKILL
  Instant spares_at = kNever;
  bool any_warm = false;
  std::string failed;           // who failed in `round`; empty: nobody
  uint64_t store_refusals = 0;  // that the store of `seen_epoch` has told
  // What was reported of `round`: said again on a new stream, as its master may be another.
  std::vector<v1::WorkerExited> ended;
  std::optional<v1::FirstStep> first_step;
  std::optional<v1::SafePoint> safe_point;            // a rescale was announced, and this is what became of it
  std::set<int> awaited;                              // local ranks that were asked and are not at their safe point
  std::set<int> safe;                                 // those that are
  bool step_told = false;                             // they have been told the step behind which it is
  std::optional<v1::AnnounceRescale> next_announced;  // of `next`, which it waits for
  Instant leave_at = kNever;                          // leaving: the ranks are ended then, whatever they do

  // The story of the recovery that goes on, for one line when it is over.
  Instant trouble_since = 0;
  bool recovering = false;

  std::optional<v1::Finish> finish;
  int stop_signal = 0;
  bool exited = false;  // Exit was decided; nothing follows
};

std::vector<Decision> Step(CoreState& state, const Event& event, Instant now);

// When the shell must send Tick; kNever where nothing is due.
Instant NextDeadline(const CoreState& state);

// The round that this node runs, or begins when the old groups are gone; null: none. What a Hello tells.
const v1::StartRound* LiveRound(const CoreState& state);

// What a Hello tells of the job's masters: the term and the place of the last one that welcomed this node, and the last
// round that it was told. The shell adds what it has of its own.
void FillSuccession(const CoreState& state, v1::Hello& hello);
// The stream that is open leads to this node's own child.
bool HostsMaster(const CoreState& state, bool child_runs);

// "exit code 3" or "SIGKILL".
std::string DescribeEnd(int exit_code, int signal);

}  // namespace phalanx::agent

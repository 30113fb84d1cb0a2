// What the job does, decided purely: same state, event and time give the same decisions on every machine. No I/O,
// clock, thread or randomness. The shell (src/master/serve/server.h) brings the events and carries the decisions out,
// in order; the same code can run in a simulator or from a journal.
//
// A job's life: gathering <-> running -> (blaming ->) finished.
// * gathering: no round is live, because not enough nodes are there or because more may be about to come.
// * running: a round is live. It ends, and the next one begins in the same step, when a worker fails or the nodes
// change.
//   After a restart of the master, or a standstill of its process, members may be away for a while: their workers train
//   on, and nothing is decided about the round before they are back or given up.
// * blaming: the job has failed, but so far only ranks that suffered from another's end have reported; the one that
// died
//   first gets a moment to be heard.
//
// Bytes from the wire never come here unchecked: the shell bounds them (src/master/core/admit.h).
//
// Step lets the event's subject have its say (arrivals.h, departures.h, failures.h, rescale.h, progress.h, checks.h),
// then looks at what holds in the job's phase now (away.h, ending.h, failures.h, rounds.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/counted.h"
#include "elasticity/job_sizes.h"
#include "master/core/candidacy.h"
#include "master/core/round.h"
#include "master/rules/blame.h"
#include "master/rules/budget.h"
#include "master/rules/census.h"
#include "master/rules/switches.h"
#include "master/rules/voters.h"
#include "master/topics/checkpoints.h"
#include "master/topics/health.h"
#include "master/topics/shards.h"
#include "phalanx/v1/agent.pb.h"
#include "phalanx/v1/platform.pb.h"

namespace phalanx::master {

// A grown job is re-formed when no further node has come for the first, or the first waiting node has waited for the
// second.
constexpr int64_t kGrowQuietMs = 3'000;
constexpr int64_t kGrowLimitMs = 30'000;
// Nodes that trickle in cannot put off a start for longer than this, once there are enough.
constexpr int64_t kGatherLimitMs = 30'000;
constexpr int64_t kWaitingNoticeMs = 30'000;
// How long the first cause may be outrun by those that suffered from it, when the job is about to end.
constexpr int64_t kBlameMs = 1'000;
// A live round's time in checkpoints goes into the record as often as this; what a killed master has not noted is lost.
constexpr int64_t kSavingNoticeMs = 60'000;
// How long a planned change waits for ranks that want a safe point first, where nobody says otherwise.
constexpr int64_t kDefaultRescaleGraceMs = 30'000;
constexpr uint32_t kDefaultOlderSaveAfterLives = 2;
constexpr int64_t kDefaultJoinTimeoutMs = 600'000;
constexpr int64_t kDefaultLastCallMs = 300;
// The safe point's step lies so much ahead of the foremost rank: the word must be with all ranks before.
constexpr int64_t kSafePointAheadMs = 500;
// A job that is over waits so long for storage to take its last checkpoint.
constexpr int64_t kStoreAtEndMs = 600'000;
// ... and says so where that takes longer than this.
constexpr int64_t kStoreAtEndToldMs = 2'000;
// Who looks at a job waits so long for nodes to say how far they are; what they have said counts so long.
constexpr int64_t kLookMs = 300;
constexpr int64_t kLookKeptMs = 500;
// Spares that may wait beside a full job.
constexpr size_t kMaxSpares = 1'024;
// The journal learns at once what a job has come to; what all nodes would say again, it learns a millisecond later for
// each so many members: their number must not decide how often the whole state is written.
constexpr int64_t kMembersPerRememberMs = 100;
// Far from the end of the numbers, whatever a peer or a file claims.
constexpr uint64_t kMaxEpoch = uint64_t{1} << 48;

// What a job has whose flags say nothing. Wherever a JobSpec stands in the state or an event, it is as AdmitSpec
// (admit.h) leaves it.
v1::JobSpec DefaultSpec();

// How many of `there` nodes can train, where any world size will do.
size_t UsableNodes(const v1::JobSpec& spec, size_t there);

// --- events -------------------------------------------------------------------------------------------------------
// What agents say is what crosses the wire (agent.proto), as the door admits it (admit.h): bounded once, and used so.

// A stream begins. `message` is its Hello.
struct AgentAttached {
  uint64_t session = 0;  // numbers streams; never used twice, never 0
  v1::AgentMessage message;
  std::string peer_address;  // where the stream comes from; empty: not known

  const v1::Hello& hello() const { return message.hello(); }
};
// Any later message of that stream.
struct AgentSaid {
  uint64_t session = 0;
  v1::AgentMessage message;
};
struct AgentDetached {  // the stream is over; nothing more comes from this session
  uint64_t session = 0;
  std::string cause;  // "its stream broke"
};
struct Tick {};  // NextDeadline has come
// Follows Probe.
struct Probed {
  std::string node_id;
  Reach master = Reach::kSilent;  // where it was asked for
  Reach agent = Reach::kSilent;
};
// Somebody wants to know how far the job is: JobState::look.
struct LookedAt {
  bool ranks = false;  // each one of them
};

// Somebody says that a node which is left out has been mended.
struct LetIn {
  std::string node;  // its name, host name or address
};

// The platform that runs the nodes has told something (platform.h), as SaidByPlatform bounds it.
struct PlatformSaid {
  v1::PlatformMessage message;
};
struct PlatformGone {};  // its stream is over

using Event =
    std::variant<AgentAttached, AgentSaid, AgentDetached, Tick, Probed, LookedAt, LetIn, PlatformSaid, PlatformGone>;

// --- actions ------------------------------------------------------------------------------------------------------

// To the agent on that stream. The same message may go to many. Behind Refused and Finish the stream ends, and its
// AgentDetached follows as for any other: of a node that was refused it changes nothing.
struct Send {
  uint64_t session = 0;
  std::shared_ptr<const v1::MasterMessage> message;
};
// Cancels the stream at once: the node is believed dead, and no longer among the job's. The AgentDetached that follows
// changes nothing.
struct Drop {
  uint64_t session = 0;
};
// A row of the event record; the decision's reason is its text.
struct Record {
  using Value = std::variant<int64_t, std::string>;
  std::string kind;  // docs/formats/event-record.md lists them
  uint64_t epoch = 0;
  std::string node;
  int64_t rank = -1;
  std::vector<std::pair<std::string, Value>> detail;
};

// What a master that is started anew must know has changed: the state as it is behind this step goes to the journal.
// Building a large job's snapshot takes milliseconds that its ranks would wait for, so this comes behind what is sent;
// only where a new master that did not know would contradict what agents have been told, it comes before.
struct Remember {
  enum class When {
    kBehind,  // what is sent waits for nothing
    kBefore,  // ... waits until the journal has it: it outlives the master's process
    kSynced,  // ... until the disk has it: it outlives the machine
  };
  When when = When::kBehind;
};

// Connects to those ports of a node that has no stream, and closes at once what answers.
struct Probe {
  std::string node_id;
  std::string address;
  uint32_t master_port = 0;    // of the master that was its agent's child; 0: it is not asked for
  uint32_t presence_port = 0;  // of its agent; 0: as well
};

using Action = std::variant<Send, Drop, Record, Remember, Probe>;

// `reason` is a sentence that a user understands; it is also the text of what is sent.
struct Decision {
  Action action;
  std::string reason;
};

// --- state --------------------------------------------------------------------------------------------------------

// How the job ended.
struct Outcome {
  int32_t exit_code = 0;
  std::string reason;
  std::vector<Failure> failures;  // the first cause first; others with shortened texts
  uint32_t restart_count = 0;
};

enum class Phase { kGathering, kRunning, kBlaming, kFinished };

// How the job is to end where no node that is away comes back.
struct LastLeft {
  int32_t exit_code = 0;
  std::string reason;
};

// A group rank in the round of that epoch, which may be over.
struct RoundPlace {
  uint64_t epoch = 0;  // 0: none
  size_t rank = 0;
};

struct Node {
  v1::Hello hello;           // without what only its arrival needs: its rounds, and the job's elastic config
  std::string peer_address;  // as AgentAttached has it
  bool warming = false;      // it says Ready when its workers could start at once
  Instant attached_at = 0;
  Instant heard_at = 0;    // it has said something
  Instant last_heard = 0;  // the same, or, where the master stood still itself since, when that was noticed
  int64_t lease_ms = 0;
  int64_t beat_interval_ms = 0;
  uint32_t store_port = 0;
  int32_t group_rank = -1;     // in the live round; -1: no member
  int32_t previous_rank = -1;  // in the last round it was a member of
  uint64_t arrival = 0;
  bool came_back = false;  // it was lost as a member, and has not been one since
  bool leaving = false;
  bool unchecked = false;    // it must be checked before it trains
  bool doubted = false;      // ... as its hardware explains a failure
  bool rechecked = false;    // it has been checked since the last round with it ended
  std::string left_out;      // why it does not train, whoever else is there; empty: it may
  bool departs = false;      // ... because the platform takes it away
  bool stale_round = false;  // it runs another round than the live one
  // Where it had a place, in the last two rounds that it had one in.
  RoundPlace place;
  RoundPlace place_before;
  std::string told_spare;  // what it has been told last of why it waits as a spare
  int64_t min_step = 0;
  int64_t max_step = 0;
  uint64_t ranks_of = 0;    // the round whose ranks live there, as its last beat says; 0: of none
  uint32_t told_ranks = 0;  // of its ranks, those whose steps are told
  int64_t min_optimizer_steps = 0;
  int64_t max_optimizer_steps = 0;
  bool owes_look = false;                  // it has been asked how far it is
  uint64_t ranks_epoch = 0;                // of `ranks`
  std::vector<v1::RankStatus> ranks = {};  // as it told last where that was asked for...
  Instant ranks_told_at = 0;               // ...then
  Instant facts_from = kNever;             // the minute in which its facts are counted; kNever: it has told none
  uint32_t facts = 0;                      // of that minute
  uint32_t consoles_lost = 0;              // of its stdout and its stderr, as it has told
};

// A node that the platform takes away.
struct Departing {
  std::string name;    // the platform's
  std::string reason;  // empty: it gives none
  Instant goes_at = 0;
};

constexpr size_t kNotTried = SIZE_MAX;

// What the platform has said last (platform.h).
struct Platform {
  bool attached = false;
  bool has_another = false;                    // ... and later master for the job, which is ready
  std::string instance;                        // of its process; empty: it does not say
  std::string lease;                           // by which its processes agree who works; empty: there is none
  uint64_t epoch = 0;                          // the largest of that lease
  uint64_t facts = 0;                          // the largest number of those that this instance has told
  Instant await_until = kNever;                // its first view is waited for, till then; kNever: it is not
  uint64_t generation = 0;                     // of its last view; 0: there was none
  uint32_t wanted_nodes = 0;                   // 0: it does not say
  std::map<std::string, Departing> departing;  // by address
  std::map<std::string, Switches> switches;    // nodes are under, by address
  std::set<uint64_t> training;                 // sessions of those that are here and not left out yet
  size_t tried_with = kNotTried;               // so many ready nodes were not enough to do without them
  Instant forget_at = kNever;                  // it is not there, and is believed till then
};

// The nodes are asked how far they are, for a person who looks.
struct Look {
  Instant asked_at = kNever;  // last
  bool ranks = false;         // ... and for each rank
  size_t owed = 0;            // nodes that have not answered; 0: it is over
  Instant until = kNever;     // they are waited for
};

// A member that was lost, and may come back.
struct LostPlace {
  int32_t rank = -1;
  uint64_t epoch = 0;  // of the last round begun by then
};

// The place in `round`, live or over, that the node on that stream has; null: none.
Slot* SlotHeldBy(Round& round, const Node& node, uint64_t session);

// Nodes with the same host name, for the names that people read.
struct Host {
  size_t nodes = 0;
  std::set<std::string> addresses;
};

struct JobState {
  JobState() = default;
  // A master with flags of its own.
  JobState(std::string job, const v1::JobSpec& job_spec) : job_id(std::move(job)) { SetSpec(job_spec); }
  // Of a spec that SpecFault (door.h) finds nothing wrong with.
  void SetSpec(const v1::JobSpec& job_spec);

  // The node is there from now on; it goes. What the census counts of one changes through ChangeNode alone.
  void CountNode(const Node& node);
  void UncountNode(const Node& node);
  template <typename Change>
  void ChangeNode(Node& node, Change change) {
    UncountNode(node);
    change(node);
    CountNode(node);
  }
  // Nodes and places looked at so far.
  uint64_t Visits() const;
  // How long a silent one of so many nodes is believed.
  int64_t LeaseMsOf(size_t of_nodes) const;
  // Whether a node that names this id means this job.
  bool IsCalled(const std::string& id) const { return any_job_id || id == job_id; }

  std::string job_id;
  bool any_job_id = false;   // its nodes may call it as they like
  bool open = false;         // they need not prove that they belong to it
  std::string master_id;     // of this process, for its Welcome
  uint64_t incarnation = 1;  // which process of this master it is
  // Other nodes may take the job up: rounds need most of the last world. False: nobody else can, and nobody is asked.
  bool succession = false;
  bool at_endpoint = false;          // it was not elected: who tells of another master finds it
  uint32_t port = 0;                 // of this process
  uint64_t term = 0;                 // Welcome.term
  v1::MasterPlace host;              // of the node whose agent's child this is; no id: it has not come yet
  Electorate voters;                 // of no nodes: no round was confirmed
  Instant doubted_until = kNever;    // no ended voters count until then: a stranger tells of a later master
  Instant beware_until = kNever;     // they are of an earlier life of the job, and forgotten then
  Instant undecided_since = kNever;  // an elected one waits for voters
  Instant probe_at = kNever;         // voters that are not here are asked whether they live
  std::string asked_last;            // of them, by id
  std::shared_ptr<const v1::MasterMessage> beat_heard;  // made once
  std::shared_ptr<const v1::MasterMessage> successors;  // as they were told last; null: there are none
  std::optional<Candidacy> candidacy;                   // it is not elected yet
  std::optional<v1::MasterPlace> moved_to;              // another one was elected, and is there ...
  uint64_t moved_term = 0;                              // ... of that term
  std::optional<uint32_t> epoch;    // of the masters that a platform gives the job one after the other; absent: no such
  std::optional<v1::JobSpec> spec;  // absent: the first node's counts
  bool spec_of_first_node = false;  // ... and has been taken
  // The world sizes that a round may have, where the job has an elastic config.
  std::optional<elasticity::JobSizes> sizes;
  Phase phase = Phase::kGathering;
  Budget budget;
  CheckpointState checkpoints;
  HealthState health;
  ShardState shards;
  std::vector<std::pair<uint64_t, std::shared_ptr<const v1::MasterMessage>>> shard_replies;  // by stream; they wait ...
  Instant shard_replies_at = kNever;                                                         // ... until then
  Instant shard_replies_before = 0;                                                          // the last ones went
  Platform platform;

  CountedMap<uint64_t, Node> nodes;              // by session
  std::map<std::string, uint64_t> session_of;    // by node id
  std::map<int32_t, uint64_t> session_wanting;   // by wanted rank
  std::map<std::string, LostPlace> lost_places;  // by node id; until the next round but one
  std::map<std::string, Host> hosts;             // by name
  uint64_t arrivals = 0;
  Census census;  // of the nodes
  uint64_t highest_epoch = 0;
  uint32_t rounds_begun = 0;
  std::optional<Round> round;       // live; or, where finished, the last one
  std::optional<Round> last_round;  // the one before
  // Of the rounds before the live one, where ranks have told their steps.
  std::optional<int64_t> highest_step;
  std::optional<int64_t> last_step;  // of the last of them
  int64_t usual_gap_ms = 0;          // between steps, the longest; 0: not known (master/rules/stall.h)

  size_t unchecked = 0;           // nodes that are, and do not leave
  bool check_due = false;         // some have come since nodes were checked last
  Instant left_out_due = kNever;  // the first that is here and left out may be checked again
  std::set<uint64_t> left_out;    // sessions of nodes that are, and do not leave
  bool checked = false;           // nodes have been checked since a round was live last
  bool check_failed = false;      // of a job that only checks: one of its checks has
  Look look;
  Instant remember_at = kNever;  // the journal is to have what has changed
  Instant lease_check = kNever;
  Instant gather_at = kNever;  // gathering: begin with whom we have
  Instant gather_limit = kNever;
  Instant grow_at = kNever;  // running: take newcomers in
  Instant grow_limit = kNever;
  Instant join_deadline = kNever;    // gathering: give up
  Instant paused_deadline = kNever;  // ... where the nodes that are there are to be checked first
  Instant next_notice = kNever;
  // Gathering: enough are here, but those that may train are too few of those that trained last; given up then.
  Instant outvoted_until = kNever;
  Instant outvoted_told = kNever;  // ... and said again then
  Instant blame_deadline = kNever;
  Instant tell_end_by = kNever;   // finished: storage is waited for, then all are told
  Instant tell_wait_at = kNever;  // ... and this is said then
  Instant back_by = kNever;       // members whose stream goes before that are away, not lost
  bool resumed = false;           // ... because this master took up what another one began
  size_t stale_rounds = 0;        // nodes that run another round than the live one
  // The last node that is here has left while others may come back, or while its ranks save.
  std::optional<LastLeft> last_left;
  // Refusals in the record since then; each may come again every second, from every node of another job.
  Instant refusals_since = kNever;
  int refusals = 0;
  // Clients of the stores of this master's rounds that were turned away, and what one of the last was told.
  uint64_t store_refused = 0;
  std::string last_store_refused;
  // Running: why nodes wait although it has places left, as it was when the last one came. Empty: none does.
  std::string left_over;

  std::string reason;   // of the last decision about the job
  std::string verdict;  // blaming: why the job ends
  std::shared_ptr<const Outcome> outcome;
};

std::vector<Decision> Step(JobState& state, const Event& event, Instant now);

// For a state that an earlier master has left (src/master/journal/snapshot.h): its nodes may come back from now on.
// Returns what is to be recorded.
std::vector<Decision> Resume(JobState& state, Instant now);

// How a job that has come so far ends: the failures of its round with the first cause first, and how often it began.
std::shared_ptr<const Outcome> OutcomeOf(const JobState& state, int32_t exit_code, const std::string& reason);

// When the shell must bring a Tick; kNever where nothing is due.
Instant NextDeadline(const JobState& state);

// "member", "spare", "waiting" or "done", for people.
std::string NodeStateText(const JobState& state, const Node& node);
// "gathering", "running" or "finished".
std::string PhaseText(Phase phase);
// The name by which reasons call a node: its host name, or its address where several nodes share a host.
std::string NodeName(const JobState& state, const v1::Hello& hello);

}  // namespace phalanx::master

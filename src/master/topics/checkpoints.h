// The job's checkpoints, decided purely: which save is committed, which is restored, which goes to storage. No I/O,
// clock, thread or randomness. src/master/core/core.h feeds it and sends what it orders; docs/life-of-a-save.md tells
// the story.
//
// * A save is committed when all members of its round have sealed it in memory. From then on older ones may go.
// * When a round begins every member tells what its memory holds. The newest save of which every member holds what its
//   ranks need, or another node lends it, is what memory offers; saves that can never be complete are dropped.
// * A node that had a place in the round before, and has none in this one, lends what it holds until all members have
//   made a step, or committed a save. Where it goes before all have read what they need the round ends: the next one
//   goes on from storage, and nobody from a part of what was lent.
// * One save of a directory is on its way to storage at a time; what was asked for meanwhile is the newest committed
//   one when that is over. A store that ends with a node that was lost begins again when all members hold a save.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/counted.h"
#include "base/save_form.h"
#include "base/save_key.h"
#include "master/topics/doubts.h"
#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx::master {

// Directories of a job that this master knows at a time; docs/checkpoint.md tells it. What is asked of a further one is
// refused with a sentence.
constexpr size_t kMaxCheckpointDirs = 256;
// Saves of a round that are known to be dropped, the newest: a node whose stream broke asks after the last ones. One
// that seals an older one after all waits for the next commit to be rid of it.
constexpr size_t kMaxDropped = 1'024;
// Steps of a directory on storage that a round passes over as damaged, from the newest down. All nodes read each of
// them, and their names travel in the journal and to the node that looks. None is forgotten for another: it would be
// found and read again, for ever. Behind so many storage counts as one that cannot be read.
constexpr size_t kMaxDamaged = 256;
// Why newer saves do not count, as people read it: the newest ones' reasons. It travels in the journal, too.
constexpr size_t kMaxPassedOverBytes = 4'096;
// Nodes that one node is told of for one image: it reads from all of them at once.
constexpr size_t kMaxLenders = 8;
// Decisions of one round: a rank may be behind the others by a load().
constexpr size_t kMaxDecided = 4;
// How long storage may take to tell what it holds while memory has something to offer. Without that it is waited for:
// a job that began anew beside its checkpoints would lose them all. Each such span is worth a line.
constexpr int64_t kFindOnDiskMs = 10'000;
// How long all nodes together may take to read what storage offers while memory has something to offer: that is in
// proportion to a node's part, and a later step is worth minutes.
constexpr int64_t kCheckOnDiskMs = 300'000;
// The same where memory has only what lives got nowhere with.
constexpr int64_t kDoubtedPatienceMs = 1'800'000;
// A save that is on its way to storage, or a step that is read there, for so long is worth a line,
// and again after each such span.
constexpr int64_t kStoreLagNoticeMs = 60'000;

struct CheckpointMember {
  uint64_t session = 0;
  uint32_t rank_base = 0;
  uint32_t local_world_size = 0;
};

// A save on its way to storage.
struct Store {
  SaveKey save;
  std::string name;  // of its folder; empty: not made yet
  std::vector<CheckpointMember> members;
  std::set<uint64_t> unwritten;  // sessions of those whose shards are still to come
  std::vector<v1::Shard> shards;
  uint32_t world_size = 0;
  SaveForm form;
  bool closing = false;  // the manifest is being written
  Instant begun_at = 0;
  Instant notice_at = kNever;
};

// A value as a rank has it.
struct RankValue {
  uint32_t crc32 = 0;
  uint32_t rank = 0;
};

struct CheckpointDir {
  SaveForm form;  // of what its ranks save, as they have opened it
  bool at_breakpoint = false;
  bool opened = false;  // by a rank, as far as this master knows
  std::string archive;  // as the ranks have named it; empty: there is none

  // In memory.
  std::map<SaveKey, std::set<uint64_t>> sealed;  // of the live round, by session of members here, not committed yet
  std::set<SaveKey> store_asked;                 // of those
  // Of those: what is to be the same on all ranks, by name, and of which rank it was told first.
  std::map<SaveKey, std::map<std::string, RankValue>> values;
  std::set<std::string> values_told;  // names of those that were not the same, the first few
  std::set<SaveKey> dropped;          // of the live round, also behind a newer commit: who asks late must hear of it
  std::optional<SaveKey> committed;
  uint32_t committed_world_size = 0;
  SaveForm committed_form;
  // Storage held a newer one, or nothing was restored from it: no later life goes on from that, nor from older ones.
  std::optional<SaveKey> stale;
  bool covered = false;     // the members of the live round hold all of it
  bool offered = false;     // they can go on from it: what one lacks others lend
  bool borrowed = false;    // not without what nodes hold that are no members
  bool unreadable = false;  // of the live round: a node could not read a newer one that others lend
  // Where one lacks something: who lends an image, by whose it is (-1: that which a node's ranks share). Else empty.
  // Also of a node whose stream is broken just now: its image server may live.
  std::map<int32_t, std::vector<v1::ImageSource>> lenders;

  // On storage.
  std::optional<SaveKey> stored;      // by this job
  bool wanted = false;                // the newest committed save is to be stored when that is possible
  std::set<SaveKey> milestone_asked;  // of store_asked
  // Saves that are stored themselves, before anything newer, by sessions of the members that hold their images for
  // that. Of one world size: where that changes there are none any more, and the newest is stored in their place.
  std::map<SaveKey, std::set<uint64_t>> milestones;
  std::optional<Store> store;

  // Restoring, in the live round.
  std::set<uint64_t> asking;                        // sessions
  uint32_t asking_branch = 0;                       // of the newest question
  std::map<uint32_t, v1::CheckpointOrder> decided;  // by branch; the newest few
  std::set<uint64_t> restored;                      // sessions of members that have read all they need of the newest
  int64_t sealed_unix_ms = 0;                       // of `committed`; 0: not known
  std::string passed_over;                          // why newer saves do not count
  Instant asked_at = 0;                             // storage, what it holds
  Instant find_by = kNever;                         // it is to answer
  std::optional<v1::FoundOnDisk> found;
  std::set<uint64_t> checking;  // sessions that read what storage offers
  Instant check_at = 0;         // since when
  Instant check_notice_at = kNever;
  std::set<uint64_t> checked;     // those of them where it is whole
  std::set<std::string> damaged;  // folders on storage
  bool too_damaged = false;       // there are more of them, and what storage holds beside them is not known
  // Folders of which some node could not read its part: nobody knows whether they are whole. A new master asks again.
  std::set<std::string> unread;
  Doubts doubts;
};

struct CheckpointState {
  uint64_t epoch = 0;  // of the live round; 0: none is
  uint32_t world_size = 0;
  CountedVector<CheckpointMember> members;         // by group rank
  std::map<uint64_t, size_t> rank_of;              // of the members that are here: the group rank, by session
  CountedMap<uint64_t, v1::CheckpointsHeld> held;  // of the live round, by session of members that are here
  // Of those whose stream has ended since: their image servers may live.
  std::map<uint64_t, v1::CheckpointsHeld> held_by_gone;
  // Of nodes that are here and no members, but were: what they hold, by session; nothing: they are still to tell.
  std::map<uint64_t, std::optional<v1::CheckpointsHeld>> lenders;
  Instant lenders_by = kNever;  // which is waited for until then
  bool settled = false;         // all have told, and what follows from it is decided
  bool limit_told = false;      // of directories, in the live round
  std::map<std::string, CheckpointDir> dirs;

  // Members, and what they hold, looked at so far.
  uint64_t Visits() const { return members.visits() + held.visits(); }
};

// What follows from an event: orders to agents, and rows of the event record.
struct CheckpointOrders {
  struct Note {
    std::string kind;
    std::string text;
    std::vector<std::pair<std::string, std::variant<int64_t, std::string>>> detail;
    bool is_for_people = false;  // also on a console
  };
  // The same for all of these streams.
  struct Order {
    std::vector<uint64_t> sessions;
    v1::CheckpointOrder order;
  };
  std::vector<Order> orders;
  std::vector<Note> notes;
  bool breaks_round = false;    // somebody may have read a part of what nobody can read any more
  bool remember = false;        // a new master must know what was decided...
  bool remember_first = false;  // ... before any rank acts on it
};

// A round begins; its members tell what they hold from now on, and so do `lenders`: sessions of nodes that are here and
// no members. Those are waited for until `lenders_by`.
struct CheckpointRound {
  uint64_t epoch = 0;
  uint32_t world_size = 0;
  std::vector<CheckpointMember> members;
  std::vector<uint64_t> lenders;
  Instant lenders_by = kNever;
};
CheckpointOrders BeginCheckpoints(CheckpointState& state, CheckpointRound round, Instant now);
// All members of the live round have made a step: what they go on from they have read, and some might have read twice.
CheckpointOrders OnCheckpointsStepped(CheckpointState& state, Instant now);
// The live round is over, so: what storage is to have of it.
enum class CheckpointEnd {
  kPlanned,     // its memory stays
  kBreakpoint,  // otherwise than planned: storage has what was asked for in that case (save_at_breakpoint)
  kForGood,     // the job ends well, or a node of it goes on purpose, and memory with it: storage has the newest
};
CheckpointOrders EndCheckpoints(CheckpointState& state, CheckpointEnd end, Instant now);
// The life of the round that is over has ended so: src/master/topics/doubts.h.
CheckpointOrders OnLifeEnds(CheckpointState& state, LifeEnd end, uint32_t lives, Instant now);
// Its failure was a node's loss.
void ReturnLife(CheckpointState& state);
// Whether OnLifeEnds would come to doubt what the live round has restored, were its end LifeEnd::kFailed.
bool WillDoubtSave(CheckpointState& state, uint32_t lives);
// Nobody reads what others lend any more: the job is over.
CheckpointOrders EndLending(CheckpointState& state, Instant now);
// No rank of the round that is over restores any more: nothing is due from storage.
void StopRestoring(CheckpointState& state);
// What an agent tells. Sessions that are no members of the live round are heard only about stores and what they lend.
CheckpointOrders OnCheckpointReport(CheckpointState& state, uint64_t session, const v1::CheckpointReport& report,
                                    Instant now);
// The session is over: what was to come from it does not.
CheckpointOrders OnCheckpointSessionLost(CheckpointState& state, uint64_t session, Instant now);
// A member of the live round, which this master or an earlier one began, has come back on a new stream.
void OnCheckpointSessionBack(CheckpointState& state, uint32_t group_rank, const CheckpointMember& member);
// A save is on its way to storage, or will be.
bool IsStoring(const CheckpointState& state);
// What that is, for people.
std::string StoringText(const CheckpointState& state);
// Time has passed.
CheckpointOrders OnCheckpointTick(CheckpointState& state, Instant now);
Instant NextCheckpointDeadline(const CheckpointState& state);

}  // namespace phalanx::master

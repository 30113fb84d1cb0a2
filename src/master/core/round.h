// One round: its members, what they have come to, and what is to end it. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/counted.h"
#include "master/rules/blame.h"
#include "master/rules/budget.h"
#include "master/rules/pace.h"
#include "master/rules/stall.h"

namespace phalanx::master {

// One member of a round. Stays in it when its node goes after all its workers have ended well.
struct Slot {
  uint64_t session = 0;  // 0: the node is gone, or away. Round::Occupy and Round::Vacate change it
  std::string node_id;
  std::string node;  // its name
  std::string hostname;
  std::string address;
  uint32_t presence_port = 0;  // MasterPlace.presence_port
  uint32_t rank_base = 0;
  uint32_t local_world_size = 0;
  std::set<uint32_t> done;     // local ranks that ended with 0
  std::set<uint32_t> failed;   // local ranks that ended otherwise
  std::set<uint32_t> yielded;  // local ranks that ended because of a rescale
  bool stepped = false;        // FirstStep came
  // No stream, but it may still run its workers: nobody has had the time to tell. Its other fields are empty where the
  // round is known from other members alone.
  bool away = false;
  bool safe = false;           // while a rescale is announced: its ranks are at their safe point, or want none
  bool answered = false;       // ... and it has told how far they are. Round::SetSafe, SetAnswered change both
  bool leaving = false;        // its node has said that it goes, and waits for the others' safe point
  bool left = false;           // its node has gone on purpose, and waits for nothing
  bool confirmed = false;      // its node has said that it knows of the round
  uint64_t store_refused = 0;  // as its last beat has it

  bool AllDone() const { return local_world_size > 0 && done.size() == local_world_size; }
};

struct Round {
  uint64_t term = 0;  // of the master that began it
  uint64_t epoch = 0;
  uint32_t restart_count = 0;
  uint32_t world_size = 0;
  std::string reason;
  Instant begun_at = 0;
  CountedVector<Slot> slots;  // by group rank
  size_t slots_stepped = 0;
  size_t slots_confirmed = 0;
  uint32_t ranks_ended = 0;
  uint32_t ranks_done = 0;
  bool stepped = false;  // any rank has made a step
  std::vector<Failure> failures;
  std::optional<Failure> early;     // the first rank that ended well, while others had not
  size_t away = 0;                  // slots that are
  std::string failed;               // a worker's failure that ends it, and the restart that this costs
  std::vector<std::string> broken;  // members that went, which ends it, too
  // A planned change: it ends when all ranks that want to are at a safe point, or then.
  Instant rescale_by = kNever;
  std::string rescale_why;
  int64_t safe_step = 0;             // where; 0: not chosen, the nodes are asked how far they are
  Instant ask_again = kNever;        // the round is too young for its pace to be known
  std::vector<std::string> leaving;  // members that go, once the others are ready for it
  bool any_asked = false;            // of the ranks; those cannot go on
  bool any_saved = false;            // some wait at a safe point, and not for want of work
  // Where its ranks were at their first step, and where when last heard of: how fast they step.
  bool seen_told = false;  // both as the script counts them; else they are optimizer steps of this life
  int64_t first_seen_step = 0;
  Instant first_seen_at = kNever;
  int64_t last_seen_step = 0;
  Instant last_seen_at = kNever;
  // Where its failures cost a restart: what the budget was before. Given back if they turn out to be a lost node's.
  std::optional<Budget> budget_before;
  Instant ended_at = kNever;

  // For the ledger: what its ranks have told.
  std::optional<int64_t> step;        // the largest
  std::optional<int64_t> from_step;   // behind which it began; set once
  std::optional<int64_t> redo_until;  // what earlier rounds had come to, where that is more
  bool caught_up = false;             // ... and this one has as well
  StallWatch stall;
  PaceWatch pace;
  bool any_left_out = false;    // a member was, since it began (MembersLeftOut of checks.h)
  Instant quiet_since = 0;      // a hang timeout counts from then: its last step, or what says nothing about its ranks
  int64_t saving_ms = 0;        // of the node with the most
  int64_t saving_noted_ms = 0;  // of that, in the record
  Instant saving_noted_at = 0;

  // Of the places whose node is here: those that are not safe, and those that have not answered.
  size_t unsafe = 0;
  size_t unanswered = 0;
  size_t slots_yielded = 0;          // places where a rank has made room for a change
  std::vector<uint32_t> by_node_id;  // group ranks, for SlotOfNode; empty: not made yet

  // A rank has made room for a change that others are still asked about: nobody steps any more.
  bool AnyYielded() const { return slots_yielded > 0; }

  // The node of a place is here, on that stream; it is not.
  void Occupy(Slot& slot, uint64_t session);
  void Vacate(Slot& slot);
  void SetSafe(Slot& slot, bool safe);
  void SetAnswered(Slot& slot, bool answered);

  // The first place that a node of this id has; null: none.
  Slot* SlotOfNode(const std::string& node_id);
};

}  // namespace phalanx::master

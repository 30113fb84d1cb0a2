// A job whose master dies, for tests: another one takes it up from the journal's bytes, or from its agents alone.
#pragma once

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "master/core/job_fixture.h"
#include "master/journal/snapshot.h"

namespace phalanx::master {

// What the agent of a member says to a new master.
inline v1::Hello ComingBack(const JobState& state, uint64_t session) {
  v1::Hello info = state.nodes.at(session).hello;
  *info.mutable_spec() = *state.spec;  // all of it: the master does not keep it for each node
  info.set_seen_epoch(state.highest_epoch);
  const int32_t group_rank = state.nodes.at(session).group_rank;
  if (group_rank < 0 || !state.round) return info;
  const Round& round = *state.round;
  info.mutable_live_round()->set_epoch(round.epoch);
  info.mutable_live_round()->set_group_rank(static_cast<uint32_t>(group_rank));
  info.mutable_live_round()->set_group_world_size(static_cast<uint32_t>(round.slots.size()));
  info.mutable_live_round()->set_rank_base(round.slots[static_cast<size_t>(group_rank)].rank_base);
  info.mutable_live_round()->set_world_size(round.world_size);
  info.mutable_live_round()->set_restart_count(round.restart_count);
  info.mutable_live_round()->set_restarts_used(state.budget.used);
  info.mutable_live_round()->set_lives_without_step(state.budget.lives_without_step);
  if (state.highest_step) info.mutable_live_round()->set_highest_step(*state.highest_step);
  info.mutable_live_round()->set_reason(round.reason);
  return info;
}

// The master dies, and another one takes its job up from the journal, or, without one, from the agents.
class Restarted : public JobFixture {
 public:
  explicit Restarted(const JobFixture& before, bool journal = true) : JobFixture(before) {
    for (const auto& [session, node] : state.nodes) {
      if (!node.leaving) agents_.push_back({session, ComingBack(state, session)});
    }
    const std::string bytes = SaveState(journal_state, now);
    now += 100;
    state = JobState("job", spec);
    records.clear();
    told.clear();
    if (!journal) return;
    StatusOr<JobState> restored = RestoreState(bytes, "job", now);
    PHX_CHECK(restored.ok(), "a snapshot that cannot be read");
    state = *std::move(restored);
    for (const Decision& decision : Resume(state, now)) {
      if (const auto* row = std::get_if<Record>(&decision.action)) records.push_back({*row, decision.reason});
      if (const auto* remember = std::get_if<Remember>(&decision.action)) {
        remembered = remember->when;
        journal_state = state;
      }
    }
  }

  Remember::When remembered = Remember::When::kBehind;  // what it knew when it took the job up

  // The session that the agent of `session` has now.
  uint64_t ComeBack(uint64_t session) {
    for (const auto& [was, info] : agents_) {
      if (was == session) return Attach(info);
    }
    return 0;
  }
  void AllComeBack() {
    for (const auto& [was, info] : agents_) Attach(info);
  }
  void MembersComeBack() {
    for (const auto& [was, info] : agents_) {
      if (info.live_round().epoch() > 0) Attach(info);
    }
  }

  size_t Rounds() const {
    size_t rounds = 0;
    for (const auto& [session, agent] : told) rounds += agent.rounds.size() + agent.holds.size();
    return rounds;
  }

 private:
  std::vector<std::pair<uint64_t, v1::Hello>> agents_;
};

}  // namespace phalanx::master

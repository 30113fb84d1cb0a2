// Nodes are checked before they train (JobSpec.check): which, when, and what their verdict means for the job. What is
// checked, and who is at fault, src/master/topics/health.h decides. Pure.
//
// * Before a round begins with nodes that have not been checked since they came: all that wait, once.
// * While a round is live: newcomers, among themselves; till then they count as not ready.
// * Before it trains again: a node whose hardware a failure is blamed on. With all the others, where the next round
// needs
//   it; else by itself, while the others train.
// * Whoever is left out stays attached, trains not, and is checked again when its time is over.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// Some of them have not been.
bool AnyUnchecked(const JobState& job, const std::vector<uint64_t>& members);

// A node has come: whether it must be checked first, or is left out still.
void AdmitToCheck(Turn& turn, uint64_t session, const v1::Hello& hello);
void On(Turn& turn, uint64_t session, const v1::CheckReport& report);
// A member of the live round trains no more: SettleRound has it go once all have come to their safe point.
void LeaveOutMember(Turn& turn, const Slot& slot, const std::string& why);
// Sentences about members of the live round that are left out, for why it ends; empty: none is.
std::vector<std::string> MembersLeftOut(const JobState& job);
// What it tells of its hardware goes into the record: of each minute the first kMostFacts.
constexpr uint32_t kMostFacts = 32;
constexpr int64_t kFactsOfMs = 60'000;
void On(Turn& turn, uint64_t session, const v1::NodeFact& fact);
// Its hardware explains the failure of a worker in `round`, the live one or the last: where nodes are checked, it is
// checked before it trains again. Where it does so already, as another's report came first, the live round ends. A node
// that has been checked since is not doubted for the last round.
void DoubtNode(Turn& turn, const Round& round, Node& node);
// Its ranks of the round before have ended: it comes to what it was ordered.
void OldRanksGone(Turn& turn, uint64_t session);
// It goes, or has gone.
void LoseChecked(Turn& turn, uint64_t session);
// Its time is over at once.
void On(Turn& turn, const LetIn& event);
// Deadlines, nodes whose time is over, and newcomers to a live round.
void SettleChecks(Turn& turn);
// A round could begin: whether a check must be over first, which this begins.
bool WaitsForCheck(Turn& turn);
// When SettleChecks has something to do.
Instant ChecksDue(const JobState& job);

}  // namespace phalanx::master

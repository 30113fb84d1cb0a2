// Who may take the job up where this master is lost, and whether this one may decide: docs/protocol.md, "A lost
// master". Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

constexpr int kSuccessors = 3;  // src/agent/core/core.h knows of no more
// While the job is held for want of voters, so many of those that are not here are asked at a time whether they live.
constexpr size_t kMostAsked = 256;

// No other master can be elected while this one decides.
bool MayDecide(const JobState& job);
// ... that those are to be the next round. Others who are here may still hear of another master.
bool MayDecide(const JobState& job, const std::vector<uint64_t>& members);
// Why those nodes may not train, though so many are here that something may be decided.
std::string OutvotedText(const JobState& job, const std::vector<uint64_t>& members);
// Why it does not: "waiting for 1 more of the 3 nodes that trained last: ...".
std::string UndecidedText(const JobState& job);

Voters VotersOf(const Round& round);

// A job begins anew where the journal of an earlier life of it, `before`, was left, that had not come to its end: its
// nodes may have gone on under another master, and are waited for so long.
constexpr int64_t kBewareMs = 60'000;
void BewareOf(JobState& job, const JobState& before, Instant now);
// Another process goes on with such a job, in which nothing has begun yet: the wait begins anew, and ends.
void BewareStill(JobState& job, Instant now);

void ForgetVoters(Turn& turn);

// The live round begins.
void CountBegun(JobState& job);
// The member of that place knows of the live round. When all do, all hear who may take the job up.
void Confirm(Turn& turn, Slot& slot);
// The node of `session` has come, and is among `nodes`: the last round that it was told may be one that this master
// does not know.
void CountVoter(Turn& turn, uint64_t session);

void TellSuccessors(Turn& turn);
// An agent that may look for another master has to hear of this one, which was perhaps started anew, and has not told
// successors by now.
void AnswerBeat(Turn& turn, uint64_t session);
// A node has come: it hears who may take the job up.
void TellSuccessorsTo(Turn& turn, uint64_t session);

// An agent that hears nothing for a lease looks for another master, and comes back to this one where that has only
// stood still. True: the member whose stream is over had been silent so long, and is waited for.
constexpr int64_t kHasLeftMs = 1'000;
bool HasLeftSilence(const Turn& turn, const Node& node);
// The stream of a node is over that had been heard of last then; `silent`: it was given up.
void LoseVoter(Turn& turn, const Node& node, bool silent);
// Asks those voters whether they live that are not here.
void AskAbsent(Turn& turn);
void On(Turn& turn, const Probed& e);

// An elected master that waits for voters sends all away after this: another one may have been elected since, and the
// endpoint, where they look next, knows. Its node starts it anew.
constexpr int64_t kUndecidedMs = 20'000;
void Resign(Turn& turn);

// Somebody has come who says where a master of a higher term is: this one steps aside, and sends all there. False:
// nobody has.
bool StepsAside(Turn& turn, const AgentAttached& e);
// A node has come that was welcomed by a master of a higher term. True: it looks elsewhere. False: it may come in, and
// this master is of a higher term yet from now on.
bool KnowsBetter(Turn& turn, const AgentAttached& e);
// It does not join, and hears nothing; its stream stays open.
bool IsHerald(const JobState& job, const v1::Hello& hello);
// Such a one says that there is a later master, and is not believed in where that is: it may be a node that has come to
// the job since, and trains on while all that this master knows have ended. These count for nothing as long as it says
// so, and for a moment behind that: it dials again and again.
constexpr int64_t kDoubtMs = 10'000;
void HearHerald(Turn& turn, const v1::Hello& hello);
void EndDoubt(Turn& turn);
// Whether it is here, or among those that trained last.
bool IsNodeOf(const JobState& job, const std::string& node_id);
// Whether one in clear is believed in that, if it is one: it is a node of this job, here or among those that trained
// last. Its id is its own (wire/node_key.h). Anybody else who reaches an open master would send all nodes wherever he
// likes. A master whose job has not begun knows of none, and believes everybody: it may have come in the place of one
// that was lost.
bool MayHerald(const JobState& job, const v1::Hello& hello);
// It has done so: who comes now is sent there as well.
void SendOn(Turn& turn, const Event& event);

}  // namespace phalanx::master

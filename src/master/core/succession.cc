#include "master/core/succession.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/host_port.h"
#include "master/core/electorate.h"
#include "master/core/messages.h"
#include "master/rules/census.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

// A job of one node has nobody else.
bool HasSuccession(const JobState& job) { return job.succession && job.spec && job.spec->max_nodes() > 1; }

// Rounds that this master has begun, or knows from its journal, are confirmed one by one.
bool Knows(const JobState& job, const v1::World& world) {
  const auto is = [&world](const std::optional<Round>& round) {
    return round && round->term == world.term() && round->epoch == world.epoch();
  };
  return is(job.round) || is(job.last_round);
}

v1::MasterPlace PlaceOf(const v1::Hello& hello, uint32_t port) {
  v1::MasterPlace place;
  place.set_node_id(hello.node_id());
  place.set_address(hello.address());
  place.set_port(port);
  place.set_presence_port(hello.presence_port());
  return place;
}

// In the order of their ranks; those on other machines before those that share one. Of the live round.
v1::MasterMessage SuccessorsOf(JobState& job) {
  v1::MasterMessage message;
  v1::Successors& successors = *message.mutable_successors();
  successors.set_term(job.round->term);
  successors.set_epoch(job.round->epoch);
  successors.set_nodes(static_cast<uint32_t>(job.round->slots.size()));
  successors.set_with_host(job.round->SlotOfNode(job.host.node_id()) != nullptr);
  *successors.mutable_host() = job.host;
  std::set<std::string> machines = {job.host.address()};
  std::set<std::string> chosen = {job.host.node_id()};
  for (const bool elsewhere : {true, false}) {
    for (const Slot& slot : job.round->slots) {
      if (successors.places_size() == kSuccessors) return message;
      if (slot.session == 0 || (elsewhere && machines.contains(slot.address))) continue;
      const v1::Hello& hello = job.nodes.at(slot.session).hello;
      if (hello.master_port() == 0 || !chosen.insert(hello.node_id()).second) continue;
      machines.insert(slot.address);
      *successors.add_places() = PlaceOf(hello, hello.master_port());
    }
  }
  return message;
}

v1::MasterMessage MovedTo(const JobState& job) {
  v1::MasterMessage message;
  v1::Refused& refused = *message.mutable_refused();
  refused.set_sentence(fmt::format("the master of job '{}' is at {} now", job.job_id,
                                   JoinHostPort(job.moved_to->address(), static_cast<uint16_t>(job.moved_to->port()))));
  *refused.mutable_moved_to() = *job.moved_to;
  refused.set_term(job.moved_term);
  return message;
}

}  // namespace

Voters VotersOf(const Round& round) {
  Voters voters(round.term, round.epoch, round.slots.size());
  for (const Slot& slot : round.slots) {
    if (!slot.node_id.empty()) voters.Add(slot.node_id, slot.address, slot.presence_port);
    if (slot.session != 0) voters.Come(slot.node_id, slot.address, slot.presence_port);
  }
  return voters;
}

bool MayDecide(const JobState& job) { return !HasSuccession(job) || job.voters.MayDecide(); }

bool MayDecide(const JobState& job, const std::vector<uint64_t>& members) {
  if (!HasSuccession(job)) return true;
  std::vector<std::string> node_ids;
  node_ids.reserve(members.size());
  for (const uint64_t session : members) node_ids.push_back(job.nodes.at(session).hello.node_id());
  return job.voters.MayDecide(node_ids);
}

std::string UndecidedText(const JobState& job) {
  const Electorate& all = job.voters;
  const auto unseen =
      std::ranges::find_if(all.begun, [](const Voters& round) { return round.here() == 0 && !round.HasAnEnded(); });
  const bool of_begun = unseen != all.begun.end() && all.confirmed.MayDecide() && all.told.MayDecide();
  const bool of_told = all.confirmed.MayDecide() && all.told.nodes() > 0;
  const Voters& voters = of_begun ? *unseen : of_told ? all.told : all.confirmed;
  return fmt::format(
      "waiting for {} more of the {} nodes that trained last: {} {} here, and the others may train on without {}",
      of_begun ? 1 : std::max<size_t>(1, voters.Missing()), voters.nodes(), voters.here(),
      voters.here() == 1 ? "is" : "are", voters.here() == 1 ? "it" : "them");
}

std::string OutvotedText(const JobState& job, const std::vector<uint64_t>& members) {
  const auto of = [&](const Voters& voters) {
    return static_cast<size_t>(std::ranges::count_if(
        members, [&](uint64_t session) { return voters.IsHere(job.nodes.at(session).hello.node_id()); }));
  };
  const Electorate& all = job.voters;
  const bool of_told = all.confirmed.MayDecide(of(all.confirmed)) && all.told.nodes() > 0;
  const Voters& voters = of_told ? all.told : all.confirmed;
  return fmt::format("{} of the {} nodes that trained last may train now, too few to go on without the others",
                     of(voters), voters.nodes());
}

void BewareOf(JobState& job, const JobState& before, Instant now) {
  if (before.phase == Phase::kFinished) return;
  job.voters = before.voters;
  job.voters.CountEnded();
  job.beware_until = now + kBewareMs;
}

void BewareStill(JobState& job, Instant now) {
  const bool begun = job.round || job.last_round;
  // What nodes have told of another master's round is not forgotten.
  const bool of_journal = job.voters.confirmed.nodes() > 0 && !job.voters.strict;
  if (job.at_endpoint && !begun && of_journal) job.beware_until = now + kBewareMs;
}

void ForgetVoters(Turn& turn) {
  JobState& job = turn.job;
  if (turn.now < job.beware_until) return;
  job.beware_until = kNever;
  if (job.round || job.last_round) return;  // of its own by now
  job.voters = Electorate();
  turn.remember = true;
}

void CountBegun(JobState& job) {
  if (HasSuccession(job)) job.voters.Begin(VotersOf(*job.round));
}

void Confirm(Turn& turn, Slot& slot) {
  JobState& job = turn.job;
  if (!HasSuccession(job) || std::exchange(slot.confirmed, true)) return;
  job.voters.HaveComeTo({job.round->term, job.round->epoch}, slot.node_id);
  if (++job.round->slots_confirmed < job.round->slots.size()) return;
  job.voters = Electorate();
  job.voters.confirmed = VotersOf(*job.round);
  if (job.at_endpoint) job.voters.CountEnded(job.doubted_until == kNever);
  turn.RememberSoon();
  TellSuccessors(turn);
}

void TellSuccessors(Turn& turn) {
  JobState& job = turn.job;
  const bool confirmed = job.round && job.round->slots_confirmed == job.round->slots.size();
  if (!HasSuccession(job) || job.host.node_id().empty() || !confirmed) return;
  job.successors = std::make_shared<const v1::MasterMessage>(SuccessorsOf(job));
  for (const auto& [session, node] : job.nodes) {
    if (!node.leaving) turn.Send(session, job.successors, "who may take the job up");
  }
}

void CountVoter(Turn& turn, uint64_t session) {
  JobState& job = turn.job;
  if (!HasSuccession(job)) return;
  const v1::Hello& hello = job.nodes.at(session).hello;
  if (hello.hosts_master()) job.host = PlaceOf(hello, job.port);
  // A job that goes on here knows better than who comes from an earlier life of it.
  const bool knows_nothing = job.resumed || (!job.round && !job.last_round);
  const bool later =
      knows_nothing && KnowsLater(job.voters, hello) && !Knows(job, hello.confirmed()) && !Knows(job, hello.world());
  // What one more has not been told of may be void by now.
  if (!later && job.voters.told.nodes() == 0) return Join(job.voters, hello);
  std::vector<const v1::Hello*> hellos;
  for (const auto& [other, node] : job.nodes) hellos.push_back(&node.hello);
  Electorate all = ElectorateOf(hellos);
  if (RankOf(all.confirmed) < RankOf(job.voters.confirmed)) return Join(job.voters, hello);  // the journal knows more
  all.begun = std::move(job.voters.begun);
  job.voters = std::move(all);
  job.voters.strict = true;
  if (job.at_endpoint) job.voters.CountEnded(job.doubted_until == kNever);
}

void AnswerBeat(Turn& turn, uint64_t session) {
  if (!HasSuccession(turn.job)) return;
  if (!turn.job.beat_heard) {
    v1::MasterMessage message;
    message.mutable_beat_heard();
    turn.job.beat_heard = std::make_shared<const v1::MasterMessage>(std::move(message));
  }
  turn.Send(session, turn.job.beat_heard, "others may take the job up");
}

void TellSuccessorsTo(Turn& turn, uint64_t session) {
  if (turn.job.successors) turn.Send(session, turn.job.successors, "who may take the job up");
}

// A beat may be late, and is never so late as an agent that has looked for another master.
bool IsHeardOf(const Turn& turn, const Node& node) {
  return turn.now - node.heard_at <= node.beat_interval_ms * 13 / 10;
}

bool HasLeftSilence(const Turn& turn, const Node& node) {
  return HasSuccession(turn.job) && node.group_rank >= 0 && !node.leaving && !IsHeardOf(turn, node);
}

void LoseVoter(Turn& turn, const Node& node, bool silent) {
  const std::string& node_id = node.hello.node_id();
  if (!turn.job.voters.Leave(node_id, !silent && IsHeardOf(turn, node))) return;
  turn.Do(Probe{node_id, node.hello.address(), 0, node.hello.presence_port()}, "its agent may have ended");
}

// Of many, each has its turn.
void AskAbsent(Turn& turn) {
  JobState& job = turn.job;
  job.probe_at = turn.now + kAskAbsentMs;
  std::vector<const Voters*> all = {&job.voters.confirmed, &job.voters.told};
  for (const Voters& round : job.voters.begun) all.push_back(&round);
  for (const Voters* voters : all) {
    const auto& known = voters->known();
    auto next = known.upper_bound(job.asked_last);
    for (size_t seen = 0, asked = 0; seen < known.size() && asked < kMostAsked; ++seen, ++next) {
      if (next == known.end()) next = known.begin();
      const auto& [node_id, voter] = *next;
      if (voter.here || voter.gone || voter.presence_port == 0) continue;
      ++asked;
      if (voters == &job.voters.confirmed) job.asked_last = node_id;
      turn.Do(Probe{node_id, voter.address, 0, voter.presence_port}, "it may live, and train on without this node");
    }
  }
}

void On(Turn& turn, const Probed& e) {
  if (!turn.job.voters.Answer(e.node_id, e.agent == Reach::kRefused)) return;
  turn.Note("node-ended", "", "a node that was lost has ended: its machine refuses connections to its phalanx-run");
}

void Resign(Turn& turn) {
  JobState& job = turn.job;
  const bool waits = !job.at_endpoint && job.phase == Phase::kGathering && !MayDecide(job);
  if (!waits) job.undecided_since = kNever;
  if (waits && job.undecided_since == kNever) job.undecided_since = turn.now;
  if (!waits || turn.now - job.undecided_since < kUndecidedMs) return;
  job.candidacy.emplace().over = true;
  job.candidacy->over_at = turn.now;
  const auto refused = std::make_shared<const v1::MasterMessage>(
      NotElectedFor("this master has too few of the nodes that trained last: another one may have them"));
  for (const auto& [session, node] : job.nodes) turn.Send(session, refused, refused->refused().sentence());
  turn.Note("master-resigned", "", refused->refused().sentence());
}

bool StepsAside(Turn& turn, const AgentAttached& e) {
  JobState& job = turn.job;
  const v1::Hello& hello = e.hello();
  if (!job.succession || !IsHerald(job, hello) || !hello.has_master() || hello.term() <= job.term) return false;
  job.moved_to = hello.master();
  job.moved_term = hello.term();
  const auto message = std::make_shared<const v1::MasterMessage>(MovedTo(job));
  const std::string& why = message->refused().sentence();
  turn.Note("master-moved", "", why, -1, {{"term", static_cast<int64_t>(job.moved_term)}});
  for (const auto& [session, node] : job.nodes) turn.Send(session, message, why);
  return true;
}

bool KnowsBetter(Turn& turn, const AgentAttached& e) {
  JobState& job = turn.job;
  if (!job.succession || !job.IsCalled(e.hello().job_id()) || e.hello().term() <= job.term) return false;
  // It has seen a later master, that is lost as well. While this one may decide, no other one does.
  if (job.at_endpoint && job.round && MayDecide(job)) {
    job.term = e.hello().term() + 1;
    turn.remember = true;
    return false;
  }
  // All of that one's world, it trains on there: nothing begins beside it.
  const bool trains = e.hello().world().member() && e.hello().world().nodes() == 1;
  if (trains && job.beware_until != kNever) job.beware_until = turn.now + kBewareMs;
  const std::string why = "this node has seen a later master of the job, and this one does not decide";
  turn.Send(e.session, NotElectedFor(why), why);
  return true;
}

bool IsHerald(const JobState& job, const v1::Hello& hello) {
  return hello.only_tells() && job.IsCalled(hello.job_id());
}

void HearHerald(Turn& turn, const v1::Hello& hello) {
  JobState& job = turn.job;
  if (hello.has_master() || hello.term() <= job.term || !job.at_endpoint) return;
  const bool is_news = std::exchange(job.doubted_until, turn.now + kDoubtMs) == kNever;
  job.voters.CountEnded(false);
  if (!is_news) return;
  turn.Note("master-doubted", "", "a node that this master does not know says that the job has a later one");
}

void EndDoubt(Turn& turn) {
  JobState& job = turn.job;
  if (turn.now < job.doubted_until) return;
  job.doubted_until = kNever;
  job.voters.CountEnded();
}

bool IsNodeOf(const JobState& job, const std::string& node_id) {
  const Electorate& voters = job.voters;
  if (job.session_of.contains(node_id)) return true;
  if (voters.confirmed.known().contains(node_id) || voters.told.known().contains(node_id)) return true;
  return job.candidacy && std::ranges::any_of(job.candidacy->early, [&node_id](const auto& early) {
           return early.second.message.hello().node_id() == node_id;
         });
}

bool MayHerald(const JobState& job, const v1::Hello& hello) {
  if (!IsHerald(job, hello)) return true;
  const Electorate& voters = job.voters;
  const bool begun = job.round || job.last_round || voters.confirmed.nodes() > 0 || voters.told.nodes() > 0;
  return (!begun && !job.candidacy) || IsNodeOf(job, hello.node_id());
}

void SendOn(Turn& turn, const Event& event) {
  JobState& job = turn.job;
  if (const auto* gone = std::get_if<AgentDetached>(&event)) job.nodes.erase(gone->session);
  const auto* come = std::get_if<AgentAttached>(&event);
  if (come == nullptr) return;
  const v1::Hello& hello = come->hello();
  if (!job.IsCalled(hello.job_id())) {
    v1::Refused refused;
    refused.set_sentence("this master serves another job");
    refused.set_other_job(true);
    return turn.Send(come->session, MessageOf(refused), refused.sentence());
  }
  if (hello.has_master() && hello.term() > job.moved_term) {
    job.moved_to = hello.master();
    job.moved_term = hello.term();
  }
  if (IsHerald(job, hello)) return;
  v1::MasterMessage message = MovedTo(job);
  const std::string why = message.refused().sentence();
  turn.Send(come->session, std::move(message), why);
}

}  // namespace phalanx::master

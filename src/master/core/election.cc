#include "master/core/election.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "master/core/door.h"
#include "master/core/electorate.h"
#include "master/core/messages.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

constexpr size_t kFewVoters = 64;

class Election {
 public:
  explicit Election(Turn& turn) : turn_(turn), c_(*turn.job.candidacy) {}

  void On(const AgentAttached& e) {
    if (c_.over) return turn_.Send(e.session, NotElectedFor("this master was not elected"), "it has given up");
    const v1::Hello& hello = e.hello();
    if (hello.only_tells() && turn_.job.IsCalled(hello.job_id())) {
      if (hello.term() >= c_.term) GiveUp("a master of a later term has been elected");
      return turn_.Send(e.session, NotElectedFor("this master is not elected"), "nobody may believe it");
    }
    if (const std::optional<v1::Refused> refused = Refusal(turn_.job, e, turn_.now)) {
      return turn_.Send(e.session, MessageOf(*refused), refused->sentence());
    }
    if (hello.term() >= c_.term) {
      const std::string why = "a master of a later term has been elected";
      GiveUp(why);
      return turn_.Send(e.session, NotElectedFor(why), why);
    }
    for (auto early = c_.early.begin(); early != c_.early.end(); ++early) {
      if (early->second.message.hello().node_id() != hello.node_id()) continue;
      turn_.Do(Drop{early->first}, "the node has opened a new stream");
      c_.early.erase(early);
      break;
    }
    CountLease(hello);
    if (c_.counted_from == kNever) c_.counted_from = turn_.now;
    if (hello.has_master() && (!c_.before || hello.term() > c_.before_term)) {
      c_.before = hello.master();
      c_.before_term = hello.term();
      c_.before_is_gone = c_.before_is_silent = c_.agent_is_gone = false;
      c_.since = c_.probe_at = c_.counted_from = turn_.now;
    }
    c_.until = c_.counted_from + kCandidateLeases * c_.lease_ms;
    c_.early[e.session] = {e.message, e.peer_address, e.message.next_store_port()};
  }

  void On(const AgentSaid& e) {
    const auto early = c_.early.find(e.session);
    if (early != c_.early.end() && e.message.next_store_port() != 0) {
      early->second.store_port = e.message.next_store_port();
    }
  }

  void On(const AgentDetached& e) { c_.early.erase(e.session); }

  void On(const LookedAt& /*e*/) {}  // nobody is a member yet

  void On(const LetIn& /*e*/) {}  // nobody is left out yet

  void On(const PlatformSaid& /*e*/) {}  // it is told to come again
  void On(const PlatformGone& /*e*/) {}

  void On(const Probed& e) {
    if (c_.over || !c_.before) return;
    if (e.node_id != c_.before->node_id()) return;
    if (e.master == Reach::kAnswered) return GiveUp("the job's master answers again");
    // Its end counts where it is found at once: later it may have had a part in another round.
    if (c_.may_have_ended) c_.agent_is_gone = e.agent == Reach::kRefused;
    c_.may_have_ended = false;
    c_.before_is_gone = e.master == Reach::kRefused && e.agent == Reach::kRefused;
    const bool asked_both = c_.before->presence_port() != 0;
    c_.before_is_silent = asked_both && e.master == Reach::kSilent && e.agent == Reach::kSilent;
  }

  void On(const Tick&) {
    if (c_.over) return;
    if (turn_.now >= c_.until) {
      const Voters voters = Count().confirmed;
      return GiveUp(fmt::format("{} of the {} nodes that trained last came to it within {}", voters.here(),
                                voters.nodes(), SecondsText(kCandidateLeases * c_.lease_ms)));
    }
    if (turn_.now < c_.probe_at || !c_.before) return;
    c_.probe_at = turn_.now + kProbeEveryMs;
    turn_.Do(Probe{c_.before->node_id(), c_.before->address(), c_.before->port(), c_.before->presence_port()},
             "the master before may be back");
  }

  // Where its own node still runs, that starts it again.
  bool IsLost() const {
    if (!c_.before) return false;
    return c_.before_is_gone || c_.before_is_silent || turn_.now >= LostAt(c_);
  }

  // By those who came; and it is gone itself where the agent that started it is.
  bool IsElected() const {
    if (c_.over || !IsLost()) return false;
    const bool has_host = std::any_of(c_.early.begin(), c_.early.end(),
                                      [](const auto& early) { return early.second.message.hello().hosts_master(); });
    return has_host && Count().AreMost();
  }

  Electorate Count() const {
    std::vector<const v1::Hello*> hellos;
    for (const auto& [session, early] : c_.early) hellos.push_back(&early.message.hello());
    Electorate all = ElectorateOf(hellos);
    // Who has come may have gone since, unheard, to the master before: until a round is confirmed more than half of the
    // last one are needed, for that master may go on with the other half.
    all.strict = true;
    if (!c_.before || !c_.agent_is_gone) return all;
    // It had not been with another one while it lived. Of a round that had gone on without it, it is no member.
    if (IsWithHost(RankOf(all.confirmed))) BuryHost(all.confirmed);
    if (all.told.nodes() > 0 && IsWithHost(RankOf(all.told))) BuryHost(all.told);
    return all;
  }

 private:
  // Not below our own: those who look for a master at several places need that long.
  void CountLease(const v1::Hello& hello) {
    const int64_t asked_ms = std::max(hello.spec().lease_ms(), kLeaseMs);
    c_.asked_ms = c_.asked_ms == 0 ? asked_ms : std::min(c_.asked_ms, asked_ms);
    c_.nodes = std::max<int64_t>(c_.nodes, hello.world().nodes());
    c_.lease_ms = LeaseMs(c_.nodes, c_.asked_ms);
  }

  bool IsWithHost(RoundRank rank) const {
    if (c_.before_term != rank.first) return false;
    return std::any_of(c_.early.begin(), c_.early.end(), [rank](const auto& early) {
      const v1::Hello& hello = early.second.message.hello();
      return (RankOf(hello.world()) == rank && hello.world().with_host()) ||
             (RankOf(hello.confirmed()) == rank && hello.confirmed().with_host());
    });
  }

  void BuryHost(Voters& voters) const {
    voters.Add(c_.before->node_id(), c_.before->address(), c_.before->presence_port());
    voters.BeGone(c_.before->node_id());
  }

  void GiveUp(const std::string& why) {
    c_.over = true;
    c_.over_at = turn_.now;
    c_.until = c_.probe_at = kNever;
    const auto message = std::make_shared<const v1::MasterMessage>(NotElectedFor(why));
    turn_.Note("not-elected", "", fmt::format("this master was not elected: {}", why));
    for (const auto& [session, early] : c_.early) turn_.Send(session, message, why);
  }

  Turn& turn_;
  Candidacy& c_;
};

}  // namespace

bool Stands(Turn& turn, const Event& event) {
  Election election(turn);
  std::visit([&election](const auto& e) { election.On(e); }, event);
  // The votes of many are counted as time passes.
  const bool few = turn.job.candidacy->early.size() <= kFewVoters || std::holds_alternative<Tick>(event);
  if (!few || !election.IsElected()) return false;
  turn.job.voters = election.Count();
  turn.job.term = turn.job.candidacy->term;
  return true;
}

}  // namespace phalanx::master

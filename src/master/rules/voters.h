// Whose word counts where the job's master is lost, or cut off from its nodes: the members of the last round that all
// of them have confirmed. A master may begin or end rounds while at least half of those that count are with it; one
// that would become the job's master needs more than half. So there are never two that may. Pure.
//
// A member counts no more, is *gone*, only where it cannot have given its word to another master before it ended: it
// has said that it leaves; or its stream broke while it was heard of all the time, and its machine's kernel then
// refused connections to its agent (MasterPlace.presence_port). Silence, or a stream that broke, proves nothing; and
// who is found to have ended later may have had a part in another election. A master at the job's endpoint has one more
// way out: where *all* who are not here are found to have ended, again and again, and nobody has come who tells of
// another master.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace phalanx::master {

// So often in a row a member has to be found ended, for the way out. The nodes of another master would have told this
// one of it by then.
constexpr int kFoundEnded = 5;
constexpr int64_t kAskAbsentMs = 250;

struct Voter {
  bool here = false;  // it has a stream to this master
  bool gone = false;
  bool just_lost = false;  // its stream broke, and its machine is being asked whether it lives
  int refusals = 0;        // in a row, by its machine
  // Where its agent is asked whether it lives. Port 0: it cannot be.
  std::string address;
  uint32_t presence_port = 0;
};

class Voters {
 public:
  using Known = std::map<std::string, Voter>;  // by node id

  Voters() = default;
  // Of a round with so many members, in that term and epoch. Those that are not added are somewhere.
  Voters(uint64_t term, uint64_t epoch, size_t nodes) : term_(term), epoch_(epoch), nodes_(nodes) {}

  uint64_t term() const { return term_; }
  uint64_t epoch() const { return epoch_; }
  size_t nodes() const { return nodes_; }
  size_t here() const { return here_; }
  const Known& known() const { return known_; }

  // One more of the members is known, where there may be one. Not twice.
  void Add(const std::string& node_id, const std::string& address, uint32_t presence_port) {
    if (known_.size() >= nodes_) return;
    Voter voter;
    voter.address = address;
    voter.presence_port = presence_port;
    known_.try_emplace(node_id, std::move(voter));
  }
  void Come(const std::string& node_id, const std::string& address, uint32_t presence_port) {
    Change(node_id, [&](Voter& voter) {
      voter = Voter();
      voter.here = true;
      voter.address = address;
      voter.presence_port = presence_port;
    });
  }
  // Its stream is over. `heard`: until now it was heard of all the time. True: its machine is to be asked at once.
  bool Leave(const std::string& node_id, bool heard) {
    bool ask = false;
    Change(node_id, [&](Voter& voter) {
      ask = voter.just_lost = voter.here && heard && voter.presence_port != 0;
      voter.here = false;
    });
    return ask;
  }
  void BeGone(const std::string& node_id) {
    Change(node_id, [](Voter& voter) {
      voter.here = voter.just_lost = false;
      voter.gone = true;
    });
  }
  // What its machine says. True: it is gone by that.
  bool Answer(const std::string& node_id, bool refused) {
    bool gone = false;
    Change(node_id, [&](Voter& voter) {
      if (voter.here) return;
      gone = std::exchange(voter.just_lost, false) && refused && !voter.gone;
      voter.gone = voter.gone || gone;
      voter.refusals = refused ? std::min(voter.refusals + 1, kFoundEnded) : 0;
    });
    return gone;
  }

  // This master is at the endpoint; no more: there may be others than those that it knows.
  void CountEnded(bool counts = true) { counts_ended_ = counts; }

  // Nobody else can be elected.
  bool MayDecide() const { return MayDecide(here_); }
  bool AreMost() const { return AreMost(here_); }
  // ... where so many of those who are here have a part in what is decided. `way_out`: also where all others are found
  // ended.
  bool MayDecide(size_t of_here, bool way_out = true) const {
    // Where all are gone, others may have gone on from them.
    if (2 * of_here >= nodes_ - gone_ && (of_here > 0 || nodes_ == 0)) return true;
    return way_out && AllOthersEnded();
  }
  bool AreMost(size_t of_here, bool way_out = true) const {
    return 2 * of_here > nodes_ - gone_ || (of_here > 0 && way_out && AllOthersEnded());
  }
  bool AllOthersEnded() const { return counts_ended_ && here_ + gone_ + ended_ >= nodes_; }
  // One that is not here has ended: all of them together run nothing.
  bool HasAnEnded() const {
    return std::ranges::any_of(known_, [](const auto& entry) {
      const Voter& voter = entry.second;
      return voter.gone || (!voter.here && voter.refusals > 0);
    });
  }
  bool HasSameMembersAs(const Voters& other) const {
    return nodes_ == other.nodes_ &&
           std::ranges::equal(known_, other.known_, {}, &Known::value_type::first, &Known::value_type::first);
  }
  bool IsHere(const std::string& node_id) const {
    const auto found = known_.find(node_id);
    return found != known_.end() && found->second.here;
  }
  // How many more would have to come for MayDecide.
  size_t Missing() const { return MayDecide() ? 0 : (nodes_ - gone_ + 1) / 2 - here_; }

 private:
  template <typename How>
  void Change(const std::string& node_id, How how) {
    const auto found = known_.find(node_id);
    if (found == known_.end()) return;
    Count(found->second, static_cast<size_t>(-1));
    how(found->second);
    Count(found->second, 1);
  }
  void Count(const Voter& voter, size_t by) {
    if (voter.here) here_ += by;
    if (voter.gone) gone_ += by;
    if (!voter.here && !voter.gone && voter.refusals >= kFoundEnded) ended_ += by;
  }

  uint64_t term_ = 0;
  uint64_t epoch_ = 0;
  size_t nodes_ = 0;
  Known known_;
  size_t here_ = 0;
  size_t gone_ = 0;
  size_t ended_ = 0;
  bool counts_ended_ = false;
};

// The members of the last round that is known to be confirmed; and of a later one that somebody was told, and that may
// be: both are to agree until one is.
struct Electorate {
  Voters confirmed;
  Voters told;          // of no nodes: there is none
  bool strict = false;  // another master may have half of them
  // Rounds that this master has begun since, and that no member is known to have left: each may be running, though
  // nothing that its nodes say arrives here. The next one takes a member away from each.
  std::vector<Voters> begun;
  bool counts_ended = false;  // this master is at the endpoint, and knows all that have a part

  void Begin(Voters round) {
    std::erase_if(begun, [&round](const Voters& before) { return before.HasSameMembersAs(round); });
    if (counts_ended) round.CountEnded();
    begun.push_back(std::move(round));
  }
  // It has a part in no earlier round than that one any more.
  void HaveComeTo(std::pair<uint64_t, uint64_t> term_and_epoch, const std::string& node_id) {
    std::erase_if(begun, [&](const Voters& round) {
      return std::pair(round.term(), round.epoch()) < term_and_epoch && round.known().contains(node_id);
    });
  }

  void Come(const std::string& node_id, const std::string& address, uint32_t presence_port) {
    confirmed.Come(node_id, address, presence_port);
    told.Come(node_id, address, presence_port);
    for (Voters& round : begun) round.Come(node_id, address, presence_port);
  }
  bool Leave(const std::string& node_id, bool heard) {
    bool ask = confirmed.Leave(node_id, heard);
    ask = told.Leave(node_id, heard) || ask;
    for (Voters& round : begun) ask = round.Leave(node_id, heard) || ask;
    return ask;
  }
  void CountEnded(bool counts = true) {
    counts_ended = counts;
    confirmed.CountEnded(counts), told.CountEnded(counts);
    for (Voters& round : begun) round.CountEnded(counts);
  }
  void BeGone(const std::string& node_id) {
    confirmed.BeGone(node_id);
    told.BeGone(node_id);
    for (Voters& round : begun) round.BeGone(node_id);
  }
  bool Answer(const std::string& node_id, bool refused) {
    bool gone = confirmed.Answer(node_id, refused);
    gone = told.Answer(node_id, refused) || gone;
    for (Voters& round : begun) gone = round.Answer(node_id, refused) || gone;
    return gone;
  }
  bool AreMost() const { return AreMost(confirmed.here(), told.here()); }
  bool MayDecide() const {
    const bool unseen =
        std::ranges::any_of(begun, [](const Voters& round) { return round.here() == 0 && !round.HasAnEnded(); });
    return !unseen && (strict ? AreMost() : MayDecide(confirmed.here(), told.here()));
  }
  // Those nodes are to be the next round.
  bool MayDecide(const std::vector<std::string>& node_ids) const {
    size_t of_confirmed = 0;
    size_t of_told = 0;
    for (const std::string& node_id : node_ids) {
      of_confirmed += confirmed.IsHere(node_id) ? 1 : 0;
      of_told += told.IsHere(node_id) ? 1 : 0;
    }
    if (!TakesFromEach(node_ids)) return false;
    return strict ? AreMost(of_confirmed, of_told) : MayDecide(of_confirmed, of_told);
  }

 private:
  bool MayDecide(size_t of_confirmed, size_t of_told) const {
    const bool way_out = MayTakeWayOut();
    return confirmed.MayDecide(of_confirmed, way_out) && told.MayDecide(of_told, way_out);
  }
  bool AreMost(size_t of_confirmed, size_t of_told) const {
    const bool way_out = MayTakeWayOut();
    return confirmed.AreMost(of_confirmed, way_out) && (told.nodes() == 0 || told.AreMost(of_told, way_out));
  }
  // Members of a round that was begun since may have given the job to another master.
  bool MayTakeWayOut() const {
    return std::ranges::all_of(begun, [](const Voters& round) { return round.AllOthersEnded(); });
  }
  bool TakesFromEach(const std::vector<std::string>& node_ids) const {
    return std::ranges::all_of(begun, [&node_ids](const Voters& round) {
      const auto is_here = [&round](const std::string& node_id) { return round.IsHere(node_id); };
      return std::ranges::any_of(node_ids, is_here) || round.HasAnEnded();
    });
  }
};

}  // namespace phalanx::master

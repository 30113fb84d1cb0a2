// A master that is to be: the one before has been lost, as far as the node that started this one knows. It decides
// nothing, and welcomes nobody, until it is elected: most of the last world's nodes have come to it, and the master
// before is gone, or has been silent for long. Else it gives up. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/reach.h"
#include "master/rules/voters.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// How often the place of the master before is looked at.
constexpr int64_t kProbeEveryMs = 100;
// It is given up where it is not elected within so many leases.
constexpr int64_t kCandidateLeases = 2;
// When it has given up, and said so, its process ends.
constexpr int64_t kOverMs = 500;
// Once it is elected, members that have not come wait so much less than a lease to be given up: they have been looking
// for a master as long as the others.
constexpr int64_t kElectedAwayPerLease = 10;

// One that has come before the election.
struct Early {
  v1::AgentMessage message;  // its Hello
  std::string peer_address;
  uint32_t store_port = 0;
};

struct Candidacy {
  uint64_t term = 0;
  bool over = false;  // it was given up: nobody is let in, and the process ends, soon after that
  Instant over_at = kNever;
  Instant until = kNever;
  Instant counted_from = kNever;  // `until` is so many leases behind it
  // Of the largest world that one of those who came was in, by the shortest lease that they ask for: what one node
  // alone was given is not the job's.
  int64_t nodes = 1;
  int64_t asked_ms = 0;  // 0: nobody has come
  int64_t lease_ms = 0;
  Instant since = kNever;  // somebody has said where the master before was
  Instant probe_at = kNever;
  // The master before, as those say that it had welcomed last. Absent: nobody has come.
  std::optional<v1::MasterPlace> before;
  uint64_t before_term = 0;
  bool before_is_gone = false;      // it, and the agent that would start it again
  bool before_is_silent = false;    // neither answers, nor does their machine
  bool may_have_ended = false;      // its stream broke a moment ago, while it was heard of all the time
  bool agent_is_gone = false;       // it had: that agent gives its word to nobody
  std::map<uint64_t, Early> early;  // by session
};

inline Candidacy CandidacyOf(uint64_t term, bool before_broke) {
  Candidacy candidacy;
  candidacy.term = term;
  candidacy.may_have_ended = before_broke;
  return candidacy;
}

// When the master before counts as lost, though its node may still run; kNever: nobody has come.
inline Instant LostAt(const Candidacy& candidacy) {
  return candidacy.since == kNever || candidacy.over ? kNever : candidacy.since + candidacy.lease_ms;
}

}  // namespace phalanx::master

// From which addresses ranks of the live round may come, and no older ones: decided purely.
//
// A node begins a round when the process groups of the one before are gone, and says so by a beat with the round's
// epoch. Until then what comes from its addresses may be an older rank. An address that several members have is open
// when all of them have begun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace phalanx::master {

class LiveClients {
 public:
  // A round of so many members begins; nothing is known of them, and every address is closed.
  void Begin(uint64_t epoch, size_t members);
  // No round lives.
  void End() { Begin(0, 0); }
  // 0: none.
  uint64_t epoch() const { return epoch_; }

  // A member and all its addresses; again for one that has come back. Returns addresses that it closes.
  std::vector<std::string> Join(const std::string& node_id, const std::set<std::string>& addresses);
  // It has told that it runs the round of `epoch`. Returns the addresses that this opens.
  std::vector<std::string> Began(const std::string& node_id, uint64_t epoch);

  // Every member has begun: also what comes from this machine without a node's address is of the live round.
  bool all() const { return epoch_ != 0 && begun_ == members_; }

 private:
  struct Member {
    std::set<std::string> addresses;
    bool begun = false;
  };

  uint64_t epoch_ = 0;
  size_t members_ = 0;
  size_t begun_ = 0;
  std::map<std::string, Member> joined_;      // by node id
  std::map<std::string, size_t> waited_for_;  // by address: its members that have not begun
};

}  // namespace phalanx::master

#include "master/rules/census.h"

#include <fmt/format.h>

#include "base/check.h"

namespace phalanx::master {
namespace {

void Change(size_t& count, bool comes) {
  PHX_CHECK(comes || count > 0, "a node goes that was never counted");
  count += comes ? 1 : static_cast<size_t>(-1);
}

void Change(Census::Count& count, bool is_member, bool comes) {
  Change(count.all, comes);
  if (is_member) Change(count.members, comes);
}

}  // namespace

void Census::Change(const Entry& entry, bool comes) {
  Kind& kind = kinds_[entry.ranks];
  master::Change(kind.nodes, comes);
  if (entry.candidate) {
    master::Change(candidates_, comes);
    master::Change(kind.candidates, entry.member, comes);
  }
  if (entry.candidate && entry.ready) {
    master::Change(ready_, comes);
    master::Change(kind.ready, entry.member, comes);
  }
  if (kind.nodes == 0) kinds_.erase(entry.ranks);
}

}  // namespace phalanx::master

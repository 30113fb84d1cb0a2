#include "master/endpoint/live_clients.h"

namespace phalanx::master {

void LiveClients::Begin(uint64_t epoch, size_t members) {
  *this = LiveClients();
  epoch_ = epoch;
  members_ = members;
}

std::vector<std::string> LiveClients::Join(const std::string& node_id, const std::set<std::string>& addresses) {
  std::vector<std::string> closed;
  if (epoch_ == 0) return closed;
  const auto [at, fresh] = joined_.try_emplace(node_id);
  if (!fresh) return closed;  // a new stream of a node whose state is known
  at->second.addresses = addresses;
  for (const std::string& address : addresses) {
    if (waited_for_[address]++ == 0) closed.push_back(address);
  }
  return closed;
}

std::vector<std::string> LiveClients::Began(const std::string& node_id, uint64_t epoch) {
  std::vector<std::string> opened;
  const auto at = joined_.find(node_id);
  if (epoch_ == 0 || epoch != epoch_ || at == joined_.end() || at->second.begun) return opened;
  at->second.begun = true;
  ++begun_;
  for (const std::string& address : at->second.addresses) {
    if (--waited_for_[address] == 0) opened.push_back(address);
  }
  return opened;
}

}  // namespace phalanx::master

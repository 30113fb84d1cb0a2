#include "simulation/sim_journal.h"

#include <utility>

#include "master/journal/journal.h"

namespace phalanx::simulation {

void SimJournal::Put(std::string payload) { payloads_.push_back(std::move(payload)); }

void SimJournal::Flush() {
  if (payloads_.size() > 1) payloads_.erase(payloads_.begin(), payloads_.end() - 1);
}

void SimJournal::Remove() { payloads_.clear(); }

StatusOr<std::string> SimJournal::Read(JournalDamage damage, Random& random) const {
  if (payloads_.empty() || damage == JournalDamage::kGone) return absl::NotFoundError("no journal");
  size_t which = payloads_.size() - 1;
  if (damage == JournalDamage::kLostTail) which = random.Below(payloads_.size());
  std::string file = master::WrapJournal(payloads_[which]);
  if (damage == JournalDamage::kTorn) file.resize(random.Below(file.size()));
  return master::UnwrapJournal(file);
}

}  // namespace phalanx::simulation

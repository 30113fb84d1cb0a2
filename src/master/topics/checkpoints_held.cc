#include "master/topics/checkpoints_held.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace phalanx::master {
namespace {

constexpr int32_t kSharedImage = -1;  // for all ranks of a node; others are named by the rank whose they are

const v1::HeldSave* HeldBy(const HeldBySession& by_session, uint64_t session) {
  const auto held = by_session.find(session);
  return held == by_session.end() ? nullptr : held->second;
}

// Null: the node has told of no such save.
const v1::HeldSave* HeldIn(const v1::CheckpointsHeld& all, const std::string& name, const SaveKey& save) {
  const auto held = std::ranges::find_if(
      all.saves(), [&](const v1::HeldSave& each) { return each.dir() == name && KeyOf(each.save()) == save; });
  return held == all.saves().end() ? nullptr : &*held;
}

bool LacksShared(const v1::HeldSave* held, const v1::HeldSave& any) {
  return any.form().shared() && (held == nullptr || !held->main());
}

// Each node begins with another lender. What nobody has ever lent is of no rank of the save.
void AddElsewhere(Elsewhere& all, const Lenders& all_lenders, int32_t image, size_t group_rank) {
  const auto lenders = all_lenders.find(image);
  if (lenders == all_lenders.end()) return;
  v1::ImageElsewhere& elsewhere = *all.Add();
  elsewhere.set_rank(image);
  const std::vector<v1::ImageSource>& from = lenders->second;
  for (size_t i = 0; i < std::min(from.size(), kMaxLenders); ++i) {
    *elsewhere.add_sources() = from[(group_rank + i) % from.size()];
  }
}

}  // namespace

bool Holdings::IsCommitted(const HeldBySession& by_session) {
  return std::any_of(by_session.begin(), by_session.end(), [](const auto& entry) { return entry.second->committed(); });
}

std::string Holdings::Missing(const HeldBySession& by_session, bool was_committed) const {
  const v1::HeldSave& first = *by_session.begin()->second;
  const bool lends_half = !was_committed && std::ranges::any_of(by_session, [&](const auto& entry) {
    return s_.lenders.contains(entry.first) && LacksShared(entry.second, first);
  });
  if (lends_half) return "a node that lends it holds a part of it";
  if (first.form().own() == v1::ANY_RANK) return MissingForAnyRank(by_session, was_committed);
  std::optional<Lenders> lenders;  // of large worlds: only where one is needed
  std::set<uint32_t> ranks;
  for (const auto& [session, held] : by_session) ranks.insert(held->ranks().begin(), held->ranks().end());
  const bool complete = ranks.size() == first.world_size();
  for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
    const v1::HeldSave* const held = HeldBy(by_session, s_.members[group_rank].session);
    // Nobody knows whether it would have sealed the rest.
    const bool is_half = first.form().shared() && held != nullptr && !held->main() && !was_committed;
    if (is_half) return fmt::format("the node of group rank {} holds a part of it", group_rank);
    for (const int32_t image : LackedBy(group_rank, held, first)) {
      if (!lenders) lenders = LendersOf(by_session);
      if (lenders->contains(image)) continue;
      if (held == nullptr) return fmt::format("the node of group rank {} does not hold it", group_rank);
      if (image < 0) return fmt::format("the node of group rank {} holds a part of it", group_rank);
      return fmt::format("the node of rank {} does not hold that rank's image", image);
    }
  }
  if (first.form().own() == v1::OWNER && first.world_size() != s_.world_size) {
    return fmt::format("it was saved by {} ranks, and {} are to go on", first.world_size(), s_.world_size);
  }
  return complete || was_committed ? "" : "some rank had not sealed it";
}

// Worlds of any size share it out among them, and any rank may need any rank's image: all are to be somewhere.
std::string Holdings::MissingForAnyRank(const HeldBySession& by_session, bool was_committed) const {
  const v1::HeldSave& first = *by_session.begin()->second;
  std::set<uint32_t> ranks;
  for (const auto& [session, held] : by_session) ranks.insert(held->ranks().begin(), held->ranks().end());
  std::optional<Lenders> lenders;
  for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
    const v1::HeldSave* const held = HeldBy(by_session, s_.members[group_rank].session);
    const bool is_half = first.form().shared() && held != nullptr && !held->main() && !was_committed;
    if (is_half) return fmt::format("the node of group rank {} holds a part of it", group_rank);
    if (IsEnoughFor(group_rank, held, first)) continue;
    if (!lenders) lenders = LendersOf(by_session);
    if (held == nullptr && lenders->empty()) {
      return fmt::format("the node of group rank {} does not hold it", group_rank);
    }
    if (LacksShared(held, first) && !lenders->contains(kSharedImage)) {
      return fmt::format("the node of group rank {} holds a part of it", group_rank);
    }
    std::set<uint32_t> own;
    if (held != nullptr) own.insert(held->ranks().begin(), held->ranks().end());
    const bool all_lent = lenders->size() == first.world_size() + size_t{lenders->contains(kSharedImage)};
    for (uint32_t rank = 0; rank < first.world_size() && !all_lent; ++rank) {
      if (own.contains(rank) || lenders->contains(static_cast<int32_t>(rank))) continue;
      if (ranks.contains(rank)) {
        return fmt::format("nobody lends the image of rank {} to the node of group rank {}", rank, group_rank);
      }
      return fmt::format("the image of rank {} is not in the memory of this round's nodes", rank);
    }
  }
  return "";
}

// Where any rank may need any image: what it holds is all that its ranks need, since the world is the one that has
// saved it. What several ranks have lies on each node, and the image that its ranks share names those.
bool Holdings::IsEnoughFor(size_t group_rank, const v1::HeldSave* held, const v1::HeldSave& any) const {
  return held != nullptr && !LacksShared(held, any) && any.world_size() == s_.world_size &&
         OwnLackedBy(group_rank, held).empty();
}

std::string Holdings::Unread(const HeldBySession& by_session) const {
  const v1::HeldSave& first = *by_session.begin()->second;
  for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
    const uint64_t session = s_.members[group_rank].session;
    const std::string& why = s_.held.at(session).unreadable();
    if (why.empty() || !NeedsOthers(group_rank, HeldBy(by_session, session), first)) continue;
    return fmt::format("the node of group rank {} could not read it from those that hold it: {}", group_rank, why);
  }
  return "";
}

// Its ranks cannot do with what it holds.
bool Holdings::NeedsOthers(size_t group_rank, const v1::HeldSave* held, const v1::HeldSave& any) const {
  if (any.form().own() == v1::ANY_RANK) return !IsEnoughFor(group_rank, held, any);
  return !LackedBy(group_rank, held, any).empty();
}

// The images of its ranks' part of the save that they cannot do without and it does not hold. `any`: somebody's part.
std::vector<int32_t> Holdings::LackedBy(size_t group_rank, const v1::HeldSave* held, const v1::HeldSave& any) const {
  std::vector<int32_t> lacked;
  if (LacksShared(held, any)) lacked.push_back(kSharedImage);
  if (any.form().own() == v1::NOBODY) return lacked;
  for (const uint32_t rank : OwnLackedBy(group_rank, held)) lacked.push_back(static_cast<int32_t>(rank));
  return lacked;
}

// Ranks of that node whose own images it does not hold.
std::vector<uint32_t> Holdings::OwnLackedBy(size_t group_rank, const v1::HeldSave* held) const {
  const CheckpointMember& member = s_.members[group_rank];
  std::set<uint32_t> own;
  if (held != nullptr) own.insert(held->ranks().begin(), held->ranks().end());
  std::vector<uint32_t> lacked;
  for (uint32_t rank = member.rank_base; rank < member.rank_base + member.local_world_size; ++rank) {
    if (!own.contains(rank)) lacked.push_back(rank);
  }
  return lacked;
}

bool Holdings::HoldAll(const HeldBySession& by_session) const {
  const v1::HeldSave& first = *by_session.begin()->second;
  std::set<uint32_t> ranks;
  for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
    const v1::HeldSave* const held = HeldBy(by_session, s_.members[group_rank].session);
    if (held == nullptr || !LackedBy(group_rank, held, first).empty()) return false;
    ranks.insert(held->ranks().begin(), held->ranks().end());
  }
  return first.form().own() != v1::ANY_RANK || ranks.size() == first.world_size();
}

HeldBySession Holdings::OfMembers(HeldBySession by_session) const {
  std::erase_if(by_session, [this](const auto& entry) { return s_.lenders.contains(entry.first); });
  return by_session;
}

bool Holdings::IsWhole(const std::string& name, const SaveKey& save) const {
  HeldBySession by_session;
  const auto add = [&](uint64_t session, const v1::CheckpointsHeld& all) {
    if (const v1::HeldSave* const held = HeldIn(all, name, save)) by_session[session] = held;
  };
  for (const auto& [session, all] : s_.held) add(session, all);
  for (const auto& [session, all] : s_.lenders) {
    if (all) add(session, *all);
  }
  return !by_session.empty() && Missing(by_session, true).empty();
}

// Of these ranks' images, as the members have told when the round began.
Lenders Holdings::LendersOf(const std::string& name, const SaveKey& save, const std::set<uint32_t>& ranks) const {
  Lenders lenders;
  const auto add = [&](const v1::CheckpointsHeld& all) {
    const v1::HeldSave* const held = all.has_source() ? HeldIn(all, name, save) : nullptr;
    if (held == nullptr) return;
    for (const uint32_t rank : held->ranks()) {
      if (ranks.contains(rank)) lenders[static_cast<int32_t>(rank)].push_back(all.source());
    }
  };
  for (const auto& [session, all] : s_.held) add(all);
  for (const auto& [session, all] : s_.held_by_gone) add(all);
  for (const auto& [session, all] : s_.lenders) {
    if (all) add(*all);
  }
  return lenders;
}

Lenders Holdings::LendersOf(const HeldBySession& by_session) const {
  Lenders lenders;
  for (const auto& [session, held] : by_session) {
    const auto lender = s_.lenders.find(session);
    const v1::CheckpointsHeld& all = lender == s_.lenders.end() ? s_.held.at(session) : *lender->second;
    if (!all.has_source()) continue;
    if (held->main()) lenders[kSharedImage].push_back(all.source());
    for (const uint32_t rank : held->ranks()) lenders[static_cast<int32_t>(rank)].push_back(all.source());
  }
  return lenders;
}

Lenders Holdings::LendersWhereNeeded(const HeldBySession& by_session) const {
  const v1::HeldSave& first = *by_session.begin()->second;
  bool needed = false;
  for (size_t group_rank = 0; group_rank < s_.members.size() && !needed; ++group_rank) {
    const v1::HeldSave* const held = HeldBy(by_session, s_.members[group_rank].session);
    needed = NeedsOthers(group_rank, held, first) || !OwnLackedBy(group_rank, held).empty();
  }
  return needed ? LendersOf(by_session) : Lenders();
}

Elsewhere Holdings::LentTo(size_t group_rank, const std::string& name, const CheckpointDir& dir) const {
  const uint64_t session = s_.members[group_rank].session;
  const v1::HeldSave* const held =
      s_.held.contains(session) ? HeldIn(s_.held.at(session), name, *dir.committed) : nullptr;
  Elsewhere lent;
  if (dir.committed_form.shared && (held == nullptr || !held->main())) {
    AddElsewhere(lent, dir.lenders, kSharedImage, group_rank);
  }
  if (dir.committed_form.own == FileNeed::kAnyRank) return lent;
  for (const uint32_t rank : OwnLackedBy(group_rank, held)) {
    AddElsewhere(lent, dir.lenders, static_cast<int32_t>(rank), group_rank);
  }
  return lent;
}

Elsewhere Holdings::ImagesFor(size_t group_rank, const std::string& name, const SaveKey& save,
                              const google::protobuf::RepeatedField<uint32_t>& ranks) const {
  const Lenders lenders = LendersOf(name, save, {ranks.begin(), ranks.end()});
  Elsewhere images;
  for (const uint32_t rank : ranks) AddElsewhere(images, lenders, static_cast<int32_t>(rank), group_rank);
  return images;
}

}  // namespace phalanx::master

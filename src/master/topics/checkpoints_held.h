// What the memory of a round's nodes holds, as they have told when it began, and who lends what of it to whom: what the
// decisions of checkpoints.h are made from. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "master/topics/checkpoints.h"
#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx::master {

// A save, as each node holds it, by session. What it points to is the state's.
using HeldBySession = std::map<uint64_t, const v1::HeldSave*>;
// Who lends an image, by whose it is.
using Lenders = std::map<int32_t, std::vector<v1::ImageSource>>;
// What is told to a node of images that it lacks.
using Elsewhere = google::protobuf::RepeatedPtrField<v1::ImageElsewhere>;

// Reads a state while it does not change.
class Holdings {
 public:
  explicit Holdings(const CheckpointState& state) : s_(state) {}

  // Some node has heard that it was.
  static bool IsCommitted(const HeldBySession& by_session);
  // What keeps the save from being restored in the live round; empty: nothing does.
  std::string Missing(const HeldBySession& by_session, bool was_committed) const;
  // Why it is not tried again to have a node read what it lacks; empty: it is, or there is nothing.
  std::string Unread(const HeldBySession& by_session) const;
  // The members hold what the save has, each the part of its own ranks.
  bool HoldAll(const HeldBySession& by_session) const;
  // Without nodes that are no members.
  HeldBySession OfMembers(HeldBySession by_session) const;
  // Of what all that are here hold now.
  bool IsWhole(const std::string& name, const SaveKey& save) const;

  // Of all its images; none where no member needs one.
  Lenders LendersWhereNeeded(const HeldBySession& by_session) const;
  // What that node lacks of the committed save and its ranks will need, whichever they ask for, where others lend it.
  Elsewhere LentTo(size_t group_rank, const std::string& name, const CheckpointDir& dir) const;
  // Images of these ranks, in their order, also where each node holds what its ranks need: a rank may want another
  // one's all the same.
  Elsewhere ImagesFor(size_t group_rank, const std::string& name, const SaveKey& save,
                      const google::protobuf::RepeatedField<uint32_t>& ranks) const;

 private:
  std::string MissingForAnyRank(const HeldBySession& by_session, bool was_committed) const;
  bool IsEnoughFor(size_t group_rank, const v1::HeldSave* held, const v1::HeldSave& any) const;
  bool NeedsOthers(size_t group_rank, const v1::HeldSave* held, const v1::HeldSave& any) const;
  std::vector<int32_t> LackedBy(size_t group_rank, const v1::HeldSave* held, const v1::HeldSave& any) const;
  std::vector<uint32_t> OwnLackedBy(size_t group_rank, const v1::HeldSave* held) const;
  Lenders LendersOf(const std::string& name, const SaveKey& save, const std::set<uint32_t>& ranks) const;
  Lenders LendersOf(const HeldBySession& by_session) const;

  const CheckpointState& s_;
};

}  // namespace phalanx::master

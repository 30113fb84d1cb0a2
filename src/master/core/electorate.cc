#include "master/core/electorate.h"

#include <algorithm>

namespace phalanx::master {
namespace {

void JoinOne(Voters& voters, const v1::Hello& hello) {
  const auto is_member = [&voters](const v1::World& world) {
    return world.member() && RankOf(world) == RankOf(voters);
  };
  if (voters.nodes() == 0 || (!is_member(hello.world()) && !is_member(hello.confirmed()))) return;
  voters.Add(hello.node_id(), hello.address(), hello.presence_port());
  voters.Come(hello.node_id(), hello.address(), hello.presence_port());
}

void Add(Voters& voters, const v1::MasterPlace& place) {
  if (!place.node_id().empty()) voters.Add(place.node_id(), place.address(), place.presence_port());
}

// Members that are not here, and known by name all the same: they can be asked whether they live.
void Name(Electorate& electorate, const v1::World& told, const v1::Successors& successors) {
  if (told.with_host() && successors.term() == told.term()) Add(electorate.told, successors.host());
  if (RoundRank(successors.term(), successors.epoch()) != RankOf(electorate.confirmed)) return;
  if (successors.with_host()) Add(electorate.confirmed, successors.host());
  for (const v1::MasterPlace& place : successors.places()) Add(electorate.confirmed, place);
}

// At least half of the confirmed round's members are told of the next one. Where more than half are here and were not,
// one of them would have had to confirm it, and never will.
void DropVoid(Electorate& electorate, const std::vector<const v1::Hello*>& hellos) {
  size_t untold = 0;
  for (const v1::Hello* hello : hellos) {
    if (electorate.confirmed.IsHere(hello->node_id()) && RankOf(hello->world()) < RankOf(electorate.told)) ++untold;
  }
  if (2 * untold > electorate.confirmed.nodes()) electorate.told = Voters();
}

}  // namespace

Electorate ElectorateOf(const std::vector<const v1::Hello*>& hellos) {
  v1::World confirmed;
  v1::World told;
  for (const v1::Hello* hello : hellos) {
    if (RankOf(hello->confirmed()) > RankOf(confirmed)) confirmed = hello->confirmed();
    if (RankOf(hello->world()) > RankOf(told)) told = hello->world();
  }
  Electorate electorate;
  electorate.confirmed = Voters(confirmed.term(), confirmed.epoch(), confirmed.nodes());
  if (RankOf(told) > RankOf(confirmed)) electorate.told = Voters(told.term(), told.epoch(), told.nodes());
  for (const v1::Hello* hello : hellos) Join(electorate, *hello);
  DropVoid(electorate, hellos);
  for (const v1::Hello* hello : hellos) Name(electorate, told, hello->successors());
  return electorate;
}

void Join(Electorate& electorate, const v1::Hello& hello) {
  electorate.HaveComeTo(RankOf(hello.world()), hello.node_id());
  JoinOne(electorate.confirmed, hello);
  JoinOne(electorate.told, hello);
  electorate.Come(hello.node_id(), hello.address(), hello.presence_port());  // who is known by name already
}

bool KnowsLater(const Electorate& electorate, const v1::Hello& hello) {
  const RoundRank confirmed = RankOf(electorate.confirmed);
  return RankOf(hello.confirmed()) > confirmed || RankOf(hello.world()) > std::max(confirmed, RankOf(electorate.told));
}

}  // namespace phalanx::master

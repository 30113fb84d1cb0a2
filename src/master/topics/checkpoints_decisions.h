// What checkpoints.h decides, by subject: its own file has the events, checkpoints_saving.cc how a save is committed,
// checkpoints_memory.cc what a new round's memory offers, checkpoints_lending.cc what nodes that go still lend,
// checkpoints_restoring.cc what is restored, checkpoints_storing.cc what goes to storage. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "master/topics/checkpoints.h"
#include "master/topics/checkpoints_held.h"

namespace phalanx::master {

inline constexpr char kNotInMemory[] = "some of its images are no longer in memory";
inline constexpr char kStoredAlready[] = "it is stored already";
inline constexpr char kDoubted[] = "lives in a row that went on from it failed without a step";

v1::CheckpointOrder OrderOf(const std::string& name, const SaveKey& save, const std::string& reason);
// Of no directory.
v1::CheckpointOrder AboutAll(const std::string& reason);
// What was to go to storage is there, or will not be.
v1::CheckpointOrder EndedOrder(const std::string& name, const SaveKey& save, bool stored, const std::string& reason);
std::string TooManyDirs(const std::string& name);

bool OffersMemory(const CheckpointDir& dir);
bool IsDoubtedInMemory(const CheckpointDir& dir);
// What no rank of this job has asked for is another run's, and what was passed over is no newer than storage.
bool IsWorthKeeping(const CheckpointDir& dir);
// Once: the master before may have said so already.
void PassOver(CheckpointDir& dir, const std::string& why);
// Nobody begins to read it any more.
void StopBorrowing(CheckpointDir& dir);

// One event's decisions; one object a call, so that helpers need no out-parameters.
class CheckpointDecisions {
 public:
  CheckpointDecisions(CheckpointState& state, Instant now) : s_(state), held_(state), now_(now) {}

  CheckpointOrders Take() { return std::move(out_); }

  void Begin(CheckpointRound round);
  void LifeEnds(LifeEnd end, uint32_t lives);
  bool WillDoubt(uint32_t lives) const;
  void End(CheckpointEnd end);
  void Report(uint64_t session, const v1::CheckpointReport& report);
  void Lost(uint64_t session);
  void Tick();
  void EndLendingWhereOver();
  void EndLending();
  void Stepped();

 private:
  using Found = std::map<std::string, std::map<SaveKey, HeldBySession>>;

  bool AllHere() const { return s_.rank_of.size() == s_.members.size(); }
  bool AllTold(const CheckpointDir& dir) const { return dir.doubts.told.size() == s_.members.size(); }
  // All members are here and in that set, or map, of sessions of members that are here.
  template <typename Sessions>
  bool AllIn(const Sessions& sessions) const {
    return AllHere() && sessions.size() == s_.members.size();
  }
  bool RestoresFromOneDirectory() const;
  void SendTo(uint64_t session, const v1::CheckpointOrder& order);
  void SendToAll(const v1::CheckpointOrder& order);
  void Note(const std::string& kind, const std::string& name, const std::string& text, int64_t step);
  bool IsOneTooMany(const std::string& name) const;
  void Refuse(uint64_t session, const v1::CheckpointReport& report);

  // --- saving ---

  void OnOpened(const std::string& name, const v1::CheckpointOpened& opened);
  void OnSealed(uint64_t session, const std::string& name, const v1::CheckpointSealed& sealed);
  void Compare(uint64_t session, const std::string& name, CheckpointDir& dir, const v1::CheckpointSealed& sealed);
  void TellDropped(uint64_t session, const std::string& name, const SaveKey& save);
  void Commit(const std::string& name, CheckpointDir& dir, const SaveKey& save);
  void OnSkipped(uint64_t session, const std::string& name, const v1::CheckpointSkipped& skipped);

  // --- what memory offers ---

  void OnHeld(uint64_t session, const v1::CheckpointsHeld& held);
  void SettleWhereAllHaveTold();
  bool MembersSuffice(const Found& found) const;
  void AddTo(Found& found, uint64_t session, const v1::CheckpointsHeld& held) const;
  bool OrdersOlderRead(const Found& found);
  bool CanSettle(const CheckpointDir& dir, const std::map<SaveKey, HeldBySession>& saves) const;
  void SettleMemory(const std::string& name, CheckpointDir& dir, const std::map<SaveKey, HeldBySession>& saves);
  void TellSettled(const std::string& name, const CheckpointDir& dir, const SaveKey& save);

  // --- nodes that are no members, and lend ---

  void BeginLending(const std::vector<uint64_t>& lenders, Instant by);
  void OnGoing(uint64_t session);
  void OnLent(uint64_t session, const v1::CheckpointsHeld& held);
  void OnRestoreDone(uint64_t session, const std::string& name, uint32_t branch);
  void GiveUpLenders();
  void LoseLender();
  void SendLendingEnded(uint64_t session);

  // --- restoring ---

  void OnRestoreAsked(uint64_t session, const std::string& name, const v1::RestoreAsked& asked);
  void SendDecision(uint64_t session, const std::string& name, CheckpointDir& dir, const v1::CheckpointOrder& decision);
  void SendImages(uint64_t session, const std::string& name, const v1::CheckpointOrder& decision,
                  const v1::RestoreAsked& asked);
  void OnFound(const std::string& name, const v1::FoundOnDisk& found);
  void OnSilentStorage(const std::string& name, CheckpointDir& dir);
  bool AwaitsStore(const CheckpointDir& dir) const;
  void Decide(const std::string& name, CheckpointDir& dir);
  void Find(const std::string& name, CheckpointDir& dir);
  bool MayDoWithMemory(const CheckpointDir& dir, Instant since, int64_t patience_ms) const;
  void Check(const std::string& name, CheckpointDir& dir);
  void OnSlowCheck(const std::string& name, CheckpointDir& dir);
  std::string Unheard(const std::set<uint64_t>& sessions) const;
  void OnChecked(uint64_t session, const std::string& name, const v1::CheckedOnDisk& checked);
  v1::CheckpointOrder Choose(const std::string& name, const CheckpointDir& dir) const;

  // --- storing ---

  void OnDeparting(uint64_t session, const std::string& name, const SaveKey& save);
  void WantStored(const std::string& name, CheckpointDir& dir, const SaveKey& save);
  void OnAwaited(uint64_t session, const v1::CheckpointsHeld& held);
  void OnMilestoneHeld(CheckpointDir& dir, const SaveKey& save, uint64_t session);
  void StoreWanted(const std::string& name, CheckpointDir& dir);
  void MaybeStore(const std::string& name, CheckpointDir& dir);
  std::optional<SaveKey> NextMilestone(CheckpointDir& dir) const;
  void BeginStore(const std::string& name, CheckpointDir& dir, const SaveKey& save, uint32_t world_size);
  CheckpointDir* StoringFor(uint64_t session, const std::string& name, const v1::SaveId& save);
  CheckpointDir* Storing(const std::string& name, const v1::SaveId& save);
  void OnPrepared(uint64_t session, const std::string& name, const v1::StorePrepared& prepared);
  void OnShards(uint64_t session, const std::string& name, const v1::ShardsWritten& written);
  void OnManifest(uint64_t session, const std::string& name, const v1::ManifestWritten& written);
  void EndStore(const std::string& name, CheckpointDir& dir, const std::string& error);
  void LoseWriter(const std::string& name, CheckpointDir& dir, uint64_t session);

  CheckpointState& s_;
  const Holdings held_;
  const Instant now_;
  CheckpointOrders out_;
};

}  // namespace phalanx::master

// What ranks that ask go on from: memory, or what storage has, looked at and read through first.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "master/topics/checkpoints_decisions.h"

namespace phalanx::master {
namespace {

constexpr size_t kMaxNodesNamed = 8;

// What storage held when the round began it may hold no more.
void AskAnew(CheckpointDir& dir, const std::string& passed_over = "") {
  dir.found.reset();
  dir.find_by = dir.check_notice_at = kNever;
  dir.checking.clear();
  dir.checked.clear();
  dir.passed_over = passed_over;
}

bool IsDoubtedOnStorage(const CheckpointDir& dir) {
  const v1::FoundOnDisk& found = *dir.found;
  return found.step() >= 0 && found.same_job() && dir.doubts.kept.saves.contains(KeyOf(found));
}

// Of another job's saves it is not for this one to say which is taken.
std::optional<SaveKey> GoneOnFrom(const CheckpointDir& dir, const v1::CheckpointOrder& choice) {
  switch (choice.restore().source()) {
    case v1::RestoreDecided::MEMORY:
      return dir.committed;
    case v1::RestoreDecided::DISK:
      return dir.found->same_job() ? std::optional(KeyOf(*dir.found)) : std::nullopt;
    default:
      return std::nullopt;
  }
}

// Whether what storage holds was saved behind what memory offers. Of what this run is known to have stored the order
// of its saves says so. A step of another job, or of a run before that had the same name, says nothing by its number:
// what it was when memory was sealed, it had been written by then, if the clocks of two nodes are right.
bool IsNewerOnDisk(const CheckpointDir& dir) {
  const v1::FoundOnDisk& found = *dir.found;
  const SaveKey on_disk = KeyOf(found);
  if (!found.same_job() || on_disk <= *dir.committed) return false;
  return dir.stored == on_disk || found.written_unix_ms() >= dir.sealed_unix_ms;
}

std::string PlaceOf(const std::string& name, const v1::FoundOnDisk& found) {
  return found.place().empty() ? fmt::format("{}/{}", name, found.name()) : found.place();
}

}  // namespace

// Each branch has one decision, the same for all ranks, however late they ask: that of a later one is what is newest
// then.
void CheckpointDecisions::OnRestoreAsked(uint64_t session, const std::string& name, const v1::RestoreAsked& asked) {
  const uint32_t branch = asked.branch();
  CheckpointDir& dir = s_.dirs[name];
  const auto known = dir.decided.lower_bound(branch);
  // Who lends what is known when all have told what they hold: a new master has yet to hear it.
  const bool can_tell =
      known != dir.decided.end() && (s_.settled || known->second.restore().source() != v1::RestoreDecided::MEMORY);
  if (can_tell && asked.request() != 0) return SendImages(session, name, known->second, asked);
  if (can_tell) return SendDecision(session, name, dir, known->second);
  if (dir.asking.empty() && !dir.decided.empty()) AskAnew(dir);
  dir.asking.insert(session);
  dir.asking_branch = std::max(dir.asking_branch, branch);
  Decide(name, dir);
}

// With the images that this node needs and lacks.
void CheckpointDecisions::SendDecision(uint64_t session, const std::string& name, CheckpointDir& dir,
                                       const v1::CheckpointOrder& decision) {
  if (s_.rank_of.contains(session)) dir.doubts.told.insert(s_.rank_of.at(session));
  const bool lacks = decision.restore().source() == v1::RestoreDecided::MEMORY && !dir.lenders.empty();
  if (!lacks || !s_.rank_of.contains(session)) return SendTo(session, decision);
  v1::CheckpointOrder order = decision;
  *order.mutable_restore()->mutable_elsewhere() = held_.LentTo(s_.rank_of.at(session), name, dir);
  SendTo(session, order);
}

// Also where each node holds what its ranks need: a rank may want another one's all the same.
void CheckpointDecisions::SendImages(uint64_t session, const std::string& name, const v1::CheckpointOrder& decision,
                                     const v1::RestoreAsked& asked) {
  v1::CheckpointOrder order = decision;
  order.mutable_restore()->set_request(asked.request());
  *order.mutable_restore()->mutable_elsewhere() =
      held_.ImagesFor(s_.rank_of.at(session), name, KeyOf(decision.save()), asked.images());
  SendTo(session, order);
}

void CheckpointDecisions::OnFound(const std::string& name, const v1::FoundOnDisk& found) {
  CheckpointDir& dir = s_.dirs[name];
  if (dir.find_by == kNever) return;
  dir.find_by = kNever;
  dir.found = found;
  Decide(name, dir);
}

void CheckpointDecisions::OnSilentStorage(const std::string& name, CheckpointDir& dir) {
  const std::string silence = fmt::format("storage has not answered for {} s", (now_ - dir.asked_at) / 1'000);
  if (MayDoWithMemory(dir, dir.asked_at, kFindOnDiskMs)) {
    v1::FoundOnDisk silent;
    silent.set_step(-1);
    silent.set_why(silence);
    return OnFound(name, silent);
  }
  dir.find_by = now_ + kFindOnDiskMs;
  Note("checkpoint-lag", name,
       fmt::format("memory holds nothing of {}{}, and {}: training waits for what it holds", name,
                   IsDoubtedInMemory(dir) ? " that lives got on with" : "", silence),
       -1);
}

bool OffersMemory(const CheckpointDir& dir) { return dir.committed && dir.offered; }

// What is on its way there is newer than all that is there: storage is looked at when it has ended, or takes too
// long.
bool CheckpointDecisions::AwaitsStore(const CheckpointDir& dir) const {
  return dir.store && !OffersMemory(dir) && now_ - dir.store->begun_at < kCheckOnDiskMs;
}

void CheckpointDecisions::Decide(const std::string& name, CheckpointDir& dir) {
  if (!s_.settled || dir.asking.empty()) return;
  if (const auto known = dir.decided.lower_bound(dir.asking_branch); known != dir.decided.end()) {
    for (const uint64_t session : std::exchange(dir.asking, {})) SendDecision(session, name, dir, known->second);
    return;
  }
  if (AwaitsStore(dir)) dir.found.reset();
  if (!dir.found) return Find(name, dir);
  if (IsDoubtedOnStorage(dir)) {
    NoteFolder(dir.doubts, KeyOf(*dir.found), dir.found->name());
    dir.found.reset();
    return Find(name, dir);
  }
  if (IsDoubtedInMemory(dir)) PassOver(dir, fmt::format("step {} in memory: {}", dir.committed->step, kDoubted));
  v1::CheckpointOrder choice = Choose(name, dir);
  if (choice.restore().source() == v1::RestoreDecided::NOTHING && TrustAgain(dir.doubts)) {
    PassOver(dir, "nothing older can be restored: it is tried again");
    out_.remember = true;
    AskAnew(dir, dir.passed_over);
    return Find(name, dir);
  }
  if (choice.restore().source() == v1::RestoreDecided::DISK && !AllIn(dir.checked)) {
    return Check(name, dir);
  }
  dir.check_notice_at = kNever;
  const bool from_memory = choice.restore().source() == v1::RestoreDecided::MEMORY;
  if (!from_memory && dir.committed) dir.stale = dir.committed;
  if (!from_memory && dir.borrowed) StopBorrowing(dir);
  dir.restored.clear();
  NoteDecided(dir.doubts, GoneOnFrom(dir, choice));
  choice.mutable_restore()->set_branch(dir.asking_branch);
  const v1::CheckpointOrder& decision = dir.decided[dir.asking_branch] = std::move(choice);
  out_.remember_first = true;  // some ranks may have restored it when a new master is asked by the others
  for (const uint64_t session : std::exchange(dir.asking, {})) SendDecision(session, name, dir, decision);
  Note("checkpoint-restore", name, decision.reason(), decision.has_save() ? decision.save().step() : -1);
  if (dir.decided.size() > kMaxDecided) dir.decided.erase(dir.decided.begin());
}

void CheckpointDecisions::Find(const std::string& name, CheckpointDir& dir) {
  const uint64_t first = s_.members.front().session;
  if (dir.find_by != kNever || first == 0) return;
  if (AwaitsStore(dir)) return;
  dir.asked_at = now_;
  dir.find_by = now_ + kFindOnDiskMs;
  v1::CheckpointOrder order = OrderOf(name, {}, "a rank wants to restore");
  order.mutable_find()->set_archive(dir.archive);
  for (const std::string& damaged : dir.damaged) order.mutable_find()->add_but(damaged);
  for (const std::string& unread : dir.unread) order.mutable_find()->add_but(unread);
  for (const auto& [save, folder] : dir.doubts.kept.saves) {
    if (folder.empty()) continue;
    order.mutable_find()->add_but(folder);
    order.mutable_find()->add_doubted(folder);
    PassOver(dir, fmt::format("{}/{}: {}", name, folder, kDoubted));
  }
  SendTo(first, order);
}

bool IsDoubtedInMemory(const CheckpointDir& dir) {
  return OffersMemory(dir) && dir.doubts.kept.saves.contains(*dir.committed);
}

// Memory has something to go on from where storage does not answer for so long. What lives got nowhere with is worth
// more patience.
bool CheckpointDecisions::MayDoWithMemory(const CheckpointDir& dir, Instant since, int64_t patience_ms) const {
  return OffersMemory(dir) && now_ - since >= (IsDoubtedInMemory(dir) ? kDoubtedPatienceMs : patience_ms);
}

// Each node reads its own part, once a stream: what is damaged is known before any rank has loaded a part of it.
void CheckpointDecisions::Check(const std::string& name, CheckpointDir& dir) {
  v1::CheckpointOrder order = OrderOf(name, {0, dir.found->step()}, "it may be restored");
  order.mutable_check()->set_name(dir.found->name());
  order.mutable_check()->set_archive(dir.archive);
  if (dir.check_notice_at == kNever) {
    dir.check_at = now_;
    dir.check_notice_at = now_ + kStoreLagNoticeMs;
  }
  if (dir.checking.size() == s_.rank_of.size()) return;  // all that are here: a lost one is in neither
  for (const CheckpointMember& member : s_.members) {
    if (member.session != 0 && dir.checking.insert(member.session).second) SendTo(member.session, order);
  }
}

// A node's storage may hang while another one's answers.
void CheckpointDecisions::OnSlowCheck(const std::string& name, CheckpointDir& dir) {
  dir.check_notice_at = kNever;
  if (dir.asking.empty() || !dir.found) return;  // the next who asks has it checked on
  const std::string text = fmt::format("step {} of {} is read on storage for {} s, and {} not answered",
                                       dir.found->step(), name, (now_ - dir.check_at) / 1'000, Unheard(dir.checked));
  if (MayDoWithMemory(dir, dir.check_at, kCheckOnDiskMs)) {
    dir.found->set_step(-1);
    dir.found->set_why(text);
    return Decide(name, dir);
  }
  dir.check_notice_at = now_ + kStoreLagNoticeMs;
  Note("checkpoint-lag", name, text, dir.found->step());
}

// The members that are not in that set of sessions, by group rank; the first ones of many.
std::string CheckpointDecisions::Unheard(const std::set<uint64_t>& sessions) const {
  std::vector<size_t> ranks;
  for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
    if (!sessions.contains(s_.members[group_rank].session)) ranks.push_back(group_rank);
  }
  if (ranks.size() == 1) return fmt::format("the node of group rank {} has", ranks.front());
  const size_t named = std::min(ranks.size(), kMaxNodesNamed);
  const std::string more = ranks.size() > named ? fmt::format(" and {} more", ranks.size() - named) : "";
  return fmt::format("the nodes of group ranks {}{} have",
                     fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "), more);
}

void CheckpointDecisions::OnChecked(uint64_t session, const std::string& name, const v1::CheckedOnDisk& checked) {
  CheckpointDir& dir = s_.dirs[name];
  if (dir.asking.empty() || !dir.found || dir.found->name() != checked.name() || !dir.checking.contains(session))
    return;
  if (checked.error().empty()) {
    dir.checked.insert(session);
  } else if (dir.damaged.size() + dir.unread.size() >= kMaxDamaged) {
    dir.too_damaged = true;
    dir.found->set_step(-1);
    dir.found->set_why(fmt::format("more than {} steps on storage are damaged", kMaxDamaged));
    dir.check_notice_at = kNever;
  } else {
    out_.remember = out_.remember || !checked.unreadable();  // a new master need not have it read once more
    (checked.unreadable() ? dir.unread : dir.damaged).insert(checked.name());
    PassOver(dir, checked.error());
    dir.checking.clear();
    dir.checked.clear();
    dir.found.reset();
    dir.check_notice_at = kNever;
  }
  Decide(name, dir);
}

// Memory before storage, unless that holds a later save.
v1::CheckpointOrder CheckpointDecisions::Choose(const std::string& name, const CheckpointDir& dir) const {
  const bool memory = OffersMemory(dir) && !IsDoubtedInMemory(dir);
  const bool disk = dir.found->step() >= 0 && (!memory || IsNewerOnDisk(dir));
  std::string passed_over = dir.passed_over;
  if (!dir.found->why().empty()) passed_over += (passed_over.empty() ? "" : "; ") + dir.found->why();
  if (!passed_over.empty()) passed_over = fmt::format(" (passed over: {})", passed_over);
  if (disk) {
    v1::CheckpointOrder order = OrderOf(name, {0, dir.found->step()},
                                        fmt::format("step {} is restored from storage, {}{}", dir.found->step(),
                                                    PlaceOf(name, *dir.found), passed_over));
    order.mutable_restore()->set_source(v1::RestoreDecided::DISK);
    order.mutable_restore()->set_name(dir.found->name());
    order.mutable_restore()->set_world_size(dir.found->world_size());
    return order;
  }
  if (memory) {
    v1::CheckpointOrder order = OrderOf(
        name, *dir.committed, fmt::format("step {} is restored from memory{}", dir.committed->step, passed_over));
    order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
    order.mutable_restore()->set_world_size(dir.committed_world_size);
    return order;
  }
  const bool is_known = !dir.too_damaged && dir.unread.empty();
  const std::string what = !is_known        ? "whether there is a step to restore is not known of"
                           : dir.unreadable ? "not all nodes can have the step that memory holds of"
                                            : "there is nothing to restore in";
  v1::CheckpointOrder order = OrderOf(name, {0, -1}, fmt::format("{} {}{}", what, name, passed_over));
  if (!is_known || dir.unreadable) order.clear_save();  // the ranks fail: none begins anew
  order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
  return order;
}

}  // namespace phalanx::master

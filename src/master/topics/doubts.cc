#include "master/topics/doubts.h"

#include <utility>

namespace phalanx::master {
namespace {

// Lives in a row with one that fails now.
uint32_t FailedLives(const Doubts& doubts) {
  return doubts.kept.resumed == doubts.from ? doubts.kept.failed_lives + 1 : 1;
}

}  // namespace

void BeginDoubts(Doubts& doubts) {
  doubts.from.reset();
  doubts.told.clear();
}

void NoteDecided(Doubts& doubts, const std::optional<SaveKey>& from) {
  doubts.from = from;
  doubts.told.clear();
}

bool WouldDoubt(const Doubts& doubts, bool counts, uint32_t lives) {
  if (lives == 0 || !counts || !doubts.from || doubts.kept.tried_all) return false;
  return !doubts.kept.saves.contains(*doubts.from) && FailedLives(doubts) >= lives;
}

bool EndLife(Doubts& doubts, LifeEnd end, bool counts, uint32_t lives) {
  doubts.before_failure.reset();
  if (end == LifeEnd::kStepped) {
    doubts.kept.resumed.reset();
    doubts.kept.failed_lives = 0;
    doubts.kept.tried_all = false;
  }
  if (end != LifeEnd::kFailed || !counts || !doubts.from) return false;
  const bool doubted = WouldDoubt(doubts, counts, lives);
  doubts.before_failure = doubts.kept;
  doubts.kept.failed_lives = FailedLives(doubts);
  doubts.kept.resumed = doubts.from;
  if (!doubted) return false;
  if (doubts.kept.saves.size() == kMaxDoubted) doubts.kept.saves.erase(doubts.kept.saves.begin());
  doubts.kept.saves.emplace(*doubts.from, "");
  return true;
}

void ReturnLife(Doubts& doubts) {
  if (doubts.before_failure) doubts.kept = *std::exchange(doubts.before_failure, std::nullopt);
}

void NoteFolder(Doubts& doubts, const SaveKey& save, const std::string& folder) {
  const auto known = doubts.kept.saves.find(save);
  if (known != doubts.kept.saves.end()) known->second = folder;
}

bool TrustAgain(Doubts& doubts) {
  if (doubts.kept.saves.empty()) return false;
  doubts.kept = {};
  doubts.kept.tried_all = true;
  doubts.before_failure.reset();
  return true;
}

void Lift(Doubts& doubts, const SaveKey& stored, const std::string& folder) {
  NoteFolder(doubts, stored, folder);
  std::erase_if(doubts.kept.saves, [&](const auto& save) { return save.first < stored && save.second.empty(); });
}

}  // namespace phalanx::master

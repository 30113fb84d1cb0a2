#include "master/rules/budget.h"

#include <algorithm>

namespace phalanx::master {
namespace {

bool Renewed(const Budget& budget, Instant now) {
  return !budget.given && budget.stepping_since != kNever && now - budget.stepping_since >= budget.window_ms;
}

}  // namespace

uint32_t AllowedRestarts(const Budget& budget) { return budget.given.value_or(kDefaultRestarts); }

uint32_t RestartsLeft(const Budget& budget, Instant now) {
  const uint32_t used = Renewed(budget, now) ? 0 : budget.used;
  return AllowedRestarts(budget) - std::min(used, AllowedRestarts(budget));
}

void NoteStep(Budget& budget, Instant now) {
  budget.lives_without_step = 0;
  if (budget.stepping_since == kNever) budget.stepping_since = now;
}

Charge ChargeFailure(Budget& budget, bool stepped, bool older_next, const std::string& error, Instant now) {
  if (Renewed(budget, now)) budget.used = 0;
  budget.stepping_since = kNever;
  budget.lives_without_step = stepped ? 0 : budget.lives_without_step + 1;
  const bool same_error = !stepped && !older_next && !error.empty() && error == budget.last_error;
  budget.last_error = stepped ? "" : error;
  if (same_error) return Charge::kSameError;
  const bool repeats = budget.lives_without_step >= kCrashLoopLives && !older_next;
  if (!budget.given && repeats) return Charge::kCrashLoop;
  if (budget.used >= AllowedRestarts(budget)) return Charge::kExhausted;
  ++budget.used;
  return Charge::kRestart;
}

}  // namespace phalanx::master

#include "simulation/fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"

namespace phalanx::simulation {
namespace {

// By JournalDamage.
constexpr const char* kJournals[] = {"whole", "an earlier one", "torn", "gone"};

// By Moment.
constexpr std::array<const char*, kMoments> kMomentTexts = {
    "",
    "round {} was begun",
    "save {} was begun",
    "the first image of save {} was sealed",
    "save {} was committed",
    "folder {} was made",
    "the first shard of folder {} was written",
    "folder {} counted",
    "restore {} was decided",
    "the job's end was decided",
};

std::string Seconds(Micros t) { return fmt::format("{}.{:03} s", t / kSecond, t / kMs % 1'000); }

// Short enough to be a race, about a lease, or much longer than one.
Micros AnySpan(Random& random) {
  switch (random.Below(4)) {
    case 0:
      return random.Between(1, 300) * kMs;
    case 1:
      return random.Between(300, 2'900) * kMs;
    case 2:
      return random.Between(2'900, 6'000) * kMs;
    default:
      return random.Between(6, 25) * kSecond;
  }
}

void DrawParameters(Random& random, Fault& fault) {
  fault.lasts = AnySpan(random);
  switch (fault.kind) {
    case FaultKind::kWorkerCrash:
      fault.amount = random.OneOf({6, 9, 11});
      break;
    case FaultKind::kWorkerExit:
      fault.amount = random.OneOf({1, 2, 3, 77});
      break;
    case FaultKind::kWorkerUnkillable:
      fault.lasts = random.OneIn(4) ? random.Between(28, 40) * kSecond : AnySpan(random);
      break;
    case FaultKind::kCrashLoop:
      fault.amount = random.Between(1, 6);
      break;
    case FaultKind::kAgentKilled:
    case FaultKind::kNodeReset:
    case FaultKind::kNodePowerLoss:
      if (random.OneIn(4)) fault.lasts = 0;
      break;
    case FaultKind::kAgentTerm:
      fault.amount = random.OneIn(3) ? random.Between(1, 2'000) : 0;
      break;
    case FaultKind::kStreamReset:
    case FaultKind::kCutUp:
    case FaultKind::kCutDown:
    case FaultKind::kCutBoth:
    case FaultKind::kLook:
    case FaultKind::kNodeTaken:
      fault.amount = static_cast<int64_t>(random.Below(2));
      break;
    case FaultKind::kMasterKilled:
      fault.lasts = random.OneIn(3) ? AnySpan(random) : random.Between(20, 500) * kMs;
      fault.amount = random.OneIn(2) ? 0 : random.Between(1, 3);
      break;
    case FaultKind::kStorageSlow:
    case FaultKind::kSlowLink:
      fault.amount = random.OneOf({5, 50, 400, 1'500});
      break;
    default:
      break;
  }
}

FaultKind DrawKind(Random& random) {
  uint64_t total = 0;
  for (const FaultRow& row : FaultTable()) total += row.weight;
  uint64_t at = random.Below(total);
  for (const FaultRow& row : FaultTable()) {
    if (at < row.weight) return row.kind;
    at -= row.weight;
  }
  return FaultKind::kWorkerCrash;
}

}  // namespace

const std::vector<FaultRow>& FaultTable() {
  static const std::vector<FaultRow> kTable = {
      {FaultKind::kWorkerCrash, "worker-crash", "", "signal", 12},
      {FaultKind::kWorkerExit, "worker-exit", "", "exit code", 8},
      {FaultKind::kWorkerExitsEarly, "worker-exits-early", "", "", 2},
      {FaultKind::kWorkerHang, "worker-hang", "it goes on after", "", 3},
      {FaultKind::kWorkerUnkillable, "workers-unkillable", "for", "", 2},
      {FaultKind::kSlowStart, "slow-start", "the next start of a worker takes longer by", "", 4},
      {FaultKind::kCrashLoop, "crash-loop", "", "starts that fail", 2},
      {FaultKind::kStartFails, "start-fails", "", "", 1},
      {FaultKind::kZygoteDies, "zygote-dies", "", "", 4},
      {FaultKind::kAgentKilled, "agent-killed", "a new one comes after", "", 8},
      {FaultKind::kNodeReset, "node-reset", "it comes back after", "", 6},
      {FaultKind::kNodePowerLoss, "node-power-loss", "it comes back after", "", 6},
      {FaultKind::kNodeFrozen, "node-frozen", "for", "", 6},
      {FaultKind::kNodePaused, "node-paused", "with its clock, for", "", 3},
      {FaultKind::kAgentTerm, "agent-term", "", "ms to a second SIGTERM", 4},
      {FaultKind::kNodeTaken, "node-taken", "the platform says so for", "?it is, then", 5},
      {FaultKind::kStreamReset, "stream-reset", "", "?what is under way is lost", 8},
      {FaultKind::kCutUp, "cut-towards-master", "for", "?the stream breaks behind it", 4},
      {FaultKind::kCutDown, "cut-from-master", "for", "?the stream breaks behind it", 4},
      {FaultKind::kCutBoth, "cut-off", "from all, for", "?the stream breaks behind it", 5},
      {FaultKind::kSlowLink, "slow-link", "for", "ms more", 6},
      {FaultKind::kMasterFrozen, "master-frozen", "for", "", 4},
      {FaultKind::kMasterKilled, "master-killed", "a new one starts after", "the journal is", 6},
      {FaultKind::kLook, "somebody-looks", "", "?at each rank", 4},
      {FaultKind::kStorageFails, "storage-fails", "every write, for", "", 4},
      {FaultKind::kStorageHangs, "storage-hangs", "for", "", 4},
      {FaultKind::kStorageSlow, "storage-slow", "for", "ms more", 3},
  };
  return kTable;
}

const FaultRow& RowOf(FaultKind kind) {
  const auto& table = FaultTable();
  const auto row = std::find_if(table.begin(), table.end(), [kind](const FaultRow& r) { return r.kind == kind; });
  PHX_CHECK(row != table.end(), "a fault without its row");
  return *row;
}

std::string Describe(const Fault& fault) {
  const FaultRow& row = RowOf(fault.kind);
  std::string text = row.name;
  if (fault.kind < FaultKind::kMasterFrozen) text += fmt::format(" on node{}", fault.machine);
  if (fault.moment != Moment::kTime) {
    const char* const moment = kMomentTexts[static_cast<size_t>(fault.moment)];
    text += fmt::format(", {} after {}", Seconds(fault.at), fmt::format(fmt::runtime(moment), fault.nth));
  } else {
    text += fmt::format(" at {}", Seconds(fault.at));
  }
  std::string separator = ": ";
  auto add = [&](const std::string& part) { text += std::exchange(separator, ", ") + part; };
  if (std::string_view(row.name).starts_with("worker-")) add(fmt::format("local rank {}", fault.which));
  if (*row.lasts != '\0' && fault.lasts > 0) add(fmt::format("{} {}", row.lasts, Seconds(fault.lasts)));
  if (*row.lasts != '\0' && fault.lasts == 0) add("for good");
  if (*row.amount == '?') {
    if (fault.amount == 1) add(row.amount + 1);
  } else if (fault.kind == FaultKind::kMasterKilled) {
    add(fmt::format("{} {}", row.amount, kJournals[static_cast<size_t>(fault.amount)]));
  } else if (*row.amount != '\0') {
    add(fmt::format("{} {}", row.amount, fault.amount));
  }
  return text;
}

Micros EndOf(const Fault& fault, Micros latest_moment) {
  const Micros begin = fault.moment == Moment::kTime ? fault.at : latest_moment + fault.at;
  return begin + fault.lasts + (fault.kind == FaultKind::kAgentTerm ? fault.amount * kMs : 0);
}

std::vector<Fault> DrawFaults(Random& random, const FaultLimits& limits) {
  std::vector<Fault> faults;
  const uint64_t count = random.OneIn(8) ? 0 : 1 + random.Below(random.OneIn(4) ? 10 : 4);
  // Races need company: most faults come close to another.
  Micros moment = random.Between(0, limits.until);
  uint32_t machine = static_cast<uint32_t>(random.Below(limits.machines));
  for (uint64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = DrawKind(random);
    if (random.OneIn(2)) machine = static_cast<uint32_t>(random.Below(limits.machines));
    fault.machine = machine;
    fault.which = static_cast<uint32_t>(random.Below(limits.workers));
    if (random.OneIn(3)) {  // at a point of a round
      fault.moment = Moment::kRound;
      fault.nth = static_cast<uint32_t>(1 + random.Below(4));
      fault.at = random.OneIn(2) ? random.Between(0, 3'000) : random.Between(0, 3'000) * kMs;
    } else if (limits.saves && random.OneIn(2)) {  // at a point of a save
      fault.moment = static_cast<Moment>(
          random.Between(static_cast<int64_t>(Moment::kCopy), static_cast<int64_t>(Moment::kRestore)));
      fault.nth = static_cast<uint32_t>(1 + random.Below(random.OneIn(2) ? 3 : 12));
      fault.at = random.OneIn(3) ? 0 : random.OneIn(2) ? random.Between(0, 3'000) : random.Between(0, 300) * kMs;
    } else {
      if (random.OneIn(2)) moment = random.Between(0, limits.until);
      fault.at = moment + random.Between(0, 100) * (random.OneIn(2) ? kMs : 50 * kMs);
    }
    DrawParameters(random, fault);
    faults.push_back(fault);
  }
  return faults;
}

}  // namespace phalanx::simulation

#include "simulation/saving.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/disk/manifest.h"
#include "simulation/judge.h"
#include "simulation/story.h"

namespace phalanx::simulation {

namespace ckpt = phalanx::checkpoint;

namespace {

ckpt::ControlPage Parse(SharedPage& page) {
  alignas(8) uint8_t copy[ckpt::kControlBytes];
  ckpt::Control(page.bytes.data()).Copy(copy);
  ckpt::ControlPage parsed;
  ckpt::ParseControl(copy, sizeof copy, &parsed);
  return parsed;
}

// Tells the ranks of one round from those of another that has the same number, as a master that has lost its journal
// may give it.
uint64_t TimelineOf(const WorkerProcess& process) {
  uint64_t hash = process.epoch * 0x9E3779B97F4A7C15ULL + process.store_port;
  for (const char c : process.store_address) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3ULL;
  return hash;
}

}  // namespace

// --- load ---------------------------------------------------------------------------------------------------------

void RankSaves::Load(const Process& process, SimKeeper& keeper, std::function<void(const Restored&)> on_read,
                     std::function<void(const std::string&)> fail) {
  // Named files are read when the script likes.
  const bool reads_all = parts_.saving.form == kDcpForm;
  const auto done = [process, &keeper, reads_all, on_read = std::move(on_read)](const Restored& restored) {
    if (reads_all) keeper.RestoreDone(process);
    on_read(restored);
  };
  parts_.story.Say(parts_.queue.now(), process->machine->name, "rank {} of epoch {} loads", process->rank,
                   process->epoch);
  keeper.Open(process, [this, process, &keeper, done, fail = std::move(fail)] {
    keeper.Restore(process, [this, process, &keeper, done, fail](const RestoreAnswer& answer) {
      const bool disk = answer.order.restore().source() == v1::RestoreDecided::DISK;
      const std::vector<uint32_t> wanted = WantedOf(process, answer);
      if (!wanted.empty()) {
        return keeper.AskImages(process, wanted, [this, process, answer, done, fail](const ImagesAnswer& images) {
          RestoreAnswer whole = answer;
          whole.refused = images.refused;
          whole.fetched.insert(whole.fetched.end(), images.images.begin(), images.images.end());
          Read(process, whole, done, fail);
        });
      }
      if (!disk) return Read(process, answer, done, fail);
      parts_.queue.After(parts_.saving.write, [this, process, answer, done, fail] {
        process->machine->gate.Pass([this, process, answer, done, fail] { Read(process, answer, done, fail); });
      });
    });
  });
}

std::vector<uint32_t> RankSaves::WantedOf(const Process& process, const RestoreAnswer& answer) const {
  std::vector<uint32_t> wanted;
  const v1::RestoreDecided& decided = answer.order.restore();
  const bool is_shared_out =
      parts_.saving.form.own == FileNeed::kAnyRank && decided.source() == v1::RestoreDecided::MEMORY;
  if (!is_shared_out || !answer.refused.empty()) return wanted;
  for (uint32_t rank = process->rank; rank < decided.world_size(); rank += process->world_size) {
    if (!answer.images.files.ranks.contains(std::to_string(rank))) wanted.push_back(rank);
  }
  return wanted;
}

void RankSaves::Read(const Process& process, const RestoreAnswer& answer,
                     const std::function<void(const Restored&)>& done,
                     const std::function<void(const std::string&)>& fail) const {
  if (!process->runs || process->dying || process->ended) return;
  const v1::RestoreDecided& decided = answer.order.restore();
  Restored restored{decided.source(), KeyOf(answer.order.save()), decided.name(), 0};
  std::string missing = answer.refused;
  if (missing.empty() && decided.source() == v1::RestoreDecided::MEMORY)
    missing = ReadMemory(process, answer, restored);
  if (decided.source() == v1::RestoreDecided::DISK) missing = ReadStorage(process, answer, restored);
  if (missing.empty()) {
    parts_.judge.saves().OnRestored(process, answer.images.images);
    return done(restored);
  }
  parts_.judge.saves().OnNotRestored(*process, decided.name(), missing);
  fail(missing);
}

// What it needs is among what it was given, and still in its slot.
std::string RankSaves::ReadMemory(const Process& process, const RestoreAnswer& answer, Restored& restored) const {
  const agent::RestoreFiles& files = answer.images.files;
  const std::string& needed = parts_.saving.form.shared ? files.main : files.own;
  if (needed.empty()) return "its node has no image for it";
  for (const ckpt::MemoryImage& image : answer.images.images) {
    const auto page = process->machine->shared_memory.find(image.page);
    if (page == process->machine->shared_memory.end()) return fmt::format("{} is gone", image.path);
    const ckpt::ControlPage now = Parse(*page->second);
    const ckpt::Slot& slot = now.slots.at(static_cast<size_t>(image.slot));
    if (!slot.sealed() || slot.generation != image.generation || KeyOf(slot.image) != restored.save) {
      return fmt::format("{} was written over", image.path);
    }
    if (restored.timeline != 0 && restored.timeline != slot.image.layout_hash) return "its images are of two rounds";
    restored.timeline = slot.image.layout_hash;
  }
  for (const ckpt::SlotImage& image : answer.fetched) {
    if (KeyOf(image) != restored.save) return "an image that was read from another node is of another save";
    if (restored.timeline != 0 && restored.timeline != image.layout_hash) return "its images are of two rounds";
    restored.timeline = image.layout_hash;
  }
  return "";
}

std::string RankSaves::ReadStorage(const Process& process, const RestoreAnswer& answer, Restored& restored) const {
  const StoredStep* const step = parts_.storage.Look(restored.name);
  if (step == nullptr || !step->manifest) return fmt::format("{}/{} is gone", kCheckpointDir, restored.name);
  const agent::RestoreFiles& files = answer.images.files;
  const bool had = step->shards.contains(process->rank);
  if (parts_.saving.form.own != FileNeed::kAnyRank && had && files.own.empty())
    return "it was given no shard of its own";
  if (parts_.saving.form.own == FileNeed::kNobody && files.main.empty()) return "it was given no shard that all share";
  restored.timeline = step->shards.begin()->second.layout_hash;
  return "";
}

// --- save ---------------------------------------------------------------------------------------------------------

Micros RankSaves::Save(const Process& process, SimKeeper& keeper, int64_t step, bool store) {
  if (store) process->store_step = step;
  Copy copy;
  copy.process = process;
  copy.keeper = &keeper;
  copy.store = store;
  copy.image.step = step;
  copy.image.epoch = process->epoch;
  copy.image.bytes = ckpt::kControlBytes;
  copy.image.rank = process->rank;
  copy.image.world_size = process->world_size;
  copy.image.layout_hash = TimelineOf(*process);
  copy.image.form = parts_.saving.form;
  copy.page = process->own_page;
  const Micros own = BeginCopy(copy);
  if (!parts_.saving.form.shared || process->local_rank != 0) return own;
  copy.main = true;
  copy.page = process->main_page;
  return std::max(own, BeginCopy(copy));
}

Micros RankSaves::BeginCopy(Copy copy) {
  ckpt::ControlPage now = Parse(*copy.page);
  if (now.slots.empty()) {
    copy.keeper->Prepare(copy.process, copy.main);
    now = Parse(*copy.page);
  }
  ckpt::SlotChoice choice = ckpt::ChooseSlots(now);
  bool begun = false;
  for (const int slot : choice.slots) {
    copy.slot = slot;
    const ckpt::Slot& seen = now.slots[static_cast<size_t>(slot)];
    begun = ckpt::Control(copy.page->bytes.data()).Begin(slot, seen, &copy.generation, &choice.why_not);
    if (begun) break;
  }
  if (!begun) {
    copy.process->store_step = -1;  // its handle says so
    copy.keeper->Skipped(copy.process, copy.image.step, choice.why_not);
    return 0;
  }
  parts_.judge.saves().OnCopyBegins(*copy.process, *copy.page, copy.slot, KeyOf(copy.image));
  const Micros takes = random_.Between(parts_.saving.copy / 8, parts_.saving.copy);
  parts_.queue.After(takes, [this, copy = std::move(copy)]() mutable {
    Gate& gate = copy.process->machine->gate;
    gate.Pass([this, copy = std::move(copy)] { Seal(copy); });
  });
  return takes;
}

// By a thread of the rank, whatever its Python does.
void RankSaves::Seal(const Copy& copy) const {
  const WorkerProcess& p = *copy.process;
  if (!p.runs || p.dying || p.ended || !p.machine->powered) return;
  if (!ckpt::Control(copy.page->bytes.data()).Seal(copy.slot, copy.generation, copy.image)) return;
  parts_.judge.saves().OnSealed(p, copy.image, copy.main);
  copy.keeper->Sealed(copy.process, copy.main, copy.image.step, copy.store);
}

void RankSaves::AwaitStored(const Process& process, SimKeeper& keeper, std::function<void()> done) {
  if (process->store_step < 0) return done();
  keeper.Wait(process, process->store_step, true, [done = std::move(done)](const std::string&) { done(); });
}

}  // namespace phalanx::simulation

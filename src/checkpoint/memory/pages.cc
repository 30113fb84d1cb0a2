#include "checkpoint/memory/pages.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "checkpoint/rank/memory_names.h"

namespace phalanx::checkpoint {
namespace {

std::string SizeText(uint64_t bytes) {
  constexpr uint64_t kMiB = 1 << 20;
  return bytes < kMiB ? fmt::format("{} KiB", bytes >> 10) : fmt::format("{} MiB", bytes / kMiB);
}

}  // namespace

std::string NodePages::Page::SlotPath(int slot, uint64_t number) const {
  return fmt::format("{}/{}", folder, SlotName(name, slot, number));
}

ControlPage NodePages::Page::Parse() const {
  alignas(8) uint8_t copy[kControlBytes];
  control().Copy(copy);
  ControlPage page;
  if (!ParseControl(copy, sizeof copy, &page).empty()) page.slots.clear();
  return page;
}

NodePages::Page* NodePages::Find(const std::string& dir, const std::string& name) {
  return const_cast<Page*>(std::as_const(*this).Find(dir, name));
}

const NodePages::Page* NodePages::Find(const std::string& dir, const std::string& name) const {
  const auto pages = dirs_.find(dir);
  if (pages == dirs_.end()) return nullptr;
  const auto page = pages->second.find(name);
  return page == pages->second.end() ? nullptr : &page->second;
}

// --- pages and their files ----------------------------------------------------------------------------------------

void NodePages::Add(const std::string& dir, const std::string& name, const std::string& folder, uint8_t* bytes) {
  Page& page = dirs_[dir][name];
  page = {name, folder, bytes, 1, {}, {}, {}, {}, {}, {}, 0, 0, 0};
  ControlPage parsed;
  if (!ParseControl(bytes, kControlBytes, &parsed).empty()) page.control().Format(live_epoch_);
  const ControlPage now = page.Parse();
  for (size_t slot = 0; slot < now.slots.size(); ++slot) {
    const Slot& each = now.slots[slot];
    if (each.held != 0) page.control().Release(static_cast<int>(slot));
    if (each.sealed()) highest_epoch_ = std::max(highest_epoch_, each.image.epoch);
    if (each.file_number == 0) continue;
    page.next_number = std::max(page.next_number, each.file_number + 1);
    // Ranks of an earlier life may have had it mapped, or have it still.
    if (each.is_committed()) page.replaced_next.insert(static_cast<int>(slot));
  }
}

void NodePages::Forget(const std::string& dir, const std::string& name) {
  const auto pages = dirs_.find(dir);
  if (pages != dirs_.end()) pages->second.erase(name);
}

void NodePages::MarkOpened(const std::string& dir, const std::string& name) {
  Page* const page = Find(dir, name);
  if (page != nullptr) page->opened_epoch = live_epoch_;
}

std::vector<std::string> NodePages::Unneeded(const std::string& dir, const SaveKey& save) const {
  std::vector<std::string> names;
  const auto pages = dirs_.find(dir);
  if (pages == dirs_.end() || save.epoch != live_epoch_) return names;
  for (const auto& [name, page] : pages->second) {
    const bool is_used = page.opened_epoch == live_epoch_ || !page.readers.empty() || !page.replacing.empty();
    if (!is_used) names.push_back(name);
  }
  return names;
}

std::set<std::string> NodePages::Files(const std::string& dir, const std::string& name) const {
  std::set<std::string> files;
  const Page* const page = Find(dir, name);
  if (page == nullptr) return files;
  const ControlPage now = page->Parse();
  for (size_t slot = 0; slot < now.slots.size(); ++slot) {
    const uint64_t number = now.slots[slot].file_number;
    if (number != 0) files.insert(page->SlotPath(static_cast<int>(slot), number));
  }
  return files;
}

void NodePages::SkipNumber(const std::string& dir, const std::string& name, uint64_t number) {
  Page* const page = Find(dir, name);
  if (page != nullptr) page->next_number = std::max(page->next_number, number + 1);
}

void NodePages::SetLiveEpoch(uint64_t epoch) {
  live_epoch_ = epoch;
  for (const auto& [dir, pages] : dirs_) {
    for (const auto& [name, page] : pages) page.control().SetLiveEpoch(epoch);
  }
}

SlotFile NodePages::NewFile(Page& page, int slot, uint64_t bytes) {
  const uint64_t number = page.next_number++;
  return {slot, number, page.SlotPath(slot, number), bytes};
}

// Its image is what a restore begins with, is being read, or may be committed yet.
bool NodePages::MustStay(const Page& page, const ControlPage& now, int slot) const {
  if (slot >= static_cast<int>(now.slots.size()) || now.slots[static_cast<size_t>(slot)].file_number == 0) return false;
  const int newest = NewestCommitted(now);
  if (slot == newest || page.readers.contains(slot)) return true;
  const Slot& found = now.slots[static_cast<size_t>(slot)];
  const bool may_count = HasImage(page, found, slot) && !found.is_committed() && found.image.epoch == live_epoch_;
  return may_count && (newest < 0 || KeyOf(now.slots[static_cast<size_t>(newest)].image) < KeyOf(found.image));
}

// A slot keeps a file of an older plan's size for as long as it must.
void NodePages::Outgrow(Page& page, int slot) {
  page.replaced_next.insert(slot);
  page.misfits.insert(slot);
}

StatusOr<SlotPlan> NodePages::Plan(const std::string& dir, const std::string& name, const SlotsWanted& wanted,
                                   uint64_t free_bytes,
                                   const std::function<uint64_t(const std::string& path)>& bytes_of) {
  Page* const page = Find(dir, name);
  if (page == nullptr) return absl::NotFoundError(fmt::format("{} has not been opened", dir));
  const ControlPage now = page->Parse();
  SlotPlan plan{dir, name, wanted.bytes, 0, {}, ""};
  uint64_t taken = 0;
  uint64_t total = 0;
  int slots = wanted.slots;
  for (int slot = slots; slot < static_cast<int>(now.slots.size()); ++slot) {
    if (MustStay(*page, now, slot)) slots = slot + 1;  // of a Checkpointer that had more of them
  }
  for (int slot = 0; slot < slots; ++slot) {
    const bool there =
        slot < static_cast<int>(now.slots.size()) && now.slots[static_cast<size_t>(slot)].file_number != 0;
    const uint64_t number = there ? now.slots[static_cast<size_t>(slot)].file_number : 0;
    const bool fits = there && bytes_of(page->SlotPath(slot, number)) == wanted.bytes;
    const bool stays = fits || MustStay(*page, now, slot) || page->replacing.contains(slot);
    const uint64_t more = stays ? 0 : wanted.bytes;
    const std::string limit =
        taken + more > free_bytes
            ? fmt::format(
                  "{} MiB of /dev/shm or of the group's memory are free beyond the 64 MiB that others keep "
                  "(`phalanx ckpt ls /dev/shm` shows what dead jobs have left there)",
                  free_bytes >> 20)
        : wanted.budget != 0 && total + wanted.bytes > wanted.budget
            ? fmt::format("memory_budget is {} MiB", wanted.budget >> 20)
            : "";
    if (!limit.empty() && !stays) {
      if (slot >= 2) {
        plan.why = fmt::format("{} slots of {} MiB instead of {}: {}", slot, wanted.bytes >> 20, wanted.slots, limit);
        break;
      }
      return absl::ResourceExhaustedError(fmt::format("{}: two slots of {} each are needed for page '{}', and {}", dir,
                                                      SizeText(wanted.bytes), name, limit));
    }
    total += wanted.bytes;
    taken += more;
    ++plan.slots;
    page->misfits.erase(slot);
    if (stays && !fits) Outgrow(*page, slot);
    if (stays) continue;
    std::erase(page->to_tell, slot);  // one that went without a file
    plan.files.push_back(NewFile(*page, slot, wanted.bytes));
  }
  page->planned_bytes = plan.bytes;
  page->planned_slots = plan.slots;
  return plan;
}

void NodePages::Abandon(const SlotPlan& plan) {
  Page* const page = Find(plan.dir, plan.page);
  if (page == nullptr) return;
  page->planned_bytes = 0;
  const ControlPage now = page->Parse();
  for (const SlotFile& file : plan.files) {
    const auto slot = static_cast<size_t>(file.slot);
    const bool has_none = slot < now.slots.size() && now.slots[slot].file_number == 0;
    if (has_none && !IsTold(*page, file.slot)) page->to_tell.push_back(file.slot);
  }
}

bool NodePages::IsTold(const Page& page, int slot) {
  return std::ranges::find(page.to_tell, slot) != page.to_tell.end();
}

bool NodePages::IsOutdated(const Page& page, const SlotPlan& plan) {
  return page.planned_bytes != 0 && (plan.bytes != page.planned_bytes || plan.slots != page.planned_slots);
}

std::vector<std::string> NodePages::TellAgain(Page& page, const SlotPlan& plan) {
  std::vector<std::string> unnamed;
  for (const SlotFile& file : plan.files) {
    if (file.number != 0) unnamed.push_back(file.path);
    if (page.replacing.contains(file.slot) && !IsTold(page, file.slot)) page.to_tell.push_back(file.slot);
  }
  return unnamed;
}

std::vector<std::string> NodePages::Install(const SlotPlan& plan) {
  std::vector<std::string> unnamed;
  Page* const page = Find(plan.dir, plan.page);
  if (page == nullptr) {
    for (const SlotFile& file : plan.files) unnamed.push_back(file.path);
    return unnamed;
  }
  if (IsOutdated(*page, plan)) return TellAgain(*page, plan);
  const ControlPage before = page->Parse();
  std::vector<uint64_t> numbers;
  for (const Slot& slot : before.slots) numbers.push_back(slot.file_number);
  numbers.resize(static_cast<size_t>(plan.slots));
  for (const SlotFile& file : plan.files) {
    if (MustStay(*page, before, file.slot)) {  // by now: files are made while saves go on
      unnamed.push_back(file.path);
      Outgrow(*page, file.slot);
    } else {
      numbers[static_cast<size_t>(file.slot)] = file.number;
    }
  }
  page->control().SetSlots(static_cast<uint32_t>(numbers.size()), plan.bytes, numbers.data());
  std::erase_if(page->to_tell, [&numbers](int slot) { return slot >= static_cast<int>(numbers.size()); });
  for (size_t slot = 0; slot < before.slots.size(); ++slot) {
    const uint64_t old = before.slots[slot].file_number;
    const bool stays = slot < numbers.size() && numbers[slot] == old;
    if (stays || old == 0) continue;
    unnamed.push_back(page->SlotPath(static_cast<int>(slot), old));
    page->replaced_next.erase(static_cast<int>(slot));
    page->misfits.erase(static_cast<int>(slot));
    if (page->replacing.erase(static_cast<int>(slot)) > 0) page->control().Release(static_cast<int>(slot));
  }
  return unnamed;
}

// --- images -------------------------------------------------------------------------------------------------------

bool NodePages::HasImage(const Page& page, const Slot& slot, int index) {
  if (!slot.sealed() || slot.file_number == 0 || slot.is_dropped()) return false;
  return !page.replacing.contains(index);
}

// A page that has two images of a save, since the step was saved twice: that which is committed, else the first.
int NodePages::SlotOf(const Page& page, const ControlPage& now, const SaveKey& save) {
  int found = -1;
  const auto order = [&now](int index) {
    const Slot& slot = now.slots[static_cast<size_t>(index)];
    return std::pair(!slot.is_committed(), slot.generation);
  };
  for (int index = 0; index < static_cast<int>(now.slots.size()); ++index) {
    const Slot& slot = now.slots[static_cast<size_t>(index)];
    if (!HasImage(page, slot, index) || KeyOf(slot.image) != save) continue;
    if (found < 0 || order(index) < order(found)) found = index;
  }
  return found;
}

MemoryImage NodePages::ImageIn(const std::string& dir, const Page& page, const Slot& slot, int index) {
  return {dir,        page.name,          page.SlotPath(index, slot.file_number), index, slot.generation,
          slot.image, slot.is_committed()};
}

std::vector<MemoryImage> NodePages::Images() const {
  std::vector<MemoryImage> images;
  for (const auto& [dir, pages] : dirs_) {
    for (const auto& [name, page] : pages) {
      const ControlPage now = page.Parse();
      for (int index = 0; index < static_cast<int>(now.slots.size()); ++index) {
        const Slot& slot = now.slots[static_cast<size_t>(index)];
        if (HasImage(page, slot, index)) images.push_back(ImageIn(dir, page, slot, index));
      }
    }
  }
  return images;
}

std::vector<MemoryImage> NodePages::Images(const std::string& dir, const SaveKey& save) const {
  std::vector<MemoryImage> images;
  const auto pages = dirs_.find(dir);
  if (pages == dirs_.end()) return images;
  for (const auto& [name, page] : pages->second) {
    const ControlPage now = page.Parse();
    const int index = SlotOf(page, now, save);
    if (index >= 0) images.push_back(ImageIn(dir, page, now.slots[static_cast<size_t>(index)], index));
  }
  return images;
}

void NodePages::Commit(const std::string& dir, const SaveKey& save) {
  const auto pages = dirs_.find(dir);
  if (pages == dirs_.end()) return;
  for (auto& [name, page] : pages->second) {
    const ControlPage now = page.Parse();
    const int committed = SlotOf(page, now, save);
    if (committed < 0) continue;
    // First: an older one that nobody holds may be written into once another is committed.
    ReplaceOlder(page, committed);
    page.control().SetCommitted(committed, now.slots[static_cast<size_t>(committed)].generation);
  }
}

void NodePages::ReplaceOlder(Page& page, int committed) const {
  for (const int slot : std::exchange(page.replaced_next, {})) {
    const ControlPage now = page.Parse();
    if (slot >= static_cast<int>(now.slots.size())) continue;
    const Slot& found = now.slots[static_cast<size_t>(slot)];
    const bool is_read = page.readers.contains(slot);
    if (slot != committed && is_read) page.overdue[slot] = live_epoch_;
    // A newer one may be committed yet.
    const bool is_newer =
        HasImage(page, found, slot) && KeyOf(now.slots[static_cast<size_t>(committed)].image) < KeyOf(found.image);
    if (slot == committed || is_read || is_newer) {
      page.replaced_next.insert(slot);
      continue;
    }
    if (!page.control().Hold(slot, now.slots[static_cast<size_t>(slot)].generation)) continue;  // empty by now
    Replace(page, slot);
  }
}

// The slot is held, so that nobody writes into the file that it has until then.
void NodePages::Replace(Page& page, int slot) {
  page.replaced_next.erase(slot);
  page.replacing.insert(slot);
  page.to_tell.push_back(slot);
}

void NodePages::Drop(const std::string& dir, const SaveKey& save) {
  const auto pages = dirs_.find(dir);
  if (pages == dirs_.end()) return;
  for (auto& [name, page] : pages->second) {
    const ControlPage now = page.Parse();
    for (int index = 0; index < static_cast<int>(now.slots.size()); ++index) {
      const Slot& slot = now.slots[static_cast<size_t>(index)];
      if (!HasImage(page, slot, index) || KeyOf(slot.image) != save || slot.is_committed()) continue;
      page.control().SetDropped(index, slot.generation);
      const bool waits = page.misfits.contains(index) && !page.readers.contains(index);
      if (waits && page.control().Hold(index, slot.generation)) Replace(page, index);
    }
  }
}

bool NodePages::GiveUp(const MemoryImage& image) {
  Page* const page = Find(image.dir, image.page);
  if (page == nullptr) return false;
  const ControlPage now = page->Parse();
  const auto slot = static_cast<size_t>(image.slot);
  if (slot >= now.slots.size() || now.slots[slot].generation != image.generation) return false;
  page->control().SetCommitted(image.slot, 0);
  page->control().SetDropped(image.slot, image.generation);
  return true;
}

bool NodePages::Hold(const MemoryImage& image) {
  Page* const page = Find(image.dir, image.page);
  if (page == nullptr || !page->control().Hold(image.slot, image.generation)) return false;
  ++page->readers[image.slot];
  return true;
}

void NodePages::Release(const MemoryImage& image) {
  Page* const page = Find(image.dir, image.page);
  if (page == nullptr || !page->readers.contains(image.slot) || --page->readers[image.slot] > 0) return;
  page->readers.erase(image.slot);
  if (page->replacing.contains(image.slot)) return;
  // Ranks of this round may have it mapped. Those of one before are gone, and the next may want to restore it.
  const auto overdue = page->overdue.extract(image.slot);
  if (!overdue.empty() && overdue.mapped() == live_epoch_) return Replace(*page, image.slot);
  // No save would fit into it, and without one nothing would be committed behind which it is replaced.
  const bool waits = page->misfits.contains(image.slot);
  if (waits && !MustStay(*page, page->Parse(), image.slot)) return Replace(*page, image.slot);
  page->control().Release(image.slot);
}

bool NodePages::HandOut(const MemoryImage& image, uint64_t free_bytes) {
  Page* const page = Find(image.dir, image.page);
  if (page == nullptr) return false;
  MakeNewest(*page, image);
  const bool fresh = page->replaced_next.insert(image.slot).second;
  if (DueBytes() > free_bytes) {
    if (fresh) page->replaced_next.erase(image.slot);
    return false;
  }
  // Not the newest any more, and free to be written over: it was handed out late.
  const bool is_newest = NewestCommitted(page->Parse()) == image.slot;
  if (is_newest) return true;
  if (page->readers.contains(image.slot)) {
    page->overdue[image.slot] = live_epoch_;
    return true;
  }
  if (page->control().Hold(image.slot, image.generation)) Replace(*page, image.slot);
  return true;
}

// What the job goes on from is committed, whether this node has heard so or not. Newer saves of earlier rounds were
// passed over for it: they lead nowhere, and would count as newer for ever.
void NodePages::MakeNewest(Page& page, const MemoryImage& image) const {
  const ControlPage now = page.Parse();
  for (size_t i = 0; i < now.slots.size(); ++i) {
    const Slot& slot = now.slots[i];
    const int index = static_cast<int>(i);
    if (index == image.slot && slot.generation == image.generation) {
      page.control().SetCommitted(index, slot.generation);
    } else if (slot.sealed() && slot.image.epoch < live_epoch_ && KeyOf(slot.image) > KeyOf(image.image)) {
      page.control().SetCommitted(index, 0);
      page.control().SetDropped(index, slot.generation);
    }
  }
}

// What files that are to be replaced will take a second time.
uint64_t NodePages::DueBytes() const {
  uint64_t bytes = 0;
  for (const auto& [dir, pages] : dirs_) {
    for (const auto& [name, page] : pages) {
      const size_t due = page.replaced_next.size() + page.replacing.size();
      if (due > 0) bytes += due * page.Parse().slot_bytes;
    }
  }
  return bytes;
}

std::vector<SlotPlan> NodePages::Replacements() {
  std::vector<SlotPlan> plans;
  for (auto& [dir, pages] : dirs_) {
    for (auto& [name, page] : pages) {
      if (page.to_tell.empty()) continue;
      const ControlPage now = page.Parse();
      SlotPlan plan{dir, name, now.slot_bytes, static_cast<int>(now.slots.size()), {}, ""};
      for (const int slot : std::exchange(page.to_tell, {})) plan.files.push_back(NewFile(page, slot, now.slot_bytes));
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

SlotPlan NodePages::Postponed(const SlotPlan& plan, bool* had) {
  *had = false;
  SlotPlan without = plan;
  Page* const page = Find(plan.dir, plan.page);
  if (page == nullptr) return without;
  const ControlPage before = page->Parse();
  for (SlotFile& file : without.files) {
    const auto slot = static_cast<size_t>(file.slot);
    *had = *had || (slot < before.slots.size() && before.slots[slot].file_number != 0);
    file.number = 0;
    page->to_tell.push_back(file.slot);
  }
  return without;
}

}  // namespace phalanx::checkpoint

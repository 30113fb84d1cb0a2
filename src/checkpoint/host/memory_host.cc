#include "checkpoint/host/memory_host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <limits>
#include <system_error>
#include <vector>

#include "base/fd.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/control.h"
#include "checkpoint/rank/memory_names.h"

namespace phalanx::checkpoint {
namespace {

using Json = nlohmann::json;

// Where an agent has its address. No agent's is this one, so that no agent's memory is taken for a host's.
constexpr const char* kAddress = "no agent";
// All saves of a process are of one round.
constexpr uint64_t kEpoch = 1;
constexpr const char* kOwnPage = "0";
constexpr int64_t kBytesMax = int64_t{1} << 48;

void RemoveDead(const std::string& root) {
  const StatusOr<std::vector<MemoryFolder>> all = ReadMemories(root);
  if (!all.ok()) return;
  for (const MemoryFolder& memory : *all) {
    if (!memory.own || memory.address != kAddress) continue;
    const StatusOr<Fd> lock = LockMemory(memory.path);
    std::error_code error;
    if (lock.ok()) std::filesystem::remove_all(memory.path, error);
  }
}

// Of all hosts of this user on this machine one reserves memory at a time: what one takes is not free for the next.
// Held while it lives; not valid where the file cannot be had, and then nobody waits.
Fd WaitForTurn(const std::string& root) {
  const std::string path = fmt::format("{}/{}{}.turn", root, kMemoryPrefix, geteuid());
  Fd turn(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info {};
  const bool is_own = turn.valid() && fstat(turn.get(), &info) == 0 && S_ISREG(info.st_mode) &&
                      info.st_uid == geteuid() && (info.st_mode & 077) == 0;
  if (!is_own) return Fd();
  while (flock(turn.get(), LOCK_EX) != 0) {
    if (errno != EINTR) return Fd();
  }
  return turn;
}

SaveKey SaveIn(Request& request) {
  SaveKey save{.epoch = kEpoch};
  save.step = request.Number("step", std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  save.branch = static_cast<uint32_t>(request.Number("branch", 0, std::numeric_limits<uint32_t>::max()));
  return save;
}

// A rank's own page has a number for a name, as those of a node's ranks have.
std::string PageIn(Request& request) {
  std::string page = request.Text("page", 16);
  if (page == "own") return kOwnPage;
  return page;
}

Status CheckPage(const std::string& page) {
  if (page == kOwnPage || IsSharedPage(page)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("page is '{}': expected own or main", page));
}

}  // namespace

StatusOr<MemoryHost> MemoryHost::Open(const std::string& root, int64_t owner) {
  RemoveDead(root);
  PHX_ASSIGN_OR_RETURN(std::unique_ptr<NodeMemory> memory,
                       NodeMemory::Open(root, fmt::format("process {}", owner), kAddress));
  memory->SetLiveEpoch(kEpoch);
  return MemoryHost(root, std::move(memory));
}

std::string MemoryHost::Answer(Request& request) {
  const std::string& type = request.type();
  const StatusOr<Json> answer = type == "open"      ? OpenPages(request)
                                : type == "prepare" ? Prepare(request)
                                : type == "commit"  ? Settle(request, true)
                                : type == "drop"    ? Settle(request, false)
                                : type == "hold"    ? HoldOne(request, true)
                                : type == "release" ? HoldOne(request, false)
                                                    : absl::UnimplementedError(fmt::format("no request '{}'", type));
  return answer.ok() ? AnswerText(*answer) : ErrorText(answer.status());
}

StatusOr<Json> MemoryHost::OpenPages(Request& request) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  const std::string shared = request.Text("shared", 16);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_ASSIGN_OR_RETURN(const std::string control, memory_->OpenPage(dir, kOwnPage));
  Json answer = {{"control", control}, {"main", nullptr}};
  if (!shared.empty()) {
    PHX_RETURN_IF_ERROR(CheckPage(shared));
    PHX_ASSIGN_OR_RETURN(answer["main"], memory_->OpenPage(dir, shared));
  }
  return answer;
}

StatusOr<Json> MemoryHost::Prepare(Request& request) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  const std::string page = PageIn(request);
  const int64_t bytes = request.Number("bytes", 1, kBytesMax);
  const int64_t slots = request.Number("slots", 2, kSlotsMax);
  const int64_t budget = request.Number("memory_budget", 0, kBytesMax);
  PHX_RETURN_IF_ERROR(request.status());
  PHX_RETURN_IF_ERROR(CheckPage(page));
  const Fd turn = WaitForTurn(root_);
  PHX_ASSIGN_OR_RETURN(const SlotPlan plan, memory_->Plan(dir, page, static_cast<uint64_t>(bytes),
                                                          static_cast<int>(slots), static_cast<uint64_t>(budget)));
  const Status made = MakeSlotFiles(plan.files);
  if (!made.ok()) memory_->Abandon(plan);
  PHX_RETURN_IF_ERROR(made);
  memory_->Install(plan);
  return Json{{"slots", plan.slots}, {"bytes", plan.bytes}, {"why", plan.why}};
}

StatusOr<Json> MemoryHost::Settle(Request& request, bool commits) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  const SaveKey save = SaveIn(request);
  PHX_RETURN_IF_ERROR(request.status());
  if (commits) {
    memory_->Commit(dir, save);
  } else {
    memory_->Drop(dir, save);
  }
  ReplaceSlots();
  return Json::object();
}

void MemoryHost::ReplaceSlots() {
  const std::vector<SlotPlan> plans = memory_->Replacements();
  if (plans.empty()) return;
  const Fd turn = WaitForTurn(root_);
  for (const SlotPlan& plan : plans) {
    if (memory_->HasRoomFor(plan) && MakeSlotFiles(plan.files).ok()) {
      memory_->Install(plan);
    } else {
      memory_->Postpone(plan);
    }
  }
}

StatusOr<Json> MemoryHost::HoldOne(Request& request, bool holds) {
  const std::string dir = request.Text("dir", kPathBytesMax);
  const std::string page = PageIn(request);
  const SaveKey save = SaveIn(request);
  PHX_RETURN_IF_ERROR(request.status());
  for (const MemoryImage& image : memory_->Images(dir, save)) {
    if (image.page != page) continue;
    if (!holds) {
      memory_->Release(image);
      ReplaceSlots();
      return Json::object();
    }
    if (!memory_->Hold(image)) break;
    return Json{{"path", image.path},
                {"bytes", image.image.bytes},
                {"crc32", image.image.crc32},
                {"rank", IsSharedPage(page) ? kMainRank : int64_t{image.image.rank}},
                {"form", NumberOf(image.image.form)}};
  }
  return absl::NotFoundError(fmt::format("memory has no image of step {} on page '{}'", save.step, page));
}

}  // namespace phalanx::checkpoint

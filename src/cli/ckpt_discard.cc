#include "cli/ckpt_discard.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "base/fd.h"
#include "checkpoint/memory/memory_reader.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

using checkpoint::LockMemory;
using checkpoint::MemoryFolder;
using checkpoint::ReadMemory;

// What the folder was. No agent takes it up meanwhile: its lock is held until its name is gone.
StatusOr<MemoryFolder> Discard(const std::string& path) {
  PHX_ASSIGN_OR_RETURN(MemoryFolder memory, ReadMemory(path));
  if (!memory.own) {
    return absl::PermissionDeniedError(fmt::format("{} is another user's; nothing is removed", path));
  }
  // An agent that begins has made the folder before the file that it locks: without that nothing is touched.
  const StatusOr<Fd> lock = LockMemory(path);
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        fmt::format("{}: the agent of job '{}' lives; nothing of it is removed", path, memory.job_id));
  }
  if (!lock.ok()) return lock.status();
  PHX_RETURN_IF_ERROR(RemoveMemory(path));
  return memory;
}

}  // namespace

Status RemoveMemory(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? absl::InternalError(fmt::format("{}: {}", path, error.message())) : absl::OkStatus();
}

StatusOr<CkptAnswer> CkptDiscard(const std::string& path, bool json) {
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> paths, checkpoint::DeadMemories(path));
  auto list = nlohmann::ordered_json::array();
  std::string text;
  auto problems = nlohmann::ordered_json::array();
  for (const std::string& one : paths) {
    const StatusOr<MemoryFolder> memory = Discard(one);
    if (!memory.ok() && paths.size() == 1) return memory.status();
    if (!memory.ok()) {
      problems.push_back(memory.status().message());
      text += fmt::format("left: {}\n", Printable(std::string(memory.status().message())));
      continue;
    }
    list.push_back({{"path", one}, {"bytes", memory->bytes}, {"job_id", memory->job_id}, {"address", memory->address}});
    text += fmt::format("{}: removed, {} of job '{}' on {}\n", one, Bytes(memory->bytes), Printable(memory->job_id),
                        Printable(memory->address));
  }
  const int exit_code = problems.empty() ? 0 : 1;
  if (json) return CkptAnswer{Dump({{"removed", std::move(list)}, {"problems", std::move(problems)}}, 2), exit_code};
  return CkptAnswer{text, exit_code};
}

}  // namespace phalanx::cli

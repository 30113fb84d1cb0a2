#include "agent/output/log_dirs.h"

#include <fmt/format.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "agent/flags/flag_values.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

StatusOr<std::string> MakeUnique(const std::string& prefix) {
  std::string path = prefix + "XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return ErrnoStatus(errno, fmt::format("making a directory {}*", prefix));
  return path;
}

Status MakeDirs(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), fmt::format("making the directory {}", path));
  return absl::OkStatus();
}

}  // namespace

LogDirs::LogDirs(const LaunchConfig& config, std::string tmp_dir)
    : log_dir_(config.log_dir), run_id_(JobDirectoryName(config.rdzv_id)), tmp_dir_(std::move(tmp_dir)) {}

LogDirs::~LogDirs() {
  if (self_made_.empty()) return;
  // Deepest first: a name sorts behind its parent's.
  for (auto dir = made_.rbegin(); dir != made_.rend(); ++dir) {
    rmdir(dir->c_str());
    rmdir(fs::path(*dir).parent_path().c_str());
  }
  rmdir(run_dir_.c_str());
  rmdir(self_made_.c_str());
}

StatusOr<std::string> LogDirs::RunDir() {
  if (!run_dir_.empty()) return run_dir_;
  std::string base = log_dir_;
  if (base.empty()) {
    PHX_ASSIGN_OR_RETURN(self_made_, MakeUnique(tmp_dir_ + "/torchelastic_"));
    base = self_made_;
  } else {
    PHX_RETURN_IF_ERROR(WithContext(MakeDirs(base), "--log-dir"));
  }
  PHX_ASSIGN_OR_RETURN(run_dir_, MakeUnique(fmt::format("{}/{}_", base, run_id_)));
  return run_dir_;
}

StatusOr<std::string> LogDirs::Of(uint32_t restart_count, int local_rank) {
  PHX_ASSIGN_OR_RETURN(const std::string run_dir, RunDir());
  std::string dir = fmt::format("{}/attempt_{}/{}", run_dir, restart_count, local_rank);
  PHX_RETURN_IF_ERROR(MakeDirs(dir));
  made_.insert(dir);
  return dir;
}

}  // namespace phalanx::agent

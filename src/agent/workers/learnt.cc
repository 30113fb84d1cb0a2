#include "agent/workers/learnt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "agent/workers/wire.h"
#include "base/fd.h"

namespace phalanx::agent {
namespace {

using Json = nlohmann::json;

constexpr size_t kFileBytesMax = 1 << 20;

std::vector<std::string> Names(const Json& json, const char* key) {
  std::vector<std::string> names;
  const auto field = json.find(key);
  if (field == json.end() || !field->is_array()) return names;
  for (const Json& item : *field) {
    if (names.size() == kModulesMax || !item.is_string()) break;
    const std::string& name = item.get_ref<const std::string&>();
    if (!name.empty() && name.size() <= kModuleNameMax) names.push_back(name);
  }
  return names;
}

// Open, ours, a plain file and locked; or nothing. Never waits for a lock: the event loop has other work.
Fd OpenLocked(const std::string& path, int flags, int lock) {
  Fd file(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) return Fd();
  if (flock(file.get(), lock | LOCK_NB) != 0) return Fd();
  return file;
}

}  // namespace

Learnt ParseLearnt(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  return {Names(json, "modules"), Names(json, "deny")};
}

std::string LearntText(const Learnt& learnt) {
  return JsonObject().Add("version", 1).Add("modules", learnt.modules).Add("deny", learnt.deny).Text() + "\n";
}

std::string LearntPath(const LaunchConfig& config, const std::string& cwd) {
  const std::string script = (std::filesystem::path(cwd) / config.script).string();
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  std::string key = fmt::format("{}\n{}\n{}", static_cast<int>(config.kind), config.python, script);
  // Functions have one script in common.
  if (!config.script_name.empty()) key += fmt::format("\n{}\n{}", cwd, config.script_name);
  for (const char c : key) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  }
  return fmt::format("{}/learnt-{:016x}.json", config.state_root, hash);
}

Learnt ReadLearnt(const std::string& path) {
  const Fd file = OpenLocked(path, O_RDONLY, LOCK_SH);
  if (!file.valid()) return {};
  std::string text(kFileBytesMax, '\0');
  const ssize_t n = pread(file.get(), text.data(), text.size(), 0);
  if (n <= 0) return {};
  return ParseLearnt(std::string_view(text).substr(0, static_cast<size_t>(n)));
}

void WriteLearnt(const std::string& path, const Learnt& learnt) {
  const std::string text = LearntText(learnt);
  const Fd file = OpenLocked(path, O_WRONLY | O_CREAT, LOCK_EX);
  if (!file.valid() || text.size() > kFileBytesMax || ftruncate(file.get(), 0) != 0) return;
  // A text cut short by a full disk is no JSON, and so nothing has been learnt.
  [[maybe_unused]] const ssize_t n = pwrite(file.get(), text.data(), text.size(), 0);
}

}  // namespace phalanx::agent

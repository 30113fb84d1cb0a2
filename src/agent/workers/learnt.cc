#include "agent/workers/learnt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "agent/workers/wire.h"
#include "base/fd.h"
#include "base/fnv.h"

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

// Open, ours and a plain file; or nothing.
Fd OpenOwn(const std::string& path, int flags) {
  Fd file(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat info {};
  if (!file.valid() || fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != geteuid()) return Fd();
  return file;
}

// A file of its own: who waits for the lock of one that is renamed over has that of a file that is gone.
Fd LockBeside(const std::string& path) {
  Fd file = OpenOwn(path + ".lock", O_RDONLY | O_CREAT);
  // Never waits: the event loop has other work.
  if (file.valid() && flock(file.get(), LOCK_EX | LOCK_NB) != 0) return Fd();
  return file;
}

// Whether a file of ours may be moved there: not over a link, nor over what somebody else has put there.
bool MayReplace(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return errno == ENOENT;
  return S_ISREG(info.st_mode) && info.st_uid == geteuid();
}

// Not synced, since the event loop would wait for the disk. A text that a power failure has cut is no JSON.
void ReplaceFile(const std::string& path, const std::string& text) {
  const std::string draft = path + ".new";
  unlink(draft.c_str());  // of a writer that died
  const Fd file = OpenOwn(draft, O_WRONLY | O_CREAT | O_EXCL);
  if (!file.valid()) return;
  const ssize_t n = write(file.get(), text.data(), text.size());  // less where the disk is full
  const bool whole = n == static_cast<ssize_t>(text.size());
  if (!whole || std::rename(draft.c_str(), path.c_str()) != 0) unlink(draft.c_str());
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
  std::string key = fmt::format("{}\n{}\n{}", static_cast<int>(config.kind), config.python, script);
  // Functions have one script in common.
  if (!config.script_name.empty()) key += fmt::format("\n{}\n{}", cwd, config.script_name);
  return fmt::format("{}/learnt-{:016x}.json", config.state_root, Fnv1a().Add(key).value());
}

Learnt ReadLearnt(const std::string& path) {
  const Fd file = OpenOwn(path, O_RDONLY);
  if (!file.valid()) return {};
  std::string text(kFileBytesMax, '\0');
  const ssize_t n = pread(file.get(), text.data(), text.size(), 0);
  if (n <= 0) return {};
  return ParseLearnt(std::string_view(text).substr(0, static_cast<size_t>(n)));
}

void WriteLearnt(const std::string& path, const Learnt& learnt) {
  const Fd lock = LockBeside(path);
  if (!lock.valid() || !MayReplace(path)) return;
  Learnt united = learnt;
  united.deny = ReadLearnt(path).deny;
  for (const std::string& module : learnt.deny) {
    if (std::ranges::find(united.deny, module) == united.deny.end()) united.deny.push_back(module);
  }
  const std::string text = LearntText(united);
  if (text.size() <= kFileBytesMax) ReplaceFile(path, text);
}

}  // namespace phalanx::agent

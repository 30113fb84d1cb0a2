#include "cli/host.h"

#include <sched.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "agent/flags/elastic_config.h"
#include "base/net.h"
#include "base/process/process.h"
#include "cli/state_dir.h"

namespace phalanx::cli {

std::string RandomBytes(size_t count) {
  std::string random(count, '\0');
  [[maybe_unused]] const ssize_t n = getrandom(random.data(), random.size(), 0);  // at most 256 bytes: always whole
  return random;
}

std::string RandomHex(size_t bytes) { return absl::BytesToHexString(RandomBytes(bytes)); }

agent::HostFacts AskHost() {
  agent::HostFacts host;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) host.cpu_count = static_cast<uint32_t>(CPU_COUNT(&cpus));
  host.uid = getuid();
  host.hostname = Hostname();
  std::error_code error;
  host.cwd = std::filesystem::current_path(error).string();
  host.own_dir = ExecutableDirectory();
  host.fresh_uuid = RandomHex(6);  // for people to type; one machine's jobs of a week are some thousands
  host.fresh_token = RandomHex(16);
  host.is_executable = [](const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
  };
  host.read_file = agent::ReadConfigFile;
  host.read_secret = ReadSecretLine;
  return host;
}

}  // namespace phalanx::cli

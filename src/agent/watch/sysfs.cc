#include "agent/watch/sysfs.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "agent/watch/texts.h"
#include "base/process/memory.h"

namespace phalanx::agent::watch {
namespace {

namespace fs = std::filesystem;

// /proc/interrupts of many CPUs is the longest.
constexpr size_t kMaxTextBytes = 8 << 20;

constexpr const char* kPortCounters[] = {"link_downed",
                                         "symbol_error",
                                         "link_error_recovery",
                                         "port_rcv_errors",
                                         "local_link_integrity_errors",
                                         "excessive_buffer_overrun_errors"};
constexpr const char* kHardwareCounters[] = {"out_of_sequence", "packet_seq_err", "local_ack_timeout_err",
                                             "req_cqe_error"};

// Sorted, so that a machine is always read in the same order.
std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto at = fs::directory_iterator(folder, error); !error && at != fs::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool Exists(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::optional<int64_t> Count(const std::string& text) { return ParseCount(text); }

// The whole file from its beginning, as the kernel writes it now. An errno; 0: it was read.
int ReadAgain(int fd, std::string& text) {
  size_t length = 0;
  while (true) {
    if (text.size() < length + 4'096) text.resize(std::max<size_t>(2 * text.size(), 16 << 10));
    const ssize_t n = pread(fd, text.data() + length, text.size() - length, static_cast<off_t>(length));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    length += static_cast<size_t>(n);
    if (n == 0 || length > kMaxTextBytes) break;
  }
  text.resize(length);
  return 0;
}

}  // namespace

void SysfsReader::ScanWhereDue() {
  if (MonotonicMs() >= scan_at_) Scan();
}

void SysfsReader::Read(const std::function<void(const std::string& path)>& begins,
                       const std::function<void(Sample)>& take) {
  for (const File& file : files_) {
    begins(file.path);
    const int error = ReadAgain(file.fd.get(), text_);
    if (error == 0) {
      const std::optional<int64_t> value = file.parse(text_);
      if (value) take({file.kind, file.device, file.path, *value});
    } else if (file.kind->rule == Rule::kFalls && (error == ENODEV || error == ENOENT || error == ENXIO)) {
      take({file.kind, file.device, file.path, 0});
    }
  }
}

void SysfsReader::Scan() {
  // A state whose device has just gone is still asked, once more at least: its file is open.
  std::vector<File> before = std::move(files_);
  files_.clear();
  scan_at_ = MonotonicMs() + kScanAgainMs;
  ScanPorts();
  ScanInterfaces();
  ScanDisks();
  ScanMemory();
  ScanCpus();
  std::set<std::string> found;
  for (const File& file : files_) found.insert(file.path);
  for (File& file : before) {
    if (file.kind->rule == Rule::kFalls && !found.contains(file.path)) files_.push_back(std::move(file));
  }
  std::stable_sort(files_.begin(), files_.end(), [](const File& a, const File& b) { return a.kind < b.kind; });
}

void SysfsReader::Add(const char* name, const std::string& device, const std::string& path, Parse parse) {
  const Kind* const kind = FindKind(name);
  if (kind == nullptr || files_.size() >= kMaxFiles) return;
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return;  // this hardware, or its driver, does not count that
  files_.push_back({kind, device, path, std::move(fd), std::move(parse)});
}

void SysfsReader::ScanPorts() {
  const std::string root = place_.sysfs_root + "/class/infiniband";
  for (const std::string& name : NamesIn(root)) {
    for (const std::string& port : NamesIn(fmt::format("{}/{}/ports", root, name))) {
      const std::string folder = fmt::format("{}/{}/ports/{}", root, name, port);
      const std::string device = fmt::format("{} port {}", name, port);
      Add("state", device, folder + "/state", [](const std::string& text) { return ParsePortState(text); });
      for (const char* counter : kPortCounters) {
        Add(counter, device, fmt::format("{}/counters/{}", folder, counter), Count);
      }
      for (const char* counter : kHardwareCounters) {
        Add(counter, device, fmt::format("{}/hw_counters/{}", folder, counter), Count);
      }
    }
  }
}

void SysfsReader::ScanInterfaces() {
  const std::string root = place_.sysfs_root + "/class/net";
  for (const std::string& name : NamesIn(root)) {
    const bool is_own = name == place_.interface;
    if (!is_own && !Exists(fmt::format("{}/{}/device", root, name))) continue;  // no hardware
    Add(is_own ? "carrier_changes" : "other_carrier_changes", name, fmt::format("{}/{}/carrier_changes", root, name),
        Count);
  }
}

void SysfsReader::ScanDisks() {
  for (const std::string& name : NamesIn(place_.sysfs_root + "/class/nvme")) {
    Add("nvme_state", name, fmt::format("{}/class/nvme/{}/state", place_.sysfs_root, name),
        [](const std::string& text) { return ParseNvmeState(text); });
  }
  for (const std::string& name : NamesIn(place_.sysfs_root + "/block")) {
    Add("ioerr_cnt", name, fmt::format("{}/block/{}/device/ioerr_cnt", place_.sysfs_root, name), Count);
  }
}

void SysfsReader::ScanMemory() {
  const std::string root = place_.sysfs_root + "/devices/system/edac/mc";
  for (const std::string& name : NamesIn(root)) {
    if (!name.starts_with("mc")) continue;
    const std::string device = "memory controller " + name.substr(2);
    Add("ue_count", device, fmt::format("{}/{}/ue_count", root, name), Count);
    Add("ce_count", device, fmt::format("{}/{}/ce_count", root, name), Count);
  }
  Add("oom_kill", "", place_.proc_root + "/vmstat",
      [](const std::string& text) { return NumberBehind(text, "oom_kill "); });
  Add("mce", "", place_.proc_root + "/interrupts",
      [](const std::string& text) { return ParseInterrupts(text, "MCE"); });
}

// All CPUs of a package count the same there.
void SysfsReader::ScanCpus() {
  const std::string root = place_.sysfs_root + "/devices/system/cpu";
  std::set<int64_t> packages;
  for (const std::string& name : NamesIn(root)) {
    const std::string counter = fmt::format("{}/{}/thermal_throttle/package_throttle_count", root, name);
    if (!name.starts_with("cpu") || !Exists(counter)) continue;
    const Fd id(open(fmt::format("{}/{}/topology/physical_package_id", root, name).c_str(), O_RDONLY | O_CLOEXEC));
    std::string text;
    const int64_t package = id.valid() && ReadAgain(id.get(), text) == 0 ? ParseCount(text).value_or(0) : 0;
    if (packages.insert(package).second) {
      Add("package_throttle_count", fmt::format("CPU package {}", package), counter, Count);
    }
  }
}

std::string InterfaceOf(const std::string& address) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  std::string name;
  for (const ifaddrs* at = all; at != nullptr && name.empty(); at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_LOOPBACK) != 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    const int family = at->ifa_addr->sa_family;
    const void* bytes = nullptr;
    if (family == AF_INET) bytes = &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr;
    if (family == AF_INET6) bytes = &reinterpret_cast<const sockaddr_in6*>(at->ifa_addr)->sin6_addr;
    if (bytes != nullptr && inet_ntop(family, bytes, text, sizeof text) != nullptr && address == text) {
      name = at->ifa_name;
    }
  }
  freeifaddrs(all);
  return name;
}

}  // namespace phalanx::agent::watch

// What the kernel counts of this machine's hardware: InfiniBand and RoCE ports, network interfaces, disks, memory,
// CPUs, and the out-of-memory killer. One thread at a time; any of its calls may take as long as a driver likes.
//
// Folders are looked through rarely; between, each reading asks the files that were found by then, which stay open:
// some microseconds a file.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/watch/differ.h"
#include "base/clock.h"
#include "base/fd.h"

namespace phalanx::agent::watch {

// Hardware that is plugged in while a job trains is found by then.
constexpr int64_t kScanAgainMs = 600'000;
// Of more files the rest is not watched.
constexpr size_t kMaxFiles = 4'096;

struct SysfsPlace {
  std::string sysfs_root = "/sys";
  std::string proc_root = "/proc";
  std::string interface;  // that the job's connections go through; empty: not known
};

class SysfsReader {
 public:
  explicit SysfsReader(SysfsPlace place) : place_(std::move(place)) {}

  // Looks through the folders, the first time and each kScanAgainMs.
  void ScanWhereDue();
  // Each value as it is read, grave ones first; `begins` hears of each file before it is read. A state whose file has
  // gone, as its device has, counts as bad.
  void Read(const std::function<void(const std::string& path)>& begins, const std::function<void(Sample)>& take);
  size_t files() const { return files_.size(); }

 private:
  using Parse = std::function<std::optional<int64_t>(const std::string& text)>;
  struct File {
    const Kind* kind = nullptr;
    std::string device;
    std::string path;
    Fd fd;
    Parse parse;
  };

  void Scan();
  void Add(const char* name, const std::string& device, const std::string& path, Parse parse);
  void ScanPorts();
  void ScanInterfaces();
  void ScanDisks();
  void ScanMemory();
  void ScanCpus();

  const SysfsPlace place_;
  std::vector<File> files_;
  Instant scan_at_ = 0;
  std::string text_;
};

// The interface of this machine that has that textual address; empty: none, or it is a loopback address.
std::string InterfaceOf(const std::string& address);

}  // namespace phalanx::agent::watch

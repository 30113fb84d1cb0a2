#include "base/cpus.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <memory>

namespace phalanx {
namespace {

struct FreeCpuMask {
  void operator()(cpu_set_t* mask) const { CPU_FREE(mask); }
};
using CpuMask = std::unique_ptr<cpu_set_t, FreeCpuMask>;

constexpr size_t kMaskCpusFirst = 1024;

// Takes a number off the front of `text`; false where there is none, or it is no CPU's.
bool TakeCpu(std::string_view& text, int& cpu) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  if (code != std::errc() || cpu < 0 || cpu > kCpuNumberMax) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

}  // namespace

StatusOr<CpuSet> ParseCpuList(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  const std::string whole(text);
  CpuSet cpus;
  while (!text.empty()) {
    int first = 0;
    bool good = TakeCpu(text, first);
    int last = first;
    if (good && text.starts_with('-')) {
      text.remove_prefix(1);
      good = TakeCpu(text, last) && first <= last;
    }
    const bool more = text.starts_with(',');
    if (more) text.remove_prefix(1);
    if (!good || more == text.empty()) {
      return absl::InvalidArgumentError(fmt::format("'{}' is no list of CPUs like 0-3,8", whole.substr(0, 100)));
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.insert(cpu);
  }
  return cpus;
}

std::string CpuListText(const CpuSet& cpus) {
  std::string text;
  for (auto it = cpus.begin(); it != cpus.end();) {
    const int first = *it;
    int last = first;
    while (++it != cpus.end() && *it == last + 1) last = *it;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    if (last > first) text += fmt::format("-{}", last);
  }
  return text;
}

StatusOr<CpuSet> AllowedCpus(pid_t pid) {
  // The kernel wants room for all CPUs it could ever have, and says how many that is by refusing less.
  for (size_t room = kMaskCpusFirst; room <= size_t{kCpuNumberMax} + 1; room *= 2) {
    const CpuMask mask(CPU_ALLOC(room));
    const size_t bytes = CPU_ALLOC_SIZE(room);
    CPU_ZERO_S(bytes, mask.get());
    if (sched_getaffinity(pid, bytes, mask.get()) != 0) {
      if (errno == EINVAL) continue;
      break;
    }
    CpuSet cpus;
    for (size_t cpu = 0; cpu < room; ++cpu) {
      if (CPU_ISSET_S(cpu, bytes, mask.get())) cpus.insert(static_cast<int>(cpu));
    }
    return cpus;
  }
  return ErrnoStatus(errno, "asking which CPUs may be used");
}

Status BindToCpus(pid_t pid, const CpuSet& cpus) {
  const size_t room = cpus.empty() ? 1 : static_cast<size_t>(*cpus.rbegin()) + 1;
  const CpuMask mask(CPU_ALLOC(room));
  const size_t bytes = CPU_ALLOC_SIZE(room);
  CPU_ZERO_S(bytes, mask.get());
  for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), bytes, mask.get());
  if (sched_setaffinity(pid, bytes, mask.get()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, fmt::format("binding to CPUs {}", CpuListText(cpus)));
}

}  // namespace phalanx

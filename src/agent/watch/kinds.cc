#include "agent/watch/kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace phalanx::agent::watch {
namespace {

// In the order in which a reading that is short of time looks at them: grave ones first.
constexpr Kind kKinds[] = {
    // GPUs, by NVML.
    {"ecc_uncorrected", "ecc", "uncorrectable ECC errors", Rule::kGrows, 1, true},
    {"remap_failed", "row-remap", "a failed row remapping", Rule::kRises, 1, true},
    {"gpu_lost", "gpu", "a GPU that is lost", Rule::kRises, 1, true},
    // InfiniBand and RoCE ports. The state is 1 where it is ACTIVE.
    {"state", "link", "a link that is down", Rule::kFalls, 1, true},
    {"link_downed", "link", "times that the link went down", Rule::kGrows, 1, true},
    // Of the interface that has this node's address.
    {"carrier_changes", "link", "carrier changes of the job's interface", Rule::kGrows, 1, true},
    {"nvme_state", "disk", "an NVMe disk that does not answer", Rule::kFalls, 1, true},
    {"ue_count", "machine-check", "uncorrectable memory errors", Rule::kGrows, 1, true},
    {"mce", "machine-check", "machine-check exceptions", Rule::kGrows, 1, true},
    // Worth a look; none of these ends a training by itself.
    {"ecc_corrected", "ecc", "corrected ECC errors", Rule::kGrows, 1'000, false},
    {"remap_pending", "row-remap", "a row remapping that waits for a reset", Rule::kRises, 1, false},
    {"hw_slowdown", "throttling", "clocks slowed down by the hardware", Rule::kRises, 2, false},
    {"hw_thermal", "throttling", "clocks slowed down by heat", Rule::kRises, 2, false},
    {"power_brake", "throttling", "clocks slowed down by the power supply", Rule::kRises, 2, false},
    {"link_error_recovery", "link", "recoveries of the link", Rule::kGrows, 3, false},
    {"symbol_error", "link", "symbol errors", Rule::kGrows, 100, false},
    {"port_rcv_errors", "link", "packets received with errors", Rule::kGrows, 100, false},
    {"local_link_integrity_errors", "link", "link integrity errors", Rule::kGrows, 10, false},
    {"excessive_buffer_overrun_errors", "link", "buffer overruns", Rule::kGrows, 10, false},
    {"out_of_sequence", "link", "packets out of sequence", Rule::kGrows, 1'000, false},
    {"packet_seq_err", "link", "negative acknowledgements of a sequence", Rule::kGrows, 100, false},
    {"local_ack_timeout_err", "link", "timeouts of acknowledgements", Rule::kGrows, 100, false},
    {"req_cqe_error", "link", "requests completed with an error", Rule::kGrows, 10, false},
    {"other_carrier_changes", "link", "carrier changes of another interface", Rule::kGrows, 1, false},
    {"ioerr_cnt", "disk", "failed requests", Rule::kGrows, 10, false},
    {"ce_count", "machine-check", "corrected memory errors", Rule::kGrows, 100, false},
    {"package_throttle_count", "throttling", "times that heat slowed the CPU", Rule::kGrows, 100, false},
    {"oom_kill", "oom", "processes ended for want of memory", Rule::kGrows, 1, false},
};

constexpr Xid kXids[] = {
    {13, "graphics engine exception: a kernel's illegal access or instruction", false},
    {31, "memory page fault: a kernel's illegal address", false},
    {32, "invalid or corrupted push buffer", false},
    {38, "driver firmware error", false},
    {43, "GPU stopped the work of a program that had failed", false},
    {45, "work of a program that ends was removed", false},
    {48, "double-bit ECC error", true},
    {61, "warning of the internal micro-controller", false},
    {62, "internal micro-controller halt", true},
    {63, "a memory page or row is taken out of use for errors", true},
    {64, "a memory page or row could not be taken out of use", true},
    {68, "video processor exception", false},
    {69, "graphics engine class error", false},
    {74, "NVLink error", true},
    {79, "GPU has fallen off the bus", true},
    {92, "high rate of corrected ECC errors", true},
    {94, "contained uncorrectable ECC error", true},
    {95, "uncontained uncorrectable ECC error", true},
    {119, "GPU system processor does not answer", true},
    {120, "GPU system processor error", true},
    {140, "unrecovered ECC error", true},
    {143, "GPU initialization failure", true},
    {154, "what the GPU needs to recover has changed", false},
};

constexpr Xid kUnknownXid = {0, "unknown here; NVIDIA's catalog of XIDs has it", false};

// Of what goes wrong first to what follows.
constexpr std::string_view kByWeight[] = {"xid", "gpu", "ecc", "machine-check", "row-remap", "link", "disk"};

std::string LimitText(const Kind& kind) {
  switch (kind.rule) {
    case Rule::kGrows:
      return fmt::format("{} more within {} min", kind.limit, kWindowMs / 60'000);
    case Rule::kFalls:
      return "when that comes about";
    case Rule::kRises:
      return kind.limit == 1 ? "when that comes about" : fmt::format("in {} readings in a row", kind.limit);
  }
  return "";
}

}  // namespace

std::span<const Kind> Kinds() { return kKinds; }

const Kind* FindKind(std::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kKinds), std::end(kKinds), [name](const Kind& kind) { return kind.name == name; });
  return found == std::end(kKinds) ? nullptr : found;
}

std::span<const Xid> Xids() { return kXids; }

const Xid& XidOf(int64_t number) {
  const auto* const found =
      std::find_if(std::begin(kXids), std::end(kXids), [number](const Xid& xid) { return xid.number == number; });
  return found == std::end(kXids) ? kUnknownXid : *found;
}

int Weight(std::string_view kind) {
  return static_cast<int>(std::find(std::begin(kByWeight), std::end(kByWeight), kind) - std::begin(kByWeight));
}

std::string TableForPeople() {
  std::string text = "| kind | what | value | told | grave |\n|---|---|---|---|---|\n";
  std::string grave, told;
  for (const Xid& xid : kXids) {
    std::string& list = xid.grave ? grave : told;
    list += fmt::format("{}{}", list.empty() ? "" : ", ", xid.number);
  }
  text += fmt::format("| `xid` | reports of NVIDIA's driver: {} | | 1 | yes |\n", grave);
  text +=
      fmt::format("| `xid` | ... that a program's own mistake may bring about: {}, and unknown ones | | 1 | |\n", told);
  for (const Kind& kind : kKinds) {
    text += fmt::format("| `{}` | {} | `{}` | {} | {} |\n", kind.kind, kind.title, kind.name, LimitText(kind),
                        kind.grave ? "yes" : "");
  }
  return text;
}

}  // namespace phalanx::agent::watch

#include "agent/flags/worker_env.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "agent/flags/elastic_config.h"
#include "base/net.h"

namespace phalanx::agent {
namespace {

bool StartsIdentifier(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool ContinuesIdentifier(char c) { return StartsIdentifier(c) || (c >= '0' && c <= '9'); }

// Length of the identifier at the start of `text`, 0 where there is none.
size_t IdentifierLength(std::string_view text) {
  if (text.empty() || !StartsIdentifier(text[0])) return 0;
  size_t length = 1;
  while (length < text.size() && ContinuesIdentifier(text[length])) ++length;
  return length;
}

constexpr const char* kCudaDevices = "CUDA_VISIBLE_DEVICES";
constexpr const char* kHipDevices = "HIP_VISIBLE_DEVICES";

// The variable whose list counts: ROCm looks at its own first, as torchrun does.
const char* DeviceVariable(const Environment& base) {
  return base.NonEmptyOr(kHipDevices, "").empty() ? kCudaDevices : kHipDevices;
}

std::string Trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
}

// The device of that local rank: its number where no list was given, nothing where the list is empty and hides them
// all; no value where the list is too short.
std::optional<std::string> VisibleDevice(const Environment& base, int local_rank) {
  const std::optional<std::string> list = base.Get(DeviceVariable(base));
  if (!list) return fmt::format("{}", local_rank);
  if (list->empty()) return "";
  std::string_view rest = *list;
  for (int i = 0; i < local_rank; ++i) {
    const size_t comma = rest.find(',');
    if (comma == std::string_view::npos) return std::nullopt;
    rest.remove_prefix(comma + 1);
  }
  return Trimmed(rest.substr(0, rest.find(',')));
}

}  // namespace

Status CheckVisibleDevices(const LaunchConfig& config, const Environment& base) {
  const int last = static_cast<int>(config.nproc_per_node) - 1;
  if (!config.virtual_local_rank || VisibleDevice(base, last)) return absl::OkStatus();
  const char* const variable = DeviceVariable(base);
  return absl::InvalidArgumentError(
      fmt::format("--virtual-local-rank: {}={} has no device for local rank {}: expected one for each of {} workers",
                  variable, base.NonEmptyOr(variable, ""), last, config.nproc_per_node));
}

bool RankZeroHoldsStore(const Environment& base) { return base.Get("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1"; }

bool RelaysStore(const LaunchConfig& config, const Environment& base, uint32_t world_size) {
  if (RankZeroHoldsStore(base)) return false;
  if (config.store_relay == StoreRelayMode::kAuto) return world_size > kRanksWithoutRelay;
  return config.store_relay == StoreRelayMode::kOn;
}

void AddSameForAll(const LaunchConfig& config, std::map<std::string, std::string>& env) {
  env.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (!config.elastic_config.empty()) env.emplace(kSchedulersBlock, config.elastic_config);
  if (config.omp_num_threads_unset && config.nproc_per_node > 1) env.emplace("OMP_NUM_THREADS", "1");
  env["PHALANX_JOB_ID"] = config.rdzv_id;
  env.erase("PHALANX_ENDPOINT");
  if (config.endpoint_port != 0) env["PHALANX_ENDPOINT"] = JoinHostPort(config.endpoint_host, config.endpoint_port);
}

std::map<std::string, std::string> WorkerEnvironment(const LaunchConfig& config, const Environment& base,
                                                     const RoundPlace& place, int local_rank,
                                                     const WorkerFiles& files) {
  std::map<std::string, std::string> env = base.values();
  auto number = [](auto value) { return fmt::format("{}", value); };
  uint32_t local = static_cast<uint32_t>(local_rank);
  env["LOCAL_RANK"] = number(config.virtual_local_rank ? 0 : local_rank);
  if (config.virtual_local_rank) {
    const std::string device = VisibleDevice(base, local_rank).value_or("");
    env[kCudaDevices] = device;
    env[DeviceVariable(base)] = device;
  }
  env["RANK"] = number(place.rank_base + local);
  // Its debugger would read the end of a file, and end the job that somebody debugs.
  if (config.debug_rank >= 0 && place.rank_base + local != static_cast<uint32_t>(config.debug_rank)) {
    env.insert_or_assign("PYTHONBREAKPOINT", std::string(1, '0'));
  }
  env["GROUP_RANK"] = number(place.group_rank);
  env["ROLE_RANK"] = number(place.role_rank_base + local);
  env["ROLE_NAME"] = config.role;
  env["LOCAL_WORLD_SIZE"] = number(config.nproc_per_node);
  env["WORLD_SIZE"] = number(place.world_size);
  env["GROUP_WORLD_SIZE"] = number(place.group_world_size);
  env["ROLE_WORLD_SIZE"] = number(place.role_world_size);
  env["MASTER_ADDR"] = place.master_addr;
  env["MASTER_PORT"] = number(place.master_port);
  env["TORCHELASTIC_RESTART_COUNT"] = number(place.restart_count);
  env["TORCHELASTIC_MAX_RESTARTS"] = number(place.max_restarts);
  env["TORCHELASTIC_RUN_ID"] = config.rdzv_id;
  // Set by a user who wants rank 0 to host its own store; torch's workers then find MASTER_PORT free.
  env["TORCHELASTIC_USE_AGENT_STORE"] = RankZeroHoldsStore(base) ? "False" : "True";
  env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle_text;
  env["TORCHELASTIC_ERROR_FILE"] = files.error_file;
  AddSameForAll(config, env);
  env["PHALANX_EPOCH"] = number(place.epoch);
  env.erase("PHALANX_BOARD");  // that of an outer worker is not ours
  if (!files.board_path.empty()) env["PHALANX_BOARD"] = fmt::format("{}:{}", files.board_path, local_rank);
  return env;
}

std::string SubstituteLocalRank(const std::string& text, int local_rank) {
  constexpr std::string_view kName = "local_rank";
  std::string out;
  for (size_t at = 0; at < text.size();) {
    std::string_view rest = std::string_view(text).substr(at);
    if (rest[0] != '$') {
      out += rest[0];
      ++at;
    } else if (rest.size() > 1 && rest[1] == '$') {
      out += '$';
      at += 2;
    } else if (rest.substr(1, 1) == "{" && IdentifierLength(rest.substr(2)) == kName.size() &&
               rest.substr(2, kName.size()) == kName && rest.substr(2 + kName.size(), 1) == "}") {
      out += fmt::format("{}", local_rank);
      at += kName.size() + 3;
    } else if (IdentifierLength(rest.substr(1)) == kName.size() && rest.substr(1, kName.size()) == kName) {
      out += fmt::format("{}", local_rank);
      at += kName.size() + 1;
    } else {
      out += '$';
      ++at;
    }
  }
  return out;
}

std::vector<std::string> SubstituteLocalRank(const std::vector<std::string>& args, int local_rank) {
  std::vector<std::string> substituted;
  substituted.reserve(args.size());
  for (const std::string& arg : args) substituted.push_back(SubstituteLocalRank(arg, local_rank));
  return substituted;
}

}  // namespace phalanx::agent

#include "agent/flags/elastic_config.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "base/fd.h"
#include "elasticity/config.h"
#include "elasticity/job_sizes.h"
#include "elasticity/value.h"

namespace phalanx::agent {
namespace {

constexpr size_t kFileBytesMax = 1 << 20;
constexpr size_t kSizesShown = 8;

Status Refused(const elasticity::Error& error) {
  return absl::InvalidArgumentError(fmt::format("{}: {}", error.type, error.message));
}

// "1, 2, 4", or the first of many.
std::string SizesText(const std::vector<uint32_t>& sizes) {
  const size_t shown = std::min(sizes.size(), kSizesShown);
  const std::vector<uint32_t> first(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(shown));
  return fmt::format("{}{}", fmt::join(first, ", "), shown < sizes.size() ? ", .." : "");
}

}  // namespace

StatusOr<std::string> ReadConfigFile(const std::string& path) {
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "cannot be read");
  std::string text;
  char buffer[16 << 10];
  while (text.size() <= kFileBytesMax) {
    const ssize_t n = read(file.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "cannot be read");
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
  return absl::InvalidArgumentError(fmt::format("expected at most {} bytes", kFileBytesMax));
}

StatusOr<std::string> ElasticBlock(const std::string& config_text) {
  auto block = elasticity::ReadBlock(config_text);
  if (!block.ok()) return Refused(block.error());
  return *std::move(block);
}

Status CheckElasticSizes(const LaunchConfig& config) {
  if (config.elastic_config.empty()) return absl::OkStatus();
  const int64_t ranks_max = int64_t{config.max_nodes} * config.nproc_per_node;
  const auto sizes = elasticity::FindJobSizes(config.elastic_config, ranks_max);
  if (!sizes.ok()) return Refused(sizes.error());
  for (const uint32_t size : sizes->world_sizes) {
    const uint32_t nodes = size / config.nproc_per_node;
    const bool whole = size % config.nproc_per_node == 0 && nodes % config.node_unit == 0;
    if (whole && nodes >= config.min_nodes) return absl::OkStatus();
  }
  const std::string nodes = config.min_nodes == config.max_nodes
                                ? fmt::format("{}", config.max_nodes)
                                : fmt::format("{}:{}", config.min_nodes, config.max_nodes);
  const std::string granted =
      sizes->world_sizes.empty() ? fmt::format("it grants none up to {} ranks", ranks_max)
                                 : fmt::format("up to {} ranks it grants {}", ranks_max, SizesText(sizes->world_sizes));
  return absl::InvalidArgumentError(fmt::format("no valid world size is --nnodes={} times --nproc-per-node={}: {}",
                                                nodes, config.nproc_per_node, granted));
}

Status CheckSchedulersBlock(const std::string& block, const Environment& env) {
  const auto own = elasticity::ReadJson(block);
  if (!own.ok()) return Refused(own.error());
  const auto agrees = elasticity::EnsureImmutable(*own, env.Get(kSchedulersBlock));
  if (agrees.ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} in the environment does not agree with it, and the ranks would "
                  "refuse that: {}: {}",
                  kSchedulersBlock, agrees.error().type, agrees.error().message));
}

}  // namespace phalanx::agent

// What a worker is told: its environment and its arguments, the same as torchrun 2.15's, and a little more. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "base/env.h"
#include "base/status.h"

namespace phalanx::agent {

// This node's place in a round, from StartRound.
struct RoundPlace {
  uint32_t group_rank = 0;
  uint32_t group_world_size = 1;
  uint32_t rank_base = 0;  // rank of local rank 0
  uint32_t world_size = 1;
  uint32_t role_rank_base = 0;
  uint32_t role_world_size = 1;
  uint32_t restart_count = 0;
  uint32_t max_restarts = 0;
  uint64_t epoch = 0;
  std::string master_addr;
  uint16_t master_port = 0;
};

// Files that are this worker's alone.
struct WorkerFiles {
  std::string error_file;  // TORCHELASTIC_ERROR_FILE; empty: set to nothing, as torchrun does for --log-dir=/dev/null
  std::string board_path;  // PHALANX_BOARD=<path>:<local rank>; empty: PHALANX_BOARD is not set
};

// Whether rank 0 opens the store itself, as torchrun lets it with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1.
bool RankZeroHoldsStore(const Environment& base);

// One store's process may have 20,000 files open on some machines, and each rank is one of them where no node relays:
// in worlds of at most so many ranks there is room for all, and a way without a relay is the shorter one.
constexpr uint32_t kRanksWithoutRelay = 16'384;

// Whether the ranks of a node that does not hold the store of such a world come to it by a relay of their node's.
bool RelaysStore(const LaunchConfig& config, const Environment& base, uint32_t world_size);

// --virtual-local-rank: the list that phalanx-run itself was given needs a device for each of its
// `config.nproc_per_node` workers. The error names the variable. OK where the flag is not given.
Status CheckVisibleDevices(const LaunchConfig& config, const Environment& base);

// Variables that every worker of this launch gets alike, on top of what phalanx-run itself got: so its zygote, too.
void AddSameForAll(const LaunchConfig& config, std::map<std::string, std::string>& env);

// The worker's whole environment: `base` (what phalanx-run itself got) with the variables of docs/workers.md on top.
// `config.nproc_per_node` must be the resolved number of local workers, and 0 <= local_rank < nproc_per_node.
std::map<std::string, std::string> WorkerEnvironment(const LaunchConfig& config, const Environment& base,
                                                     const RoundPlace& place, int local_rank, const WorkerFiles& files);

// torchrun's substitution in the script's name and arguments (Python's Template.safe_substitute with the one name
// local_rank): ${local_rank} and $local_rank become the number, $$ becomes $, every other $ stays.
// torchrun substitutes the script's name as well, but not that of a program (--no-python).
std::string SubstituteLocalRank(const std::string& text, int local_rank);
std::vector<std::string> SubstituteLocalRank(const std::vector<std::string>& args, int local_rank);

}  // namespace phalanx::agent

// The world sizes that a launcher may start a job with, so that DeepSpeed grants each of them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "elasticity/result.h"

namespace phalanx::elasticity {

// A longer block is refused: every node sends it to the master, and every rank has it in its environment. It has room
// for 1,000 micro batch sizes; DeepSpeed's own example has 200 bytes.
constexpr size_t kBlockBytesMax = 4 << 10;

struct JobSizes {
  std::vector<uint32_t> world_sizes;  // ranks; ascending
  int64_t round_ms_min = 0;           // min_time: so long a world stays before it is made larger
};

// The block of a DeepSpeed config, from the text of a file, as one line of JSON: what DEEPSPEED_ELASTICITY_CONFIG
// holds. Errors are DeepSpeed's, or tell where the text is no JSON; kLimitError for a block that is too long.
Result<std::string> ReadBlock(std::string_view config_text);

// Of such a block; no size is above `max`, and kExplainedMax (plan.h). Each is as many ranks as DeepSpeed 0.16.5 grants
// data-parallel groups, times model_parallel_size, and within min_gpus and max_gpus, which DeepSpeed's version 0.2
// looks at by whole nodes alone. Errors are DeepSpeed's; kLimitError for a min_time that is none.
Result<JobSizes> FindJobSizes(std::string_view block_text, int64_t max);

}  // namespace phalanx::elasticity

// `phalanx elasticity plan --jsonl`: requests and answers as lines of JSON. Pure.
#pragma once

#include <string>
#include <string_view>

#include "elasticity/plan.h"

namespace phalanx::cli {

// {"id":..,"ds_config":..,"world_size":0,"return_microbatch":false,"target_version":"0.16.5","env":{"WORLD_SIZE":"4"}}
// becomes
//   {"id":..,"ok":{"final_batch_size":..,"valid_gpus":{"list":[..]},"micro_batch_size":..}}
// or
//   {"id":..,"error":{"class":..,"message":..}}
// without a newline. `id` is any JSON; where the line has none, or is no JSON, it is null. All but ds_config may be
// missing: world_size is 0 then, target_version the version whose behaviour is asked for, and WORLD_SIZE unset.
// `valid_gpus` is null where Python would give None; `micro_batch_size` is there only where Python returns three
// values.
//
// {"id":..,"runtime":..,"scheduler_env":..} asks for ensure_immutable_elastic_config: the block that a job runs with,
// and what DEEPSPEED_ELASTICITY_CONFIG holds: null for nothing, its text, or the JSON in it. The answer has "ok":true,
// "ok":false where there is nothing to compare with, or an error as above.
std::string AnswerRow(std::string_view line, elasticity::Behaviour behaviour);

}  // namespace phalanx::cli

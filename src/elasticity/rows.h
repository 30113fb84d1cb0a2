// Requests and answers as lines of JSON, for tools and for what calls from other languages. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "elasticity/batch.h"

namespace phalanx::elasticity {

// A request that is none, as its class in the answer.
constexpr const char* kRequestError = "InvalidRequest";

// Which behaviour "0.16.5" or "0.19.7" names.
std::optional<Behaviour> BehaviourNamed(std::string_view deepspeed_version);

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
std::string AnswerRow(std::string_view line, Behaviour behaviour);

// The same, with the version of DeepSpeed to behave like in "deepspeed_version" (0.16.5 without it).
std::string AnswerRequest(std::string_view request);

}  // namespace phalanx::elasticity

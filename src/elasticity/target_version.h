// The version of DeepSpeed that a plan is asked for. Pure.
#pragma once

#include "elasticity/python_value.h"

namespace phalanx::elasticity {

// DeepSpeed's check that the version is at least the first with elasticity, as packaging orders versions (PEP 440).
// ElasticityError where it is older, InvalidVersion where it is none.
Result<Done> CheckTargetVersion(const Value& target);

}  // namespace phalanx::elasticity

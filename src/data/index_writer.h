// Writes the `.idx` of a join, table after table, from the tables of its sources.
#pragma once

#include <vector>

#include "data/join_plan.h"
#include "data/out_file.h"
#include "data/source.h"

namespace phalanx::data {

// For sources whose tables have been checked. Blocks for as long as storage takes.
Result<Done> WriteIndex(const std::vector<Source>& sources, const JoinPlan& plan, OutFile& out);

}  // namespace phalanx::data

// Sentences about a job, for people. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/rules/words.h"

namespace phalanx::master {

// "3.0 s", "600 s".
std::string SecondsText(int64_t ms);

// "waiting for 1 more node: 1 of 2 are there".
std::string MissingText(size_t there, const v1::JobSpec& spec);

// "all 2 nodes are there", "1 of 1:3 nodes is there".
std::string ThereText(size_t there, const v1::JobSpec& spec);

// "all 3 restarts are used up".
std::string VerdictText(Charge charge, const Budget& budget);

std::vector<std::pair<std::string, Record::Value>> ExitDetail(const v1::WorkerExited& exit, bool collateral);

// What of `asked` does not count, because the job's first node was given something else; empty: nothing.
std::string SpecDifferenceText(const v1::JobSpec& job, const v1::JobSpec& asked);

}  // namespace phalanx::master

// What is told of a job beside its messages to agents: its status, and rows of its record. Pure.
#pragma once

#include <string>

#include "master/core/core.h"
#include "phalanx/v1/admin.pb.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// `ranks`: with NodeStatus.ranks, as far as they are known. The times are left to the caller.
v1::StatusReply StatusOf(const JobState& state, Instant now, bool ranks = false);

// The last check of the job's nodes, or the one under way; of many nodes only what is not good is told in full.
v1::CheckSummary CheckOf(const JobState& state, Instant now);

// The detail of a record as a JSON object.
std::string DetailJson(const Record& record);

}  // namespace phalanx::master

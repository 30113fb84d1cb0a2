// Between the wire and the core: every size from outside is bounded here. Pure.
#pragma once

#include <string>

#include "master/core/core.h"
#include "phalanx/v1/admin.pb.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// The event of a message that is not a Hello.
Event EventOf(uint64_t session, const v1::AgentMessage& message);

// What a Hello says; `peer_address` is the stream's other end, `token_ok` the shell's comparison.
AgentAttached AttachedOf(uint64_t session, const v1::AgentMessage& message, const std::string& peer_address,
                         bool token_ok);

v1::JobSpec MessageOf(const JobSpec& spec);
JobSpec SpecOf(const v1::JobSpec& wire);
v1::Failure MessageOf(const Failure& failure);
// Bounded like what an agent says. `node`: its name.
Failure FailureOf(const v1::Failure& wire, const std::string& node);

// `master_id` is left to the caller.
v1::StatusReply StatusOf(const JobState& state, Instant now);

// The address in gRPC's "ipv4:10.0.0.1:4711" or "ipv6:%5Bfe80::1%25eth0%5D:4711"; empty for other kinds.
std::string PeerAddress(const std::string& peer);

// The detail of a record as a JSON object.
std::string DetailJson(const Record& record);

}  // namespace phalanx::master

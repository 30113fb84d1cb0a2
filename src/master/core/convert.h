// What is told of a job beside its messages to agents: its status, and rows of its record. Pure.
#pragma once

#include <string>

#include "master/core/core.h"
#include "phalanx/v1/admin.pb.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// `master_id` is left to the caller.
v1::StatusReply StatusOf(const JobState& state, Instant now);

// The address in gRPC's "ipv4:10.0.0.1:4711" or "ipv6:%5Bfe80::1%25eth0%5D:4711"; empty for other kinds.
std::string PeerAddress(const std::string& peer);
// The same with its port, as texts have it: "127.0.0.1:4711", "[::1]:4711"; empty where it is none. Pure.
std::string PeerHostPort(const std::string& peer);

// The detail of a record as a JSON object.
std::string DetailJson(const Record& record);

}  // namespace phalanx::master

// What a node of a test's job says first: all that the door asks for, and no more.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "phalanx/v1/agent.pb.h"
#include "wire/protocol.h"

namespace phalanx::master {

// Of the job "job". `node` is its id and its host's name.
inline v1::Hello TestHello(const std::string& node, uint32_t workers, const v1::JobSpec& spec) {
  v1::Hello hello;
  hello.set_protocol_version(wire::kProtocolVersion);
  hello.set_job_id("job");
  hello.set_node_id(node);
  hello.set_hostname(node);
  hello.set_address("10.0.0.1");
  hello.set_node_rank_wanted(-1);
  hello.set_local_world_size(workers);
  hello.set_role("default");
  *hello.mutable_spec() = spec;
  return hello;
}

// The same for all nodes of a job of `min_nodes` to `max_nodes`; the rest is not given.
inline v1::JobSpec TestSpec(uint32_t min_nodes, uint32_t max_nodes) {
  v1::JobSpec spec;
  spec.set_min_nodes(min_nodes);
  spec.set_max_nodes(max_nodes);
  return spec;
}

inline v1::AgentMessage FirstMessage(v1::Hello hello, uint32_t next_store_port = 20'000) {
  v1::AgentMessage message;
  message.set_next_store_port(next_store_port);
  *message.mutable_hello() = std::move(hello);
  return message;
}

}  // namespace phalanx::master

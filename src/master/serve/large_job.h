// A job of many nodes that train, as the master knows it: for tests and benchmarks of what is told of all of them.
#pragma once

#include <fmt/format.h>

#include <string>

#include "master/core/core.h"

namespace phalanx::master {

inline JobState LargeJob(uint32_t nodes, uint32_t ranks_of_node) {
  v1::JobSpec spec = DefaultSpec();
  spec.set_min_nodes(nodes);
  spec.set_max_nodes(nodes);
  JobState job("job", spec);
  job.phase = Phase::kRunning;
  job.round.emplace();
  job.round->epoch = job.highest_epoch = 1;
  job.round->world_size = nodes * ranks_of_node;
  for (uint32_t i = 0; i < nodes; ++i) {
    Node node;
    node.hello.set_node_id(fmt::format("{:032x}", i));
    node.hello.set_hostname(fmt::format("gpu-node-{:05}", i));
    node.hello.set_address(fmt::format("10.{}.{}.{}", i >> 16, i >> 8 & 255, i & 255));
    node.hello.set_local_world_size(ranks_of_node);
    node.group_rank = static_cast<int32_t>(i);
    node.min_step = node.max_step = 100'000;
    Slot slot;
    slot.session = i + 1;
    slot.node = slot.hostname = node.hello.hostname();
    slot.local_world_size = ranks_of_node;
    job.round->slots.push_back(std::move(slot));
    job.nodes[i + 1] = std::move(node);
  }
  return job;
}

}  // namespace phalanx::master

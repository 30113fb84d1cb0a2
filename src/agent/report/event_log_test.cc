#include "agent/report/event_log.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace phalanx::agent {
namespace {

using nlohmann::json;

EventScene Scene() {
  EventScene scene;
  scene.unix_ms = 1'700'000'000'123;
  scene.run_id = "job7";
  scene.role = "trainer";
  scene.hostname = "node1";
  scene.rdzv_backend = "c10d";
  scene.entry_point = "train.py";
  scene.total_run_s = 12;
  scene.group_rank = 1;
  scene.group_world_size = 2;
  scene.restart_count = 3;
  return scene;
}

TEST(EventLog, AWorkersEventHasTorchrunsKeys) {
  EventWorker worker{5, 1, 5, 8, 4242, -9, R"({"message": "x"})"};
  const json event = json::parse(WorkerEvent(Scene(), "FAILED", worker));
  EXPECT_EQ(event.at("name"), "torchelastic.worker.status.FAILED");
  EXPECT_EQ(event.at("source"), "WORKER");
  EXPECT_EQ(event.at("timestamp"), 1'700'000'000'123);
  const json& metadata = event.at("metadata");
  EXPECT_EQ(metadata.size(), 13u);
  EXPECT_EQ(metadata.at("global_rank"), 5);
  EXPECT_EQ(metadata.at("group_rank"), 1);
  EXPECT_EQ(metadata.at("worker_id"), "4242");
  EXPECT_EQ(metadata.at("raw_error"), R"({"message": "x"})");
  EXPECT_EQ(metadata.at("agent_restarts"), 3);
  EXPECT_TRUE(metadata.at("duration_ms").is_null());
  const json details = json::parse(metadata.at("metadata").get<std::string>());
  EXPECT_EQ(details.at("exit_code"), json::array({-9}));
  EXPECT_EQ(details.at("worker_pid"), json::array({4242}));
  EXPECT_EQ(details.at("local_rank"), json::array({1}));
  EXPECT_EQ(details.at("role_world_size"), json::array({8}));
  EXPECT_EQ(details.at("group_world_size"), 2);
  EXPECT_EQ(details.at("entry_point"), "train.py");
}

TEST(EventLog, WhatIsNotKnownIsNull) {
  const json started = json::parse(WorkerEvent(Scene(), "START", EventWorker{0, 0, 0, 1, 7, {}, ""}));
  const json details = json::parse(started.at("metadata").at("metadata").get<std::string>());
  EXPECT_EQ(details.at("exit_code"), json::array({nullptr}));
  EXPECT_TRUE(started.at("metadata").at("raw_error").is_null());
  EventScene early = Scene();
  early.group_rank = -1;
  const json agent = json::parse(AgentEvent(early, "FAILED", std::nullopt));
  EXPECT_EQ(agent.at("source"), "AGENT");
  EXPECT_TRUE(agent.at("metadata").at("group_rank").is_null());
}

TEST(EventLog, ARendezvousHasItsDuration) {
  const json event = json::parse(AgentEvent(Scene(), "RENDEZVOUS", 250));
  EXPECT_EQ(event.at("metadata").at("duration_ms"), 250);
}

}  // namespace
}  // namespace phalanx::agent

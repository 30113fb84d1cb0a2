// How soon a master that was started anew decides: a phalanx-master as it is, and simulated agents, each with a
// connection of its own. In each round it is killed while a round is live, and one rank dies before the next is there.
//
//   phalanx-master-bench PATH_OF_PHALANX_MASTER AGENTS ROUNDS
//
// One line a round: milliseconds from just before the new master's start until it was ready, the first agent was told
// of the next round (which is decided when all are back), and the last one was. Agents dial at once when it is ready.
#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/process/process.h"
#include "master/serve/bench_master.h"
#include "master/serve/test_agent.h"

namespace phalanx::master {
namespace {

constexpr int kThreads = 16;

// Runs `what` for each agent, on a few threads.
void ForEach(int agents, const std::function<void(int)>& what) {
  std::atomic<int> next = 0;
  std::vector<std::thread> threads;
  threads.reserve(kThreads);
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int agent = next++; agent < agents; agent = next++) what(agent);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of so many nodes; with `resume` it takes up the job of the one before.
std::vector<std::string> FlagsFor(int agents, bool resume) {
  std::vector<std::string> flags = {fmt::format("--nnodes={}", agents), "--max-restarts=5", "--last-call-ms=0"};
  if (resume) flags.push_back("--resume");
  return flags;
}

using Agents = std::vector<std::unique_ptr<TestAgent>>;

// What each agent is told of a round later than `after`.
std::vector<v1::StartRound> AwaitRound(Agents& agents, uint64_t after, std::atomic<int64_t>& first_at) {
  std::vector<v1::StartRound> rounds(agents.size());
  ForEach(static_cast<int>(agents.size()), [&](int i) {
    v1::MasterMessage message;
    do {
      message = agents[static_cast<size_t>(i)]->Next();
      PHX_CHECK(message.body_case() != v1::MasterMessage::BODY_NOT_SET, "a stream has broken");
    } while (!message.has_start_round() || message.start_round().epoch() <= after);
    int64_t none = 0;
    first_at.compare_exchange_strong(none, MonotonicMs());
    rounds[static_cast<size_t>(i)] = message.start_round();
  });
  return rounds;
}

void OneRound(const std::string& program, int count) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("phx-restart-{}", getpid())).string();
  Agents agents(static_cast<size_t>(count));
  std::vector<v1::StartRound> live;
  std::atomic<int64_t> first_at = 0;
  {
    const BenchMaster master(program, folder, "secret", FlagsFor(count, false));
    ForEach(count, [&](int i) {
      auto& agent = agents[static_cast<size_t>(i)];
      agent = std::make_unique<TestAgent>(master.address(), fmt::format("node-{}", i));
      agent->Hello(static_cast<uint32_t>(count));
    });
    live = AwaitRound(agents, 0, first_at);
  }
  ForEach(count, [&](int i) { agents[static_cast<size_t>(i)].reset(); });

  const int64_t began = MonotonicMs();
  const BenchMaster master(program, folder, "secret", FlagsFor(count, true));
  const int64_t ready = MonotonicMs();
  ForEach(count, [&](int i) {
    auto& agent = agents[static_cast<size_t>(i)];
    const v1::StartRound& round = live[static_cast<size_t>(i)];
    agent = std::make_unique<TestAgent>(master.address(), fmt::format("node-{}", i));
    v1::AgentMessage message = agent->HelloMessage(static_cast<uint32_t>(count));
    message.mutable_hello()->set_seen_epoch(round.epoch());
    *message.mutable_hello()->mutable_live_round() = round;
    message.mutable_hello()->mutable_live_round()->clear_member_addresses();
    agent->Send(message);
    if (i == 0) agent->Exited(round.epoch(), 0, SIGKILL);
  });
  first_at = 0;
  AwaitRound(agents, live.front().epoch(), first_at);
  fmt::print("{} {} {}\n", ready - began, first_at - began, MonotonicMs() - began);
  ForEach(count, [&](int i) { agents[static_cast<size_t>(i)].reset(); });
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  std::filesystem::remove(folder + ".log", error);
}

}  // namespace
}  // namespace phalanx::master

int main(int argc, char** argv) {
  PHX_CHECK(argc == 4, "usage: phalanx-master-bench PATH_OF_PHALANX_MASTER AGENTS ROUNDS");
  phalanx::RaiseOpenFilesLimit(UINT64_MAX);
  for (int round = 0; round < atoi(argv[3]); ++round) phalanx::master::OneRound(argv[1], atoi(argv[2]));
}

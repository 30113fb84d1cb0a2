// What a master costs that serves many nodes: a phalanx-master as it is, and simulated agents in this process, each
// with a connection and a stream of its own, as its node would have.
//
//   phalanx-scale-bench PATH_OF_PHALANX_MASTER AGENTS open|token DEATHS BEATS_S [BAD]
//
// With BAD all nodes are checked first; each agent answers at once, and so many of them fail beside any other. The
// world is that of the others, and the line has "check_ms": from the last node's welcome until all of those have it.
//
// All agents dial at once, at most kDialling at a time on their way, since they share one machine's queues; over the
// connections of scale_link.h. One JSON line: seconds until all have their world; the master's CPU and memory by then;
// for each death of one rank, ms until the first agent is told of the next round, and until the last one is; the
// master's CPU while agents beat for BEATS_S.
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/process/process.h"
#include "master/core/test_hello.h"
#include "master/serve/bench_master.h"
#include "master/serve/scale_link.h"
#include "wire/node_key.h"

namespace phalanx::master {
namespace {

constexpr size_t kDialling = 256;
constexpr int64_t kPatienceMs = 300'000;
constexpr const char* kToken = "the-token-of-a-benchmark";

// What the agents have come to, together.
struct Fleet {
  std::unique_ptr<ScaleNetwork> network;
  size_t size = 0;
  bool checked = false;
  size_t bad = 0;
  size_t welcome = 0;
  Instant all_welcome = 0;
  size_t dialling = 0;
  size_t told = 0;     // of the round that is waited for
  uint64_t epoch = 0;  // that round is later than this
  Instant first_told = 0;
  int64_t beat_interval_ms = 0;
};

class Agent final : public ScaleSpeaker {
 public:
  Agent(Fleet& fleet, size_t index) : fleet_(fleet), index_(index) {}

  void Dial() {
    ++fleet_.dialling;
    stream_ = fleet_.network->Open(this);
  }

  void Beat() {
    v1::AgentMessage message;
    message.mutable_beat()->set_epoch(epoch_);
    message.mutable_beat()->set_min_step(++step_);
    message.mutable_beat()->set_max_step(step_);
    Send(std::move(message));
  }

  void Die() {
    v1::AgentMessage message;
    v1::WorkerExited& exited = *message.mutable_worker_exited();
    exited.set_epoch(epoch_);
    exited.set_signal(SIGKILL);
    exited.set_script_started(true);
    Send(std::move(message));
  }

  bool is_welcome() const { return is_welcome_; }

  void OnOpen() override {
    v1::Hello hello = TestHello(fmt::format("node-{}", index_), 8,
                                TestSpec(static_cast<uint32_t>(fleet_.size), static_cast<uint32_t>(fleet_.size)));
    wire::SetNode(hello, fmt::format("{:016}", index_));
    hello.mutable_spec()->set_max_restarts(1'000);
    hello.mutable_spec()->set_last_call_ms(300);
    if (fleet_.checked) {
      hello.mutable_spec()->set_min_nodes(static_cast<uint32_t>(fleet_.size - fleet_.bad));
      hello.mutable_spec()->mutable_check()->set_level(1);
    }
    Send(FirstMessage(std::move(hello)));
  }

  void OnMessage(const v1::MasterMessage& message) override {
    if (message.has_welcome()) {
      --fleet_.dialling;
      is_welcome_ = true;
      if (++fleet_.welcome == fleet_.size) fleet_.all_welcome = MonotonicMs();
      fleet_.beat_interval_ms = message.welcome().beat_interval_ms();
    }
    PHX_CHECK(!message.has_refused(), "a node was refused");
    if (message.has_check()) Answer(message.check());
    if (message.has_start_round() && message.start_round().epoch() > fleet_.epoch) {
      if (fleet_.told++ == 0) fleet_.first_told = MonotonicMs();
      epoch_ = message.start_round().epoch();
    }
  }

  // The world would never come.
  void OnClosed(const std::string& why) override { PHX_CHECK(false, ("a stream has ended: " + why).c_str()); }

 private:
  void Send(v1::AgentMessage message) {
    message.set_sequence(next_sequence_++);
    stream_->Send(message);
  }

  // The bad ones are spread evenly.
  bool IsBad(const std::string& name) const {
    const size_t index = std::stoul(name.substr(name.find('-') + 1));
    return fleet_.bad > 0 && index % (fleet_.size / fleet_.bad) == 1;
  }

  void Answer(const v1::CheckOrder& order) {
    v1::AgentMessage message;
    v1::CheckReport& report = *message.mutable_check();
    report.set_run(order.run());
    report.set_part(order.part());
    v1::CheckResult& result = *report.add_results();
    result.set_check(order.kind() == v1::CheckOrder::ALONE ? "matmul" : "all_reduce");
    const bool fails = order.kind() == v1::CheckOrder::PAIR && (IsBad(order.names(0)) || IsBad(order.names(1)));
    if (fails) result.set_outcome(v1::CheckResult::FAILED);
    v1::CheckValue& value = *result.add_values();
    value.set_name(result.check() + "_time");
    value.set_unit("us");
    value.set_better(v1::CheckValue::LESS);
    value.set_value(100'000);
    Send(std::move(message));
  }

  Fleet& fleet_;
  const size_t index_;
  std::unique_ptr<ScaleStream> stream_;
  bool is_welcome_ = false;
  uint64_t next_sequence_ = 1;
  uint64_t epoch_ = 0;
  int64_t step_ = 0;
};

using Agents = std::vector<std::unique_ptr<Agent>>;

// Serves the network until `until`, or `done`; `before_each` runs before each wait.
bool Serve(Fleet& fleet, Instant until, const std::function<bool()>& done, const std::function<void()>& before_each) {
  while (!done()) {
    before_each();
    const int64_t left_ms = until - MonotonicMs();
    if (left_ms <= 0) return false;
    fleet.network->Serve(std::min<int64_t>(left_ms, 10));
  }
  return true;
}

// Lets each agent that was welcomed beat once in an interval, spread evenly over it.
class Beats {
 public:
  Beats(Fleet& fleet, Agents& agents) : fleet_(fleet), agents_(agents) {}

  void GoOn() {
    if (fleet_.beat_interval_ms == 0) return;
    const Instant now = MonotonicMs();
    const auto due = static_cast<uint64_t>(now - began_) * fleet_.size / static_cast<uint64_t>(fleet_.beat_interval_ms);
    for (; beaten_ < due; ++beaten_) {
      const size_t index = beaten_ % fleet_.size;
      if (index < agents_.size() && agents_[index]->is_welcome()) agents_[index]->Beat();
    }
  }

 private:
  Fleet& fleet_;
  Agents& agents_;
  const Instant began_ = MonotonicMs();
  uint64_t beaten_ = 0;
};

void BeatFor(Fleet& fleet, Beats& beats, int64_t span_ms) {
  Serve(
      fleet, MonotonicMs() + span_ms, [] { return false; }, [&] { beats.GoOn(); });
}

struct What {
  size_t count = 0;
  bool open = false;
  int deaths = 0;
  int64_t beats_ms = 0;
  bool checked = false;
  size_t bad = 0;
};

void Measure(const std::string& program, const What& what) {
  const size_t count = what.count;
  const bool open = what.open;
  const bool checked = what.checked;
  const size_t bad = what.bad;
  const std::string folder = (std::filesystem::temp_directory_path() / fmt::format("phx-scale-{}", getpid())).string();
  // Of a job that is checked the first node says what it wants.
  std::vector<std::string> flags = {"--embedded", checked ? "--spec-from-hello" : fmt::format("--nnodes={}", count)};
  if (!checked) flags.emplace_back("--max-restarts=1000");
  const BenchMaster master(program, folder, open ? "" : kToken, flags);
  Fleet fleet;
  fleet.network = NetworkTo(master.port(), open ? "" : kToken);
  fleet.size = count;
  fleet.checked = checked;
  fleet.bad = bad;
  Agents agents;
  Beats beats(fleet, agents);
  const size_t world = count - bad;
  const auto all_told = [&fleet, world] { return fleet.told == world; };
  const Instant began = MonotonicMs();
  PHX_CHECK(Serve(fleet, began + kPatienceMs, all_told,
                  [&] {
                    while (agents.size() < count && fleet.dialling < kDialling) {
                      agents.push_back(std::make_unique<Agent>(fleet, agents.size()));
                      agents.back()->Dial();
                    }
                    beats.GoOn();
                  }),
            "not all agents have their world");
  fmt::print("{{\"agents\": {}, \"how\": \"{}\", \"registered_s\": {:.3f}, \"master_cpu_s\": {:.3f}, \"rss_mb\": {}, ",
             count, open ? "open" : "token", static_cast<double>(MonotonicMs() - began) / 1e3,
             static_cast<double>(master.CpuMs()) / 1e3, master.RssMb());
  if (checked) fmt::print("\"bad\": {}, \"check_ms\": {}, ", bad, MonotonicMs() - fleet.all_welcome);
  std::string decided;
  std::string last_told;
  for (int death = 0; death < what.deaths; ++death) {
    BeatFor(fleet, beats, 1'000);
    fleet.epoch += 1;  // rounds are counted one by one here
    fleet.told = 0;
    const Instant dead = MonotonicMs();
    agents[static_cast<size_t>(death) % count]->Die();
    PHX_CHECK(Serve(fleet, dead + kPatienceMs, all_told, [&] { beats.GoOn(); }),
              "not all agents were told of the next round");
    decided += fmt::format("{}{}", death == 0 ? "" : ", ", fleet.first_told - dead);
    last_told += fmt::format("{}{}", death == 0 ? "" : ", ", MonotonicMs() - dead);
  }
  const int64_t cpu_ms = master.CpuMs();
  const Instant beating = MonotonicMs();
  BeatFor(fleet, beats, what.beats_ms);
  const double core = static_cast<double>(master.CpuMs() - cpu_ms) / static_cast<double>(MonotonicMs() - beating);
  fmt::print(
      "\"decided_ms\": [{}], \"last_told_ms\": [{}], \"beat_interval_ms\": {}, \"beating_core\": {:.4f}, "
      "\"rss_then_mb\": {}}}\n",
      decided, last_told, fleet.beat_interval_ms, core, master.RssMb());
  fflush(stdout);
  agents.clear();
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  std::filesystem::remove(folder + ".log", error);
}

}  // namespace
}  // namespace phalanx::master

int main(int argc, char** argv) {
  PHX_CHECK(argc == 6 || argc == 7,
            "usage: phalanx-scale-bench PATH_OF_PHALANX_MASTER AGENTS open|token DEATHS BEATS_S [BAD]");
  phalanx::RaiseOpenFilesLimit(UINT64_MAX);
  signal(SIGPIPE, SIG_IGN);  // of a master that has gone
  const std::string how = argv[3];
  PHX_CHECK(how == "open" || how == "token", "open or token");
  phalanx::master::What what;
  what.count = static_cast<size_t>(atoi(argv[2]));
  what.open = how == "open";
  what.deaths = atoi(argv[4]);
  what.beats_ms = int64_t{1'000} * atoi(argv[5]);
  what.checked = argc == 7;
  if (what.checked) what.bad = static_cast<size_t>(atoi(argv[6]));
  phalanx::master::Measure(argv[1], what);
}

#include "agent/workers/launch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;
using Args = std::vector<std::string>;

LaunchConfig Config(ScriptKind kind) {
  LaunchConfig config;
  config.kind = kind;
  config.script = kind == ScriptKind::kModule ? "pkg.train" : "train${local_rank}.py";
  config.python = "/usr/bin/python3";
  config.state_root = "/state";
  return config;
}

WorkerSpec Spec() {
  WorkerSpec spec;
  spec.local_rank = 1;
  spec.args = {"--lr", "0.1"};
  spec.env = {{"RANK", "1"}};
  return spec;
}

TEST(WorkerCommand, IsTorchrunsWithoutABootstrap) {
  EXPECT_EQ(WorkerCommand(Config(ScriptKind::kScript), Spec(), "").args,
            (Args{"/usr/bin/python3", "-u", "train1.py", "--lr", "0.1"}));
  EXPECT_EQ(WorkerCommand(Config(ScriptKind::kModule), Spec(), "").args,
            (Args{"/usr/bin/python3", "-u", "-m", "pkg.train", "--lr", "0.1"}));
  const SpawnSpec program = WorkerCommand(Config(ScriptKind::kProgram), Spec(), "/ignored");
  EXPECT_EQ(program.program, "train${local_rank}.py");
  EXPECT_EQ(program.args, (Args{"train${local_rank}.py", "--lr", "0.1"}));
}

TEST(WorkerCommand, BindsToTheWorkersCpus) {
  WorkerSpec spec = Spec();
  const auto bound = [&] {
    return nlohmann::json::parse(RunMessage(Config(ScriptKind::kScript), spec, 0, "/", 0), nullptr, false)["bound"];
  };
  EXPECT_TRUE(WorkerCommand(Config(ScriptKind::kProgram), spec, "").cpus.empty());
  EXPECT_EQ(bound(), 0);
  spec.cpus = {3, 4};
  EXPECT_EQ(WorkerCommand(Config(ScriptKind::kProgram), spec, "").cpus, spec.cpus);
  EXPECT_EQ(WorkerCommand(Config(ScriptKind::kScript), spec, "/boot").cpus, spec.cpus);
  EXPECT_EQ(bound(), 1);
}

TEST(WorkerCommand, LeavesRoomForTheCommandLineItWillShow) {
  const SpawnSpec command = WorkerCommand(Config(ScriptKind::kScript), Spec(), "/boot");
  ASSERT_EQ(command.args.size(), 5u);
  EXPECT_EQ(command.args[2], "/boot/worker.py");
  EXPECT_EQ(command.args[3], "3");
  EXPECT_GE(command.args[4].size(), std::string("/usr/bin/python3 -u train1.py --lr 0.1").size());
  WorkerSpec huge = Spec();
  huge.args.assign(1000, std::string(1000, 'x'));
  EXPECT_LT(WorkerCommand(Config(ScriptKind::kScript), huge, "/boot").args[4].size(), 128u << 10);
}

TEST(ZygoteCommand, AloneHasTheModulesOfTheFlag) {
  LaunchConfig config = Config(ScriptKind::kScript);
  const std::map<std::string, std::string> env = {{"PHALANX_PRELOAD", "numpy"}};
  EXPECT_EQ(ZygoteCommand(config, env, "/boot").env.at("PHALANX_PRELOAD"), "numpy");
  config.preload = "torch,numpy";
  EXPECT_EQ(ZygoteCommand(config, {}, "/boot").env.at("PHALANX_PRELOAD"), "torch,numpy");
  EXPECT_TRUE(WorkerCommand(config, Spec(), "/boot").env.count("PHALANX_PRELOAD") == 0);
}

TEST(ZygoteCommand, CountsThreadsAsTheRanksDo) {
  LaunchConfig config = Config(ScriptKind::kScript);
  config.omp_num_threads_unset = true;
  config.nproc_per_node = 1;
  EXPECT_EQ(ZygoteCommand(config, {}, "/boot").env.count("OMP_NUM_THREADS"), 0u);
  config.nproc_per_node = 2;
  EXPECT_EQ(ZygoteCommand(config, {}, "/boot").env.at("OMP_NUM_THREADS"), "1");
  config.omp_num_threads_unset = false;
  EXPECT_EQ(ZygoteCommand(config, {{"OMP_NUM_THREADS", "3"}}, "/boot").env.at("OMP_NUM_THREADS"), "3");
}

TEST(Messages, AreThoseOfTheFormat) {
  WorkerSpec spec = Spec();
  const auto run =
      nlohmann::json::parse(RunMessage(Config(ScriptKind::kScript), spec, 2, "/work", 027), nullptr, false);
  EXPECT_EQ(run["type"], "run");
  EXPECT_EQ(run["kind"], "script");
  EXPECT_EQ(run["script"], "train1.py");
  EXPECT_EQ(run["args"], nlohmann::json({"--lr", "0.1"}));
  EXPECT_EQ(run["cwd"], "/work");
  EXPECT_EQ(run["env"]["RANK"], "1");
  EXPECT_EQ(run["umask"], 027);
  EXPECT_TRUE(run["board"].is_null());
  EXPECT_EQ(run["exact_steps"], 0);
  EXPECT_EQ(run["counts_on"], 0);
  EXPECT_EQ(run["logs"], 2);
  spec.board_path = "/dev/shm/b";
  spec.exact_steps = spec.counts_on = true;
  const auto with_board =
      nlohmann::json::parse(RunMessage(Config(ScriptKind::kModule), spec, 0, "/", 0), nullptr, false);
  EXPECT_EQ(with_board["kind"], "module");
  EXPECT_EQ(with_board["board"]["path"], "/dev/shm/b");
  EXPECT_EQ(with_board["board"]["slot"], 1);
  EXPECT_EQ(with_board["exact_steps"], 1);
  EXPECT_EQ(with_board["counts_on"], 1);
  LaunchConfig config = Config(ScriptKind::kScript);
  config.script_args = {"--lr", "0.1"};
  const auto preload =
      nlohmann::json::parse(PreloadMessage(config, {{"A", "b"}}, "/w", {{"a"}, {"b"}}), nullptr, false);
  EXPECT_EQ(preload["type"], "preload");
  EXPECT_EQ(preload["script"], "train0.py");
  EXPECT_EQ(preload["args"], nlohmann::json({"--lr", "0.1"}));
  EXPECT_EQ(preload["env"], nlohmann::json({{"A", "b"}}));
  EXPECT_EQ(preload["learnt"], nlohmann::json({"a"}));
  EXPECT_EQ(preload["deny"], nlohmann::json({"b"}));
  EXPECT_EQ(preload["cache"], "/state");
}

class FindBootstrapTest : public ::testing::Test {
 protected:
  FindBootstrapTest() : dir_(fs::temp_directory_path() / fmt::format("phalanx-bootstrap-{}", getpid())) {
    fs::create_directories(dir_ / "bin");
  }
  ~FindBootstrapTest() override { fs::remove_all(dir_); }

  std::string Install(const std::string& packages) {
    const fs::path bootstrap = dir_ / packages / "phalanx/_bootstrap";
    fs::create_directories(bootstrap);
    std::ofstream(bootstrap / "worker.py") << "";
    return bootstrap.string();
  }

  std::string Find(const LaunchConfig& config) const { return FindBootstrap(config, (dir_ / "bin").string()); }

  const fs::path dir_;
  LaunchConfig config_ = Config(ScriptKind::kScript);
};

TEST_F(FindBootstrapTest, WhereverPipPutsIt) {
  Install("lib/other/site-packages");
  fs::create_directories(dir_ / "lib/python3.10/site-packages/phalanx/_bootstrap");
  EXPECT_EQ(Find(config_), "");
  for (const char* packages : {"lib/python3.11/site-packages", "lib64/python3.9/site-packages",
                               "lib/python3.12/dist-packages", "local/lib/python3.11/dist-packages",
                               "lib/python3/dist-packages", "local/lib64/python3.12/site-packages", ""}) {
    const std::string bootstrap = Install(packages);
    EXPECT_EQ(Find(config_), bootstrap);
    fs::remove_all(bootstrap);
  }
}

TEST_F(FindBootstrapTest, TheOneThatWasInstalledLast) {
  const std::string first = Install("lib/python3.9/site-packages");
  const std::string last = Install("lib/python3.11/site-packages");
  fs::last_write_time(first, fs::file_time_type::clock::now() - std::chrono::hours(1));
  EXPECT_EQ(Find(config_), last);
  fs::last_write_time(last, fs::file_time_type::clock::now() - std::chrono::hours(2));
  EXPECT_EQ(Find(config_), first);
}

TEST_F(FindBootstrapTest, AnotherInterpreterNeedsToNameIt) {
  const std::string bootstrap = Install("lib/python3.11/site-packages");
  EXPECT_EQ(Find(Config(ScriptKind::kProgram)), "");
  config_.interpreter_given = true;
  EXPECT_EQ(Find(config_), "");
  config_.bootstrap_dir = bootstrap;
  EXPECT_EQ(Find(config_), bootstrap);
  config_.bootstrap_dir = "/no/such";
  EXPECT_EQ(Find(config_), "");
}

TEST(CheckMessage, HasTheWholeEnvironment) {
  const nlohmann::json message = nlohmann::json::parse(CheckMessage({{"A", "b\n"}, {"PATH", "/bin"}}), nullptr, false);
  EXPECT_EQ(message["type"], "check");
  EXPECT_EQ(message["env"], (nlohmann::json{{"A", "b\n"}, {"PATH", "/bin"}}));
}

}  // namespace
}  // namespace phalanx::agent

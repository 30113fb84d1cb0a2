#include "agent/flags/worker_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

using testing::ElementsAre;

using Vars = std::map<std::string, std::string>;

LaunchConfig Config() {
  LaunchConfig config;
  config.nproc_per_node = 4;
  config.rdzv_id = "job7";
  config.role = "trainer";
  config.omp_num_threads_unset = true;
  return config;
}

RoundPlace Place() {
  RoundPlace place;
  place.group_rank = 2;
  place.group_world_size = 3;
  place.rank_base = 8;
  place.world_size = 12;
  place.role_rank_base = 4;
  place.role_world_size = 8;
  place.restart_count = 5;
  place.max_restarts = 6;
  place.epoch = 17;
  place.master_addr = "10.0.0.1";
  place.master_port = 40000;
  return place;
}

TEST(WorkerEnvironment, TellsDeepSpeedTheElasticConfig) {
  LaunchConfig config = Config();
  config.elastic_config = R"({"enabled":true})";
  const auto variable = [&config](const Vars& base) {
    return WorkerEnvironment(config, Environment(base), Place(), 3, {}).at("DEEPSPEED_ELASTICITY_CONFIG");
  };
  EXPECT_EQ(variable({}), R"({"enabled":true})");
  EXPECT_EQ(variable({{"DEEPSPEED_ELASTICITY_CONFIG", "a user's"}}), "a user's");
  config.elastic_config.clear();
  EXPECT_EQ(WorkerEnvironment(config, Environment(Vars{}), Place(), 3, {}).count("DEEPSPEED_ELASTICITY_CONFIG"), 0u);
}

TEST(WorkerEnvironment, IsTorchrunsAndOurs) {
  std::map<std::string, std::string> expected = {
      {"PATH", "/bin"},
      {"LOCAL_RANK", "3"},
      {"RANK", "11"},
      {"GROUP_RANK", "2"},
      {"ROLE_RANK", "7"},
      {"ROLE_NAME", "trainer"},
      {"LOCAL_WORLD_SIZE", "4"},
      {"WORLD_SIZE", "12"},
      {"GROUP_WORLD_SIZE", "3"},
      {"ROLE_WORLD_SIZE", "8"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "40000"},
      {"TORCHELASTIC_RESTART_COUNT", "5"},
      {"TORCHELASTIC_MAX_RESTARTS", "6"},
      {"TORCHELASTIC_RUN_ID", "job7"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
      {"TORCHELASTIC_ERROR_FILE", "/logs/attempt_5/3/error.json"},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
      {"OMP_NUM_THREADS", "1"},
      {"PHALANX_EPOCH", "17"},
      {"PHALANX_JOB_ID", "job7"},
      {"PHALANX_BOARD", "/dev/shm/board:3"},
  };
  EXPECT_EQ(WorkerEnvironment(Config(), Environment(Vars{{"PATH", "/bin"}}), Place(), 3,
                              {"/logs/attempt_5/3/error.json", "/dev/shm/board"}),
            expected);
}

TEST(WorkerEnvironment, KeepsWhatTheUserSetAndOverridesAnOuterLaunch) {
  Environment base(Vars{{"OMP_NUM_THREADS", "8"},
                        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"},
                        {"CUDA_VISIBLE_DEVICES", "2,3"},
                        {"RANK", "99"},
                        {"PHALANX_BOARD", "/dev/shm/outer:0"},
                        {"PHALANX_ENDPOINT", "outer:1"},
                        {"TORCHELASTIC_ERROR_FILE", "/outer.json"}});
  LaunchConfig config = Config();
  config.omp_num_threads_unset = false;
  auto env = WorkerEnvironment(config, base, Place(), 0, {});
  EXPECT_EQ(env.count("PHALANX_ENDPOINT"), 0u);
  EXPECT_EQ(env["OMP_NUM_THREADS"], "8");
  EXPECT_EQ(env["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "0");
  EXPECT_EQ(env["CUDA_VISIBLE_DEVICES"], "2,3");
  EXPECT_EQ(env["RANK"], "8");
  EXPECT_EQ(env["TORCHELASTIC_ERROR_FILE"], "");
  EXPECT_EQ(env.count("PHALANX_BOARD"), 0u);
}

TEST(WorkerEnvironment, NamesTheEndpointWhereThereIsOne) {
  LaunchConfig config = Config();
  config.endpoint_host = "fd00::7";
  config.endpoint_port = 29500;
  EXPECT_EQ(WorkerEnvironment(config, Environment(), Place(), 0, {})["PHALANX_ENDPOINT"], "[fd00::7]:29500");
}

TEST(WorkerEnvironment, LetsOnlyTheDebuggedRankStopAtABreakpoint) {
  LaunchConfig config = Config();
  const auto stops = [&config](int local_rank) {
    return WorkerEnvironment(config, Environment(), Place(), local_rank, {}).count("PYTHONBREAKPOINT") == 0;
  };
  EXPECT_TRUE(stops(0) && stops(1));
  config.debug_rank = static_cast<int>(Place().rank_base) + 1;
  EXPECT_FALSE(stops(0));
  EXPECT_TRUE(stops(1));
  EXPECT_EQ(WorkerEnvironment(config, Environment(), Place(), 0, {})["PYTHONBREAKPOINT"], "0");
}

TEST(WorkerEnvironment, LeavesThreadsAloneForASingleWorker) {
  LaunchConfig config = Config();
  config.nproc_per_node = 1;  // what --nproc-per-node=auto turned out to be
  EXPECT_EQ(WorkerEnvironment(config, Environment(), Place(), 0, {}).count("OMP_NUM_THREADS"), 0u);
}

// LOCAL_RANK, CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES ("-": not set) of a worker, all others as ever.
std::vector<std::string> Virtual(int local_rank, Vars base_values) {
  LaunchConfig config = Config();
  config.nproc_per_node = 12;
  const Environment base(std::move(base_values));
  const WorkerFiles files{"/e", "/dev/shm/board"};
  auto plain = WorkerEnvironment(config, base, Place(), local_rank, files);
  config.virtual_local_rank = true;
  auto env = WorkerEnvironment(config, base, Place(), local_rank, files);
  std::vector<std::string> seen;
  for (const char* name : {"LOCAL_RANK", "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}) {
    seen.push_back(env.count(name) > 0 ? env[name] : "-");
    env.erase(name);
    plain.erase(name);
  }
  EXPECT_EQ(env, plain);
  EXPECT_EQ(env["PHALANX_BOARD"], fmt::format("/dev/shm/board:{}", local_rank));
  return seen;
}

TEST(VirtualLocalRank, ShowsEachWorkerItsOwnDevice) {
  EXPECT_THAT(Virtual(0, {}), ElementsAre("0", "0", "-"));
  EXPECT_THAT(Virtual(11, {}), ElementsAre("0", "11", "-"));
  const Vars given{{"CUDA_VISIBLE_DEVICES", "2,3, GPU-4f2a ,MIG-1/0"}};
  EXPECT_THAT(Virtual(0, given), ElementsAre("0", "2", "-"));
  EXPECT_THAT(Virtual(2, given), ElementsAre("0", "GPU-4f2a", "-"));
  EXPECT_THAT(Virtual(3, given), ElementsAre("0", "MIG-1/0", "-"));
  EXPECT_THAT(Virtual(1, {{"CUDA_VISIBLE_DEVICES", ""}}), ElementsAre("0", "", "-"));
}

TEST(VirtualLocalRank, LooksAtHipFirst) {
  EXPECT_THAT(Virtual(1, {{"HIP_VISIBLE_DEVICES", "6,7"}, {"CUDA_VISIBLE_DEVICES", "0"}}), ElementsAre("0", "7", "7"));
  EXPECT_THAT(Virtual(1, {{"HIP_VISIBLE_DEVICES", ""}, {"CUDA_VISIBLE_DEVICES", "4,5"}}), ElementsAre("0", "5", ""));
  EXPECT_THAT(Virtual(1, {{"HIP_VISIBLE_DEVICES", ""}}), ElementsAre("0", "1", ""));
}

TEST(VirtualLocalRank, NeedsADeviceForEach) {
  LaunchConfig config = Config();
  const Environment three(Vars{{"CUDA_VISIBLE_DEVICES", "4,5,6"}});
  EXPECT_TRUE(CheckVisibleDevices(config, three).ok());
  config.virtual_local_rank = true;
  EXPECT_EQ(
      Message(CheckVisibleDevices(config, three)),
      "--virtual-local-rank: CUDA_VISIBLE_DEVICES=4,5,6 has no device for local rank 3: expected one for each of 4 "
      "workers");
  const Environment hip(Vars{{"HIP_VISIBLE_DEVICES", "1"}, {"CUDA_VISIBLE_DEVICES", "4,5,6,7"}});
  EXPECT_THAT(Message(CheckVisibleDevices(config, hip)), testing::HasSubstr("HIP_VISIBLE_DEVICES=1 has no device"));
  for (const Vars& enough : {Vars{}, Vars{{"CUDA_VISIBLE_DEVICES", ""}}, Vars{{"CUDA_VISIBLE_DEVICES", "1,2,3,4"}}}) {
    EXPECT_TRUE(CheckVisibleDevices(config, Environment(enough)).ok());
  }
}

TEST(WorkerEnvironment, LetsRankZeroHostTheStoreWhereAsked) {
  auto use = [](const char* value) {
    Environment base(Vars{{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", value}});
    return WorkerEnvironment(Config(), base, Place(), 0, {})["TORCHELASTIC_USE_AGENT_STORE"];
  };
  EXPECT_EQ(use("1"), "False");
  EXPECT_EQ(use("0"), "True");
  EXPECT_EQ(use("true"), "True");  // torch compares with "1" alone
}

TEST(WorkerEnvironment, RelaysTheStoreInLargeWorldsOrWhereAsked) {
  LaunchConfig config = Config();
  const Environment plain(Vars{});
  EXPECT_FALSE(RelaysStore(config, plain, 2));
  EXPECT_FALSE(RelaysStore(config, plain, 16'384));
  EXPECT_TRUE(RelaysStore(config, plain, 16'385));
  config.store_relay = StoreRelayMode::kOff;
  EXPECT_FALSE(RelaysStore(config, plain, 80'000));
  config.store_relay = StoreRelayMode::kOn;
  EXPECT_TRUE(RelaysStore(config, plain, 2));
  for (const StoreRelayMode mode : {StoreRelayMode::kAuto, StoreRelayMode::kOn}) {
    config.store_relay = mode;
    EXPECT_FALSE(RelaysStore(config, Environment(Vars{{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}}), 80'000))
        << "torch's own store knows no relay";
  }
}

// Each line as Python's string.Template(text).safe_substitute(local_rank=12) answers it.
TEST(SubstituteLocalRank, IsPythonsTemplate) {
  for (auto [text, expected] : std::map<std::string, std::string>{
           {"--out=${local_rank}.log", "--out=12.log"},
           {"$local_rank", "12"},
           {"$local_rank/x", "12/x"},
           {"$local_rank2", "$local_rank2"},
           {"${local_rank2}", "${local_rank2}"},
           {"${local_rank", "${local_rank"},
           {"${ local_rank}", "${ local_rank}"},
           {"$LOCAL_RANK", "$LOCAL_RANK"},
           {"$$local_rank", "$local_rank"},
           {"$${local_rank}", "${local_rank}"},
           {"$$$local_rank", "$12"},
           {"$", "$"},
           {"a$", "a$"},
           {"${", "${"},
           {"${}", "${}"},
           {"$5", "$5"},
           {"", ""},
           {"${rank}${local_rank}", "${rank}12"},
       }) {
    EXPECT_EQ(SubstituteLocalRank(text, 12), expected) << text;
  }
  EXPECT_THAT(SubstituteLocalRank(std::vector<std::string>{"a", "${local_rank}"}, 0), ElementsAre("a", "0"));
}

}  // namespace
}  // namespace phalanx::agent

#include "agent/flags/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <set>
#include <sstream>

#include "agent/flags/flag_table.h"
#include "base/test_paths.h"

namespace phalanx::agent {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

using Vars = std::map<std::string, std::string>;

HostFacts Host() {
  HostFacts host;
  host.cpu_count = 6;
  host.uid = 1000;
  host.hostname = "node1";
  host.home = "/home/user";
  host.cwd = "/work";
  host.own_dir = "/venv/bin";
  host.fresh_uuid = "11111111-2222-4333-8444-555555555555";
  host.fresh_token = "fresh-token";
  host.is_executable = [](const std::string& path) {
    return std::set<std::string>{"/venv/bin/python", "/usr/bin/python3", "/opt/py/bin/python3", "/opt/a", "/opt/b"}
               .count(path) > 0;
  };
  host.read_file = [](const std::string& path) -> StatusOr<std::string> {
    if (path == "/work/plain.json") return std::string("{}");
    // Of the documented example: 1, 2 and 4 ranks.
    if (path == "/work/ds.json") {
      return std::string(R"({"elasticity": {"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [4, 2],
                                            "version": 0.1}})");
    }
    return absl::NotFoundError("cannot be read: No such file or directory");
  };
  host.read_secret = [](const std::string&) { return absl::NotFoundError("none"); };
  return host;
}

ParseResult Parse(std::vector<std::string> args, Vars vars = {}, HostFacts host = Host()) {
  return ParseFlags(args, Environment(std::move(vars)), host);
}

LaunchConfig Config(std::vector<std::string> args, Vars vars = {}, HostFacts host = Host()) {
  ParseResult result = Parse(std::move(args), std::move(vars), std::move(host));
  if (auto* text = std::get_if<PrintAndExit>(&result)) {
    ADD_FAILURE() << text->text;
    return {};
  }
  return std::get<LaunchConfig>(std::move(result));
}

// The error's first line without "phalanx-run: error: ".
std::string Error(std::vector<std::string> args, Vars vars = {}, HostFacts host = Host()) {
  ParseResult result = Parse(std::move(args), std::move(vars), std::move(host));
  auto* text = std::get_if<PrintAndExit>(&result);
  if (text == nullptr) return "accepted";
  EXPECT_EQ(text->exit_code, 2);
  const std::string prefix = "phalanx-run: error: ";
  EXPECT_EQ(text->text.rfind(prefix, 0), 0u) << text->text;
  return text->text.substr(prefix.size(), text->text.find('\n') - prefix.size());
}

TEST(Flags, DefaultsAreTorchruns) {
  LaunchConfig config = Config({"train.py", "--lr", "0.1"});
  EXPECT_EQ(config.kind, ScriptKind::kScript);
  EXPECT_EQ(config.script, "train.py");
  EXPECT_THAT(config.script_args, ElementsAre("--lr", "0.1"));
  EXPECT_EQ(config.python, "/venv/bin/python");
  EXPECT_FALSE(config.interpreter_given);
  EXPECT_EQ(config.min_nodes, 1u);
  EXPECT_EQ(config.max_nodes, 1u);
  EXPECT_EQ(config.nproc_per_node, 1u);
  EXPECT_EQ(config.rendezvous, Rendezvous::kStandalone);
  EXPECT_EQ(config.rdzv_id, Host().fresh_uuid);
  EXPECT_EQ(config.token, "fresh-token");
  EXPECT_EQ(config.max_restarts, std::nullopt);
  EXPECT_EQ(config.stop_timeout_ms, 30'000);
  EXPECT_EQ(config.restart_grace_ms, 500);
  EXPECT_THAT(config.signals_to_handle, UnorderedElementsAre(SIGTERM, SIGINT, SIGHUP, SIGQUIT));
  EXPECT_EQ(config.log_line_prefix_template, "[${role_name}${local_rank}]:");
  EXPECT_EQ(config.state_dir, "/home/user/.local/state/phalanx/" + Host().fresh_uuid);
  EXPECT_TRUE(config.rdzv_id_invented);
  EXPECT_TRUE(config.warm);
  EXPECT_EQ(config.spares, -1);
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST(Flags, ReadsAnElasticJob) {
  LaunchConfig config = Config({"--nnodes=2:8", "--nproc-per-node=8", "--max-restarts=3", "--rdzv-id=job7",
                                "--rdzv-backend=c10d", "--rdzv-endpoint=node1:29400", "train.py"});
  EXPECT_EQ(config.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(config.min_nodes, 2u);
  EXPECT_EQ(config.max_nodes, 8u);
  EXPECT_EQ(config.nproc_per_node, 8u);
  EXPECT_EQ(config.max_restarts, 3u);
  EXPECT_EQ(config.rdzv_id, "job7");
  EXPECT_EQ(config.endpoint_host, "node1");
  EXPECT_EQ(config.endpoint_port, 29400);
  EXPECT_EQ(config.node_rank, -1);
  EXPECT_EQ(config.token, "");
  EXPECT_EQ(config.state_root, "/home/user/.local/state/phalanx");
  EXPECT_FALSE(config.rdzv_id_invented);
  EXPECT_EQ(config.state_dir, "/home/user/.local/state/phalanx/job7");
  EXPECT_THAT(config.notices, IsEmpty());
}

TEST(Flags, ReadsAStaticJob) {
  LaunchConfig config = Config({"--nnodes=2", "--node_rank=1", "--master_addr", "[::1]", "--master_port", "1234",
                                "--nproc_per_node", "2", "s.py"});
  EXPECT_EQ(config.rendezvous, Rendezvous::kStatic);
  EXPECT_EQ(config.endpoint_host, "::1");
  EXPECT_EQ(config.endpoint_port, 1234);
  EXPECT_EQ(config.node_rank, 1);
  EXPECT_EQ(config.rdzv_id, "none");
  EXPECT_EQ(config.state_dir, "/home/user/.local/state/phalanx/none@node1-1234");  // not that of another port's job
  LaunchConfig plain = Config({"--nnodes=2", "s.py"});
  EXPECT_EQ(plain.endpoint_host, "127.0.0.1");
  EXPECT_EQ(plain.endpoint_port, 29500);
  EXPECT_EQ(plain.node_rank, 0);
  LaunchConfig endpoint = Config({"--nnodes=2", "--rdzv-endpoint=node1", "s.py"});
  EXPECT_EQ(endpoint.endpoint_host, "node1");
  EXPECT_EQ(endpoint.endpoint_port, 29500);
  EXPECT_EQ(Config({"--master-port=1234", "s.py"}).rendezvous, Rendezvous::kStatic);  // one node, but asked for
  LaunchConfig elastic = Config({"--nnodes=1:2", "--master-port=1234", "s.py"});
  EXPECT_EQ(elastic.min_nodes, 2u);
  EXPECT_THAT(elastic.notices, ElementsAre(HasSubstr("--nnodes=1:2: the static rendezvous waits for all 2 nodes")));
  EXPECT_THAT(Error({"--nnodes=2", "--node-rank=2", "s.py"}), HasSubstr("--node-rank=2: expected a rank from 0 to 1"));
  EXPECT_THAT(Error({"--nnodes=2", "--rdzv-endpoint=a:0", "s.py"}),
              HasSubstr("--rdzv-endpoint=a:0: expected a port from 1"));
}

TEST(Flags, StandaloneOverridesTheRendezvousAloud) {
  LaunchConfig config = Config({"--standalone", "--rdzv-id=x", "--rdzv-endpoint=h:1", "--nnodes=1:4", "s.py"});
  EXPECT_EQ(config.rendezvous, Rendezvous::kStandalone);
  EXPECT_EQ(config.max_nodes, 1u);
  EXPECT_EQ(config.endpoint_port, 0);
  EXPECT_THAT(config.notices, ElementsAre(HasSubstr("--rdzv-endpoint: has no effect")));
  EXPECT_THAT(Error({"--standalone", "--nnodes=2", "s.py"}), HasSubstr("--nnodes=2: expected 1 with --standalone"));
}

TEST(Flags, StandaloneKeepsAnIdThatWasChosen) {
  for (const std::vector<std::string>& alone : {std::vector<std::string>{"--standalone"}, std::vector<std::string>{}}) {
    std::vector<std::string> args = alone;
    args.insert(args.end(), {"--rdzv-id=x", "s.py"});
    const LaunchConfig config = Config(args);
    EXPECT_EQ(config.rdzv_id, "x");
    EXPECT_FALSE(config.rdzv_id_invented);
    EXPECT_EQ(config.other_rdzv_id, Host().fresh_uuid);
    EXPECT_EQ(config.state_dir, "/home/user/.local/state/phalanx/x");
    EXPECT_THAT(config.notices, IsEmpty());
  }
  const LaunchConfig none = Config({"--standalone", "--rdzv-id=none", "s.py"});
  EXPECT_EQ(none.rdzv_id, Host().fresh_uuid);
  EXPECT_TRUE(none.rdzv_id_invented);
  EXPECT_EQ(none.other_rdzv_id, "");
}

TEST(Flags, C10dEndpoints) {
  LaunchConfig none = Config({"--rdzv-backend=c10d", "s.py"});
  EXPECT_EQ(none.endpoint_host, "localhost");
  EXPECT_EQ(none.endpoint_port, 29400);
  EXPECT_THAT(none.notices, IsEmpty());
  EXPECT_THAT(Config({"--rdzv-backend=c10d", "--nnodes=2", "s.py"}).notices,
              ElementsAre(HasSubstr("--rdzv-endpoint: not given")));
  LaunchConfig free = Config({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=a", "s.py"});
  EXPECT_EQ(free.rendezvous, Rendezvous::kStandalone);
  EXPECT_EQ(free.rdzv_id, "a");
  EXPECT_THAT(Error({"--rdzv-backend=c10d", "--rdzv-endpoint=node1:0", "s.py"}),
              HasSubstr("expected a port that the other nodes"));
  EXPECT_EQ(Config({"--rdzv-backend=c10d", "--rdzv-endpoint=[2001:db8::1]:7", "s.py"}).endpoint_host, "2001:db8::1");
  EXPECT_THAT(Config({"--rdzv-backend=c10d", "--node-rank=1", "--nnodes=1", "s.py"}).notices,
              ElementsAre(HasSubstr("--node-rank: has no effect")));
}

TEST(Flags, AGivenMasterNamesTheEndpoint) {
  Vars vars = {{"PHALANX_MASTER_ADDR", "[2001:db8::1]:7000"}, {"PHALANX_TOKEN", "t0k"}};
  LaunchConfig config = Config({"--nnodes=2", "--rdzv-id=j", "s.py"}, vars);
  EXPECT_EQ(config.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(config.endpoint_host, "2001:db8::1");
  EXPECT_EQ(config.endpoint_port, 7000);
  EXPECT_EQ(config.master_addr_env, "[2001:db8::1]:7000");
  EXPECT_EQ(config.token, "t0k");
  EXPECT_EQ(Config({"s.py"}, vars).rdzv_id, "none");  // the master's job, not a fresh one
  EXPECT_EQ(Config({"--standalone", "s.py"}, vars).rendezvous, Rendezvous::kStandalone);
  EXPECT_EQ(Config({"--standalone", "s.py"}, vars).master_addr_env, "");
  EXPECT_THAT(Error({"s.py"}, {{"PHALANX_MASTER_ADDR", "host:x"}}),
              HasSubstr("PHALANX_MASTER_ADDR=host:x: expected HOST:PORT"));
  EXPECT_THAT(Error({"s.py"}, {{"PHALANX_TOKEN", "a b"}}),
              AllOf(HasSubstr("PHALANX_TOKEN: expected"), Not(HasSubstr("a b"))));
}

TEST(Flags, ProvesByATokenOrByCertificates) {
  const std::string token = "0123456789abcdef";
  HostFacts host = Host();
  host.read_file = [&](const std::string&) { return StatusOr<std::string>(token + "\r\nsecond line\n"); };
  const std::vector<std::string> node = {"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=node1:1"};
  const auto with = [&node](std::vector<std::string> more) {
    more.insert(more.begin(), node.begin(), node.end());
    more.emplace_back("s.py");
    return more;
  };
  const auto parse = [&](std::vector<std::string> more, Vars vars = {}) {
    ParseResult parsed = ParseFlags(with(std::move(more)), Environment(std::move(vars)), host);
    const auto* config = std::get_if<LaunchConfig>(&parsed);
    EXPECT_NE(config, nullptr);
    return config == nullptr ? LaunchConfig() : *config;
  };
  EXPECT_EQ(parse({"--job-token-file=f"}).token, token);
  EXPECT_EQ(parse({"--job-token-file=f"}, {{"PHALANX_TOKEN", "another-token-of-the-shell"}}).token, token);
  EXPECT_THAT(parse({"--job-token-file=f"}).notices, IsEmpty());
  EXPECT_THAT(parse({}, {{"PHALANX_TOKEN", "short"}}).notices,
              ElementsAre(HasSubstr("a token of 5 characters may be")));

  const Vars tls = {{"PHALANX_TLS_CERT", "/c"}, {"PHALANX_TLS_KEY", "/k"}, {"PHALANX_TLS_CA", "/a"}};
  const LaunchConfig by_variables = parse({}, tls);
  EXPECT_EQ(by_variables.tls.certificate, "/c");
  EXPECT_EQ(by_variables.tls.key, "/k");
  EXPECT_EQ(by_variables.tls.authority, "/a");
  EXPECT_EQ(by_variables.token, "");
  EXPECT_EQ(parse({"--tls-cert=/x", "--tls-key=/y", "--tls-ca=/z"}, tls).tls.certificate, "/x");
  EXPECT_FALSE(parse({"--job-token-file=f"}, tls).tls.given()) << "a flag counts before variables";

  EXPECT_THAT(Error(with({"--tls-cert=/x"})), HasSubstr("--tls-cert, --tls-key, --tls-ca: expected all three or none"));
  EXPECT_THAT(Error(with({}), {{"PHALANX_TLS_KEY", "/k"}}), HasSubstr("PHALANX_TLS_CA: expected all three or none"));
  EXPECT_THAT(Error(with({"--tls-cert=/x", "--job-token-file=f"})), HasSubstr("--job-token-file: expected it or"));
  EXPECT_THAT(Error(with({"--require-token"})), HasSubstr("--require-token: expected a token"));
  EXPECT_EQ(Config({"--standalone", "--require-token", "s.py"}).token, "fresh-token");
}

TEST(Flags, FindsTheTokenThatWasLeftInTheStateDirectory) {
  HostFacts host = Host();
  StatusOr<std::string> found = std::string("0123456789abcdef");
  std::string asked;
  host.read_secret = [&](const std::string& path) {
    asked = path;
    return found;
  };
  const std::vector<std::string> node = {"--nnodes=2", "--rdzv-endpoint=node1:1", "--state-dir=shared", "s.py"};
  const LaunchConfig config = Config(node, {}, host);
  EXPECT_EQ(config.token, "0123456789abcdef");
  EXPECT_EQ(asked, "/work/shared/job-token");
  EXPECT_THAT(config.notices, testing::Contains("the token in /work/shared/job-token closes this job"));
  EXPECT_EQ(Config(node, {{"PHALANX_TOKEN", "another-token-of-the-shell"}}, host).token, "another-token-of-the-shell");
  EXPECT_EQ(Config({"--standalone", "s.py"}, {}, host).token, "fresh-token");
  EXPECT_EQ(Config({"--require-token", "--rdzv-endpoint=node1:1", "s.py"}, {}, host).token, "0123456789abcdef");

  const auto error = [&] {
    ParseResult parsed = Parse(node, {}, host);
    const auto* text = std::get_if<PrintAndExit>(&parsed);
    return text == nullptr ? "" : text->text;
  };
  found = std::string("two words");
  EXPECT_THAT(error(), AllOf(HasSubstr("/work/shared/job-token: expected"), Not(HasSubstr("two words"))));
  found = absl::PermissionDeniedError("/work/shared/job-token: others may read it");
  EXPECT_THAT(error(),
              HasSubstr("state directory /work/shared (--state-dir gives another): /work/shared/job-token: others"));
}

TEST(Flags, RefusesBackendsByName) {
  EXPECT_EQ(Error({"--rdzv-backend=etcd-v2", "s.py"}),
            "--rdzv-backend=etcd-v2: expected c10d, which needs no etcd: the first node that binds --rdzv-endpoint "
            "hosts the rendezvous");
  EXPECT_THAT(Error({"--rdzv-backend=mine", "s.py"}),
              HasSubstr("--rdzv-backend=mine: expected static or c10d; out-of-tree"));
}

TEST(Flags, HowLongASilentNodeIsBelieved) {
  EXPECT_EQ(Config({"s.py"}).lease_ms, 0);
  EXPECT_EQ(Config({"--rdzv-conf=keep_alive_interval=2,keep_alive_max_attempt=4", "s.py"}).lease_ms, 8'000);
  EXPECT_EQ(Config({"--rdzv-conf=keep_alive_interval=2", "s.py"}).lease_ms, 6'000);
  EXPECT_EQ(Config({"--rdzv-conf=keep_alive_max_attempt=2", "s.py"}).lease_ms, 10'000);
  EXPECT_EQ(Config({"--rdzv-conf=keep_alive_interval=100000,keep_alive_max_attempt=1000000", "s.py"}).lease_ms,
            24 * 3'600'000);
  const LaunchConfig shortest = Config({"--rdzv-conf=keep_alive_interval=0.1", "s.py"});
  EXPECT_EQ(shortest.lease_ms, 1'000);
  EXPECT_THAT(shortest.notices, ElementsAre("--rdzv-conf: keep_alive_interval times keep_alive_max_attempt is 300 ms: "
                                            "a silent node is believed for 1 s at least"));
  EXPECT_THAT(Error({"--rdzv-conf=keep_alive_max_attempt=0", "s.py"}),
              HasSubstr("--rdzv-conf: keep_alive_max_attempt=0: expected"));
}

TEST(Flags, RdzvConf) {
  LaunchConfig config = Config({"--rdzv-conf='join_timeout=5,last_call_timeout=0.5'", "s.py"});
  EXPECT_EQ(config.join_timeout_ms, 5000);
  EXPECT_EQ(config.last_call_ms, 500);
  EXPECT_TRUE(config.last_call_given);
  EXPECT_FALSE(Config({"--rdzv-conf=join_timeout=5", "s.py"}).last_call_given);
  EXPECT_EQ(Config({"--rdzv-conf=lastcall_timeout=2", "s.py"}).last_call_ms, 2000);
  EXPECT_EQ(Config({"--rdzv-conf=timeout=7", "s.py"}).join_timeout_ms, 7000);
  EXPECT_EQ(Config({"--rdzv-conf=is_host=True", "s.py"}).is_host, true);
  LaunchConfig odd =
      Config({"--rdzv-conf=read_timeout=60,close_timeout=3,colour=red,store_type=tcp,node_unit=1", "s.py"});
  EXPECT_THAT(odd.notices,
              ElementsAre(HasSubstr("close_timeout, read_timeout: without effect"), HasSubstr("colour: unknown")));
  EXPECT_THAT(Config({"--rdzv-conf=join_timeout=5,timeout=7", "s.py"}).notices,
              ElementsAre(HasSubstr("timeout: without effect")));
  EXPECT_THAT(Error({"--rdzv-conf=join_timeout=x", "s.py"}),
              HasSubstr("--rdzv-conf: join_timeout=x: expected seconds"));
  EXPECT_THAT(Error({"--rdzv-conf=is_host=maybe", "s.py"}), HasSubstr("is_host=maybe: expected true or false"));
  EXPECT_THAT(Error({"--rdzv-conf=store_type=file", "s.py"}), HasSubstr("store_type=file: expected tcp"));
  EXPECT_THAT(Error({"--rdzv-conf=x", "s.py"}), HasSubstr("--rdzv-conf=x: expected KEY=VALUE"));
}

TEST(Flags, WorkerCounts) {
  EXPECT_EQ(Config({"--nproc-per-node=cpu", "s.py"}).nproc_per_node, 6u);
  EXPECT_EQ(Config({"--nproc-per-node=cpu", "s.py"}).nproc_kind, NprocKind::kCount);
  EXPECT_EQ(Config({"--nproc-per-node=gpu", "s.py"}).nproc_kind, NprocKind::kGpu);
  EXPECT_EQ(Config({"--nproc-per-node=xpu", "s.py"}).nproc_kind, NprocKind::kXpu);
  EXPECT_EQ(Config({"--nproc-per-node=auto", "s.py"}).nproc_kind, NprocKind::kAuto);
  EXPECT_EQ(Config({"--nproc-per-node=auto", "--nproc-per-node=2", "s.py"}).nproc_kind, NprocKind::kCount);
  EXPECT_EQ(Error({"--nproc_per_node=0", "s.py"}),
            "--nproc_per_node=0: expected a number of workers from 1 to 4096, or cpu, gpu, xpu or auto");
  EXPECT_THAT(Error({"--nproc-per-node=hpu", "s.py"}), HasSubstr("--nproc-per-node=hpu"));
  EXPECT_TRUE(Config({"--nproc-per-node=2", "s.py"}).omp_num_threads_unset);
  EXPECT_FALSE(Config({"--nproc-per-node=1", "s.py"}).omp_num_threads_unset);
  EXPECT_TRUE(Config({"--nproc-per-node=auto", "s.py"}).omp_num_threads_unset);
  EXPECT_FALSE(Config({"--nproc-per-node=2", "s.py"}, {{"OMP_NUM_THREADS", "4"}}).omp_num_threads_unset);
}

TEST(Flags, ChecksAtTheDoor) {
  EXPECT_EQ(Error({"--nnodes=0:2", "s.py"}),
            "--nnodes=0:2: expected N or MIN:MAX nodes with 0 < MIN <= MAX <= 1000000");
  EXPECT_THAT(Error({"--max-restarts", "-1", "s.py"}),
              HasSubstr("--max-restarts=-1: expected a whole number between 0"));
  EXPECT_THAT(Error({"--master-port=65536", "s.py"}),
              HasSubstr("--master-port=65536: expected a whole number between 1 and 65535"));
  EXPECT_THAT(Error({"--master-addr=a:1", "s.py"}), HasSubstr("--master-addr=a:1: expected a host name"));
  EXPECT_THAT(Error({"--rdzv-endpoint=a:b", "s.py"}), HasSubstr("--rdzv-endpoint=a:b: expected"));
  EXPECT_THAT(Error({"--node-rank=-1", "s.py"}), HasSubstr("--node-rank=-1"));
  EXPECT_THAT(Error({"--monitor-interval=fast", "s.py"}), HasSubstr("--monitor-interval=fast: expected seconds"));
  EXPECT_THAT(Error({"--start-method=thread", "s.py"}), HasSubstr("expected spawn, fork or forkserver"));
  EXPECT_THAT(Error({"--tee=4", "s.py"}), HasSubstr("--tee=4: expected 0, 1, 2 or 3"));
  EXPECT_THAT(Error({"-r", "0:9", "s.py"}), HasSubstr("-r=0:9: expected"));
  EXPECT_THAT(Error({"--local-ranks-filter=a", "s.py"}), HasSubstr("--local-ranks-filter=a: expected local ranks"));
  EXPECT_THAT(Error({"--signals-to-handle=SIGKILL", "s.py"}), HasSubstr("not 'SIGKILL'"));
  EXPECT_THAT(Error({"--shutdown-timeout=-1", "s.py"}), HasSubstr("--shutdown-timeout=-1: expected seconds"));
  EXPECT_THAT(Error({"--rdzv-id=", "s.py"}), HasSubstr("expected a job id"));
  EXPECT_THAT(Error({"--rdzv-id=a\nb", "s.py"}), HasSubstr("--rdzv-id=a\\x0ab: expected a job id"));
  EXPECT_THAT(Error({"--role=\xff", "s.py"}), HasSubstr("expected a name"));
  EXPECT_THAT(Error({"--port-range=9-1", "s.py"}), HasSubstr("--port-range=9-1: expected FIRST-LAST"));
  EXPECT_THAT(Error({"--spares=-1", "s.py"}), HasSubstr("--spares=-1"));
  EXPECT_THAT(Error({"--restart-window=0", "s.py"}), HasSubstr("more than 0 seconds"));
  EXPECT_THAT(Error({"--no-warm", "--spares=2", "s.py"}), HasSubstr("--spares=2: expected 0 with --no-warm"));
  EXPECT_THAT(Error({"--no-python", "-m", "s"}), HasSubstr("--no-python and --module exclude each other"));
  EXPECT_THAT(Error({"--standalone"}), HasSubstr("no script is given"));
  EXPECT_THAT(Error({""}), HasSubstr("the script's name is empty"));
  EXPECT_THAT(Error({"s.py"}, {{"POD_IP", "not an ip"}}), HasSubstr("POD_IP=not an ip: expected"));
  EXPECT_THAT(Error({"--nndoes=2", "s.py"}), HasSubstr("did you mean --nnodes?"));
}

TEST(Flags, VariablesCountLessThanTheLine) {
  Vars vars = {{"PET_NNODES", "1:2"},        {"PET_NPROC_PER_NODE", "3"}, {"PET_RDZV_BACKEND", "c10d"},
               {"PET_RDZV_ENDPOINT", "h:1"}, {"PET_REDIRECTS", "3"},      {"PET_MODULE", "1"},
               {"PET_NO_PYTHON", "0"},       {"PET_STANDALONE", "0"},     {"PET_MAX_RESTARTS", "bad"}};
  LaunchConfig config = Config({"--nproc-per-node=2", "--max-restarts=1", "mod"}, vars);
  EXPECT_EQ(config.max_nodes, 2u);
  EXPECT_EQ(config.nproc_per_node, 2u);
  EXPECT_EQ(config.endpoint_host, "h");
  EXPECT_EQ(config.redirects.Of(0), 3);
  EXPECT_EQ(config.kind, ScriptKind::kModule);
  EXPECT_EQ(config.max_restarts, 1u);
  EXPECT_THAT(config.notices, IsEmpty());
  EXPECT_THAT(Error({"s.py"}, {{"PET_MAX_RESTARTS", "bad"}}), HasSubstr("PET_MAX_RESTARTS=bad: expected"));
  EXPECT_EQ(Error({"s.py"}, {{"PET_STANDALONE", "yes"}}), "PET_STANDALONE=yes: expected 0 or 1");
  EXPECT_EQ(Config({"s.py"}, {{"PET_STOP_TIMEOUT", "1"}}).stop_timeout_ms, 30'000);  // ours have none
}

TEST(Flags, Timeouts) {
  EXPECT_EQ(Config({"--shutdown-timeout=5", "s.py"}).stop_timeout_ms, 5000);
  EXPECT_EQ(Config({"--shutdown-timeout=5", "s.py"}).restart_grace_ms, 5000);
  EXPECT_EQ(Config({"--stop-timeout=5", "--restart-grace=.25", "s.py"}).restart_grace_ms, 250);
  EXPECT_EQ(Config({"s.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}}).stop_timeout_ms, 9000);
  EXPECT_EQ(Config({"s.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}}).restart_grace_ms, 9000);
  EXPECT_EQ(Config({"--stop-timeout=5", "s.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "9"}}).stop_timeout_ms, 5000);
  EXPECT_THAT(Error({"--stop-timeout=5", "--shutdown-timeout=6", "s.py"}), HasSubstr("mean the same and differ"));
  EXPECT_THAT(Error({"s.py"}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}}),
              HasSubstr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT=soon"));
  EXPECT_EQ(Config({"--restart-window=0.5", "s.py"}).restart_window_ms, 500);
}

TEST(Flags, NoticesWhatHasNoEffect) {
  EXPECT_THAT(Config({"--monitor-interval=0.5", "--start_method=fork", "s.py"}).notices,
              ElementsAre(HasSubstr("--monitor-interval: has no effect"), HasSubstr("--start_method: has no effect")));
}

TEST(Flags, FindsPython) {
  LaunchConfig foreign = Config({"s.py"}, {{"PYTHON_EXEC", "/opt/py/bin/python3"}});
  EXPECT_EQ(foreign.python, "/opt/py/bin/python3");
  EXPECT_TRUE(foreign.interpreter_given);
  EXPECT_FALSE(Config({"s.py"}, {{"PYTHON_EXEC", "/venv/bin/python"}}).interpreter_given);
  LaunchConfig named = Config({"s.py"}, {{"PYTHON_EXEC", "python3"}, {"PATH", "/x:/opt/py/bin:/usr/bin"}});
  EXPECT_EQ(named.python, "/opt/py/bin/python3");
  HostFacts elsewhere = Host();
  elsewhere.own_dir = "/usr/local/bin";
  EXPECT_EQ(Config({"s.py"}, {{"PATH", "/bin:/usr/bin"}}, elsewhere).python, "/usr/bin/python3");
  EXPECT_THAT(Error({"s.py"}, {{"PATH", "/nowhere"}}, elsewhere),
              HasSubstr("no Python found in /usr/local/bin nor as python3"));
  EXPECT_THAT(Error({"s.py"}, {{"PYTHON_EXEC", "/no/python"}}),
              HasSubstr("PYTHON_EXEC=/no/python: expected a program"));
  LaunchConfig program = Config({"--no-python", "run.sh"}, {{"PATH", "/nowhere"}}, elsewhere);
  EXPECT_EQ(program.kind, ScriptKind::kProgram);
  EXPECT_EQ(program.python, "");
}

TEST(Flags, Places) {
  EXPECT_EQ(Config({"--rdzv-id=a/b", "--nnodes=2", "--state-dir=st", "s.py"}).state_dir.rfind("/work/st/a_b-", 0), 0u);
  EXPECT_EQ(Config({"--nnodes=2", "s.py"}, {{"XDG_STATE_HOME", "/xdg"}}).state_dir, "/xdg/phalanx/none@node1-29500");
  EXPECT_EQ(Config({"--nnodes=2", "s.py"}, {{"HOME", "/h"}}).state_dir, "/h/.local/state/phalanx/none@node1-29500");
  LaunchConfig relative = Config({"--nnodes=2", "s.py"}, {{"XDG_STATE_HOME", "xdg"}, {"HOME", "/h"}});
  EXPECT_EQ(relative.state_dir, "/h/.local/state/phalanx/none@node1-29500");
  EXPECT_THAT(relative.notices, ElementsAre(HasSubstr("XDG_STATE_HOME=xdg: ignored")));
  HostFacts homeless = Host();
  homeless.home.clear();
  EXPECT_EQ(Config({"--nnodes=2", "s.py"}, {}, homeless).state_dir, "/tmp/phalanx-1000/none@node1-29500");
  // torchrun's way to several jobs on one machine: none of them has chosen an id, and each has a directory of its own.
  const LaunchConfig free = Config({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "s.py"});
  EXPECT_EQ(free.rdzv_id, "none");
  EXPECT_EQ(free.state_dir, "/home/user/.local/state/phalanx/none@" + Host().fresh_uuid);
  EXPECT_TRUE(free.rdzv_id_invented);
  const LaunchConfig chosen = Config({"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=a", "s.py"});
  EXPECT_EQ(chosen.state_dir, "/home/user/.local/state/phalanx/a");
  EXPECT_FALSE(chosen.rdzv_id_invented);
  EXPECT_EQ(Config({"--log-dir=logs", "s.py"}).log_dir, "/work/logs");
  EXPECT_EQ(Config({"--log-dir=/dev/null", "s.py"}).log_dir, "/dev/null");
  EXPECT_EQ(Config({"s.py"}, {{"POD_IP", "10.1.2.3"}}).local_addr, "10.1.2.3");
  EXPECT_EQ(Config({"--local-addr=10.0.0.1", "s.py"}, {{"POD_IP", "10.1.2.3"}}).local_addr, "10.0.0.1");
  EXPECT_EQ(Config({"s.py"}, {{"TORCHELASTIC_ERROR_FILE", "/e"}}).own_error_file, "/e");
  EXPECT_EQ(Config({"s.py"}, {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "$rank "}}).log_line_prefix_template, "$rank ");
  LaunchConfig ports = Config({"--port-range=20000-20999", "s.py"});
  EXPECT_EQ(ports.port_range_first, 20000);
  EXPECT_EQ(ports.port_range_last, 20999);
}

TEST(Flags, RemainingValues) {
  LaunchConfig config = Config({"-t", "0:1,10:3", "--local_ranks_filter=0,10", "--signals-to-handle=SIGUSR1,SIGTERM",
                                "--explain", "--spares=0", "--no-warm", "--warm", "--role", "r", "s.py"});
  EXPECT_EQ(config.tee.Of(10), 3);
  EXPECT_THAT(config.local_ranks_filter, ElementsAre(0, 10));
  EXPECT_THAT(config.signals_to_handle, UnorderedElementsAre(SIGUSR1, SIGTERM));
  EXPECT_EQ(config.signals_to_handle_text, "SIGUSR1,SIGTERM");
  EXPECT_TRUE(config.explain);
  EXPECT_TRUE(config.warm);
  EXPECT_EQ(config.spares, 0);
  EXPECT_EQ(config.role, "r");
  EXPECT_EQ(Config({"--redirect=3", "s.py"}).redirects.Of(5), 3);  // PyTorch's own tests abbreviate like this
}

TEST(Flags, NumaBinding) {
  EXPECT_EQ(Config({"s.py"}).numa_binding, NumaBinding::kNone);
  EXPECT_EQ(Config({"s.py"}, {{"PET_NUMA_BINDING", "node"}}).numa_binding, NumaBinding::kNone);  // as in torchrun
  EXPECT_EQ(Config({"--numa-binding=node", "s.py"}).numa_binding, NumaBinding::kNode);
  EXPECT_EQ(Config({"--numa_binding", "socket", "s.py"}).numa_binding, NumaBinding::kSocket);
  EXPECT_EQ(Config({"--numa-binding=exclusive", "s.py"}).numa_binding, NumaBinding::kExclusive);
  EXPECT_EQ(Config({"--numa-binding=core-complex", "s.py"}).numa_binding, NumaBinding::kCoreComplex);
  EXPECT_EQ(Error({"--numa-binding=core_complex", "s.py"}),
            "--numa-binding=core_complex: expected node, socket, exclusive or core-complex");
  EXPECT_EQ(Config({"s.py"}).sysfs_root, "/sys");
  EXPECT_EQ(Config({"s.py"}, {{"PHALANX_SYSFS_ROOT", "/host/sys"}}).sysfs_root, "/host/sys");
}

TEST(Flags, NumaAffinityIsNumaBindingNode) {
  EXPECT_EQ(Config({"--numa-affinity", "s.py"}).numa_binding, NumaBinding::kNode);
  EXPECT_EQ(Config({"s.py"}, {{"PET_NUMA_AFFINITY", "1"}}).numa_binding, NumaBinding::kNode);
  EXPECT_EQ(Config({"--numa-affinity", "--numa-binding=node", "s.py"}).numa_binding, NumaBinding::kNode);
  EXPECT_THAT(Error({"--numa-affinity", "--numa-binding=socket", "s.py"}), HasSubstr("leave one of them away"));
  for (const char* policy : {"none", "preferred"}) {
    EXPECT_EQ(Error({"--numa-affinity", "--membind-policy", policy, "s.py"}), "accepted");
  }
  EXPECT_THAT(Error({"--membind-policy=bind", "s.py"}),
              HasSubstr("not available yet: --membind-policy=bind: memory of"));
  EXPECT_EQ(Error({"--membind-policy=strict", "s.py"}), "--membind-policy=strict: expected none or preferred");
}

TEST(Flags, AProgramNeedsAPythonOnlyWhereDevicesAreAskedFor) {
  HostFacts elsewhere = Host();
  elsewhere.own_dir = "/usr/local/bin";
  for (const char* flag : {"--numa-binding=node", "--numa-affinity", "--nproc-per-node=gpu", "--nproc-per-node=auto"}) {
    EXPECT_EQ(Config({"--no-python", flag, "run.sh"}).python, "/venv/bin/python") << flag;
    EXPECT_EQ(Error({"--no-python", flag, "run.sh"}, {{"PATH", "/nowhere"}}, elsewhere),
              "no Python found in /usr/local/bin nor as python3 on PATH, and one is asked which devices there are: set "
              "PYTHON_EXEC to one");
  }
  EXPECT_EQ(Config({"--no-python", "--nproc-per-node=cpu", "run.sh"}).python, "");
}

TEST(Flags, VirtualLocalRank) {
  EXPECT_FALSE(Config({"s.py"}).virtual_local_rank);
  EXPECT_TRUE(Config({"--virtual_local_rank", "s.py"}).virtual_local_rank);
  EXPECT_TRUE(Config({"s.py"}, {{"PET_VIRTUAL_LOCAL_RANK", "1"}}).virtual_local_rank);
  const Vars one_device{{"CUDA_VISIBLE_DEVICES", "3"}};
  EXPECT_EQ(Error({"--virtual-local-rank", "s.py"}, one_device), "accepted");
  EXPECT_EQ(Error({"--nproc-per-node=2", "s.py"}, one_device), "accepted");
  EXPECT_EQ(Error({"--virtual-local-rank", "--nproc-per-node=2", "s.py"}, one_device),
            "--virtual-local-rank: CUDA_VISIBLE_DEVICES=3 has no device for local rank 1: expected one for each of 2 "
            "workers");
  // Counted later, and checked then.
  EXPECT_EQ(Error({"--virtual-local-rank", "--nproc-per-node=auto", "s.py"}, one_device), "accepted");
}

// Every refused flag, in each spelling and by variable: named, and never ignored.
TEST(Flags, RefusesWhatIsNotAvailableYet) {
  int refused = 0;
  for (const FlagRow& row : FlagTable()) {
    if (row.handler != nullptr) continue;
    ++refused;
    bool never = row.standing == FlagStanding::kUnsupported;
    const std::string refusal = never ? "not supported: " : "not available yet: ";
    for (const std::string& name : BothSpellings(MainName(row))) {
      std::vector<std::string> args = {name};
      if (row.arity != Arity::kNone) args.push_back("7");
      args.insert(args.end(), {"--standalone", "s.py"});
      EXPECT_THAT(Error(args), HasSubstr(refusal + name + " (")) << name;
    }
    if (!row.pet) continue;
    EXPECT_THAT(Error({"s.py"}, {{PetName(row), row.arity == Arity::kNone ? "1" : "7"}}),
                HasSubstr(refusal + PetName(row)));
  }
  EXPECT_EQ(refused, 5);
  EXPECT_EQ(Error({"--precheck=0", "--accelerator=nvidia.com/gpu", "s.py"}), "accepted");
  EXPECT_EQ(Error({"s.py"}, {{"PET_NETWORK_CHECK", "0"}}), "accepted");
}

TEST(Flags, NodeChecks) {
  EXPECT_EQ(Config({"s.py"}).check_level, 0u);
  EXPECT_EQ(Config({"--network-check", "s.py"}).check_level, 1u);
  EXPECT_EQ(Config({"--precheck=2", "--network-check", "s.py"}).check_level, 2u);
  EXPECT_EQ(Config({"--comm-perf-test", "s.py"}).check_level, 2u);
  EXPECT_EQ(Config({"--check-only", "s.py"}).check_level, 1u);
  const LaunchConfig config = Config({"--network-check", "--exclude-straggler", "--straggler-rule=median",
                                      "--check-timeout=2.5", "--check-program", "/opt/a", "--check-program", "/opt/b",
                                      "--check-directory", "/ckpt", "--check-nics=eth1, ib0.8001", "s.py"});
  EXPECT_TRUE(config.excludes_stragglers);
  EXPECT_TRUE(config.straggler_by_median);
  EXPECT_EQ(config.check_limit_ms, 2'500);
  EXPECT_THAT(config.check_programs, ElementsAre("/opt/a", "/opt/b"));
  EXPECT_EQ(config.check_directory, "/ckpt");
  EXPECT_THAT(config.check_nics, ElementsAre("eth1", "ib0.8001"));
  for (const char* nics :
       {"", "eth1,", "eth1,eth1", "eth 1", "a-name-of-sixteen", "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q"}) {
    EXPECT_THAT(Error({"--network-check", std::string("--check-nics=") + nics, "s.py"}),
                HasSubstr("expected up to 16 names of network interfaces"));
  }
  EXPECT_THAT(Error({"--check-nics=eth1", "s.py"}), HasSubstr("give --network-check with it"));
  EXPECT_THAT(Error({"--exclude-straggler", "s.py"}), HasSubstr("give --network-check or --watch-ranks with it"));
  EXPECT_TRUE(Config({"--exclude-straggler", "--watch-ranks", "s.py"}).watches_ranks);
  EXPECT_THAT(Error({"--check-timeout=9", "--watch-ranks", "s.py"}), HasSubstr("give --network-check with it"));
  EXPECT_THAT(Error({"--network-check", "--check-program=none", "s.py"}),
              HasSubstr("--check-program=/work/none: expected a file that this user may execute"));
  EXPECT_THAT(Error({"--network-check", "--straggler-rule=best", "s.py"}), HasSubstr("expected mean or median"));
  EXPECT_THAT(Error({"--network-check", "--check-timeout=0", "s.py"}), HasSubstr("above 0"));
  EXPECT_THAT(Error({"--precheck=3", "s.py"}), HasSubstr("--precheck"));
}

TEST(Flags, WatchingIsOnOffOrSoOften) {
  EXPECT_EQ(Config({"s.py"}).watch_every_ms, 15'000);
  EXPECT_EQ(Config({"--watch=on", "s.py"}).watch_every_ms, 15'000);
  EXPECT_EQ(Config({"--watch=off", "s.py"}).watch_every_ms, 0);
  EXPECT_EQ(Config({"--watch", "0.2", "s.py"}).watch_every_ms, 200);
  EXPECT_EQ(Config({"--watch=off", "--watch=on", "s.py"}).watch_every_ms, 15'000);
  for (const char* value : {"", "0", "0.01", "yes", "-1"}) {
    EXPECT_THAT(Error({std::string("--watch=") + value, "s.py"}), HasSubstr("expected on, off or seconds")) << value;
  }
}

TEST(Flags, SwitchboxCheckAsTheGuideWritesIt) {
  const LaunchConfig config = Config({"--network-check", "--switchbox-check", "--box-pairs", "0:1", "2:4",
                                      "--min-bandwidth", "12000", "--min-channels", "1", "s.py"});
  EXPECT_TRUE(config.check_switchbox);
  EXPECT_EQ(config.box_pairs, (std::vector<std::pair<uint32_t, uint32_t>>{{0, 1}, {2, 4}}));
  EXPECT_EQ(config.min_bandwidth_mb_s, 12'000);
  EXPECT_EQ(config.min_channels, 1u);
  EXPECT_EQ(Config({"--network-check", "--switchbox-check", "s.py"}).box_pairs.size(), 4u);
  EXPECT_THAT(Error({"--switchbox-check", "s.py"}), HasSubstr("give --network-check with it"));
  EXPECT_THAT(Error({"--network-check", "--min-channels=1", "s.py"}), HasSubstr("give --switchbox-check with it"));
  EXPECT_THAT(Error({"--network-check", "--switchbox-check", "--min-channels=5", "s.py"}), HasSubstr("at most 4"));
  for (const char* pairs : {"0", "0:0", "0:1 1:2", "a:b", "0:9999"}) {
    EXPECT_THAT(Error({"--network-check", "--switchbox-check", "--box-pairs", pairs, "--standalone", "s.py"}),
                HasSubstr("expected pairs of GPUs"))
        << pairs;
  }
  EXPECT_EQ(Config({"--network-check", "--switchbox-check", "--switchbox-source=file:/x", "s.py"}).switchbox_source,
            "file:/x");
  EXPECT_THAT(Error({"--network-check", "--switchbox-check", "--switchbox-source=amd", "s.py"}),
              HasSubstr("expected nvidia, tool:PATH or file:PATH"));
}

TEST(Flags, AutoConfigTakesNodesAndWorkersFromTheEnvironment) {
  const LaunchConfig config = Config({"--auto-config", "s.py"}, {{"NODE_NUM", "4"}, {"MASTER_ADDR", ""}});
  EXPECT_EQ(config.min_nodes, 4u);
  EXPECT_EQ(config.max_nodes, 4u);
  EXPECT_EQ(config.nproc_kind, NprocKind::kAuto);
  EXPECT_EQ(config.check_level, 1u);
  EXPECT_EQ(Config({"--auto-config", "s.py"}, {{"NODE_NUM", "1"}}).check_level, 0u);
  EXPECT_EQ(Config({"--auto-config", "--precheck=0", "s.py"}, {{"NODE_NUM", "8"}}).check_level, 0u);
  const LaunchConfig given = Config({"--auto-config", "--nnodes=1", "--nproc-per-node=3", "s.py"}, {{"NODE_NUM", "8"}});
  EXPECT_EQ(given.max_nodes, 1u);
  EXPECT_EQ(given.nproc_per_node, 3u);
  EXPECT_THAT(Config({"--auto-config", "--exclude-straggler", "s.py"}, {{"NODE_NUM", "2"}}).notices,
              Contains(HasSubstr("--exclude-straggler: --auto-config checks no nodes of so few")));
  EXPECT_THAT(Error({"--auto-config", "s.py"}), HasSubstr("NODE_NUM is not set"));
  EXPECT_THAT(Error({"--auto-config", "s.py"}, {{"NODE_NUM", "x"}}), HasSubstr("NODE_NUM=x"));
}

TEST(Flags, EventLogHandler) {
  EXPECT_EQ(Config({"s.py"}).event_log, EventLog::kNone);
  EXPECT_EQ(Config({"--event-log-handler=dynamic_rendezvous", "s.py"}).event_log, EventLog::kNone);
  EXPECT_EQ(Config({"--event-log-handler", "console", "s.py"}).event_log, EventLog::kConsole);
  EXPECT_EQ(Config({"s.py"}, {{"PET_EVENT_LOG_HANDLER", "jsonl"}}).event_log, EventLog::kFile);
  LaunchConfig file = Config({"--event-log-handler=jsonl:e.jsonl", "--log-dir=/dev/null", "s.py"});
  EXPECT_EQ(file.event_log, EventLog::kFile);
  EXPECT_EQ(file.event_log_file, "/work/e.jsonl");
  EXPECT_THAT(Error({"--event-log-handler=jsonl", "--log-dir=/dev/null", "s.py"}), HasSubstr("expected jsonl:FILE"));
  for (const char* wrong : {"", "jsonl:", "Console", "scuba"}) {
    EXPECT_THAT(Error({"--event-log-handler", wrong, "s.py"}),
                HasSubstr("expected null, console, jsonl or jsonl:FILE"));
  }
}

TEST(Flags, Filters) {
  LaunchConfig config = Config({"--duplicate-stdout-filters=apple,a,,b,", "--tee=3", "s.py"});
  EXPECT_THAT(config.stdout_filters, ElementsAre("apple", "a,b"));
  EXPECT_THAT(config.stderr_filters, IsEmpty());
  EXPECT_THAT(config.notices, IsEmpty());
  EXPECT_THAT(Config({"--duplicate_stderr_filters", ",,,x", "-t1", "s.py"}).stderr_filters, ElementsAre(",", "x"));
  EXPECT_THAT(Config({"--duplicate-stderr-filters=x", "s.py"}).notices, ElementsAre(HasSubstr("no rank is tee'd")));
  EXPECT_THAT(Error({"--duplicate-stderr-filters=x", "--log-dir=/dev/null", "s.py"}),
              HasSubstr("expected a --log-dir"));
  EXPECT_THAT(Config({"s.py"}, {{"PET_DUPLICATE_STDOUT_FILTERS", ""}}).stdout_filters, IsEmpty());
}

TEST(Flags, RunPathRunsTheFile) {
  EXPECT_EQ(Config({"--run-path", "s.py"}).kind, ScriptKind::kScript);
  LaunchConfig both = Config({"--run_path", "--no-python", "-m", "s.py"});  // as in torchrun, where it counts more
  EXPECT_EQ(both.kind, ScriptKind::kScript);
  EXPECT_THAT(both.notices, ElementsAre(HasSubstr("--no-python: has no effect"), HasSubstr("--module: has no effect")));
}

TEST(Flags, DebugRank) {
  EXPECT_EQ(Config({"s.py"}).debug_rank, -1);
  LaunchConfig config = Config({"--debug-rank=3", "--nproc-per-node=2", "--nnodes=1:2", "--rdzv-backend=c10d", "s.py"});
  EXPECT_EQ(config.debug_rank, 3);
  EXPECT_EQ(config.max_restarts, 0u);
  EXPECT_EQ(Config({"--debug-rank=0", "--max-restarts=2", "s.py"}).max_restarts, 2u);
  EXPECT_EQ(Config({"--debug-rank=7", "--nproc-per-node=auto", "s.py"}).debug_rank, 7);
  EXPECT_THAT(Config({"--debug-rank=0", "s.py"}).notices, IsEmpty());
  EXPECT_THAT(Config({"--debug-rank=0", "--tee=0", "s.py"}).notices,
              ElementsAre("--tee: has no effect on rank 0: --debug-rank gives it the terminal itself"));
  EXPECT_THAT(Config({"--debug-rank=0", "--log-dir=/logs", "--local-ranks-filter=0", "--duplicate-stderr-filters=x",
                      "--duplicate-stdout-filters=x", "-t=3", "s.py"},
                     {{"PET_REDIRECTS", "3"}})
                  .notices,
              ElementsAre("--redirects, --tee, --duplicate-stdout-filters, --duplicate-stderr-filters, "
                          "--local-ranks-filter: have no effect on rank 0: --debug-rank gives it the terminal itself"));
  EXPECT_THAT(Error({"--debug-rank=2", "--nproc-per-node=2", "s.py"}), HasSubstr("expected a rank from 0 to 1"));
  EXPECT_THAT(Error({"--debug-rank=x", "s.py"}), HasSubstr("--debug-rank=x: expected a"));
}

TEST(Flags, LogFormat) {
  EXPECT_EQ(Config({"--log-format=json", "s.py"}).log_format, LogFormat::kJson);
  EXPECT_EQ(Config({"--log-format=text", "s.py"}).log_format, LogFormat::kText);
  EXPECT_THAT(Error({"--log-format=xml", "s.py"}), HasSubstr("expected text or json"));
}

const Vars kSlurm = {{"SLURM_JOB_ID", "4711"},
                     {"SLURM_STEP_ID", "2"},
                     {"SLURM_STEP_NUM_NODES", "4"},
                     {"SLURM_STEP_NODELIST", "tux[03-05,9]"},
                     {"SLURM_STEP_TASKS_PER_NODE", "1(x4)"},
                     {"SLURM_NODEID", "1"}};

Vars With(Vars vars, const Vars& more) {
  for (const auto& [name, value] : more) vars[name] = value;
  return vars;
}

TEST(Flags, SlurmSaysWhatTheCommandLineLeavesOpen) {
  LaunchConfig config = Config({"--nproc-per-node=8", "s.py"}, kSlurm);
  EXPECT_EQ(config.rendezvous, Rendezvous::kStatic);
  EXPECT_EQ(config.endpoint_host, "tux03");
  EXPECT_EQ(config.endpoint_port, 20'000 + (4711 * 13 + 2) % 10'000);
  EXPECT_EQ(config.min_nodes, 4u);
  EXPECT_EQ(config.max_nodes, 4u);
  EXPECT_EQ(config.node_rank, 1);
  EXPECT_EQ(config.rdzv_id, "slurm-4711.2");
  EXPECT_EQ(config.nproc_per_node, 8u);
  EXPECT_THAT(config.notices,
              ElementsAre(HasSubstr("Slurm: step 4711.2, node 1 of 4; the job's nodes meet at tux03:")));
}

TEST(Flags, SlurmsGpusAreWorkers) {
  EXPECT_EQ(Config({"s.py"}, With(kSlurm, {{"SLURM_GPUS_ON_NODE", "8"}})).nproc_per_node, 8u);
  EXPECT_EQ(Config({"s.py"}, With(kSlurm, {{"SLURM_GPUS_ON_NODE", "gpu:a100:4"}})).nproc_per_node, 4u);
  EXPECT_EQ(Config({"s.py"}, With(kSlurm, {{"SLURM_GPUS_ON_NODE", "0"}})).nproc_per_node, 1u);
  EXPECT_EQ(Config({"--nproc-per-node=2", "s.py"}, With(kSlurm, {{"SLURM_GPUS_ON_NODE", "8"}})).nproc_per_node, 2u);
  Vars few = With(kSlurm, {{"SLURM_GPUS_ON_NODE", "8"}, {"CUDA_VISIBLE_DEVICES", "5,GPU-1f"}});
  EXPECT_EQ(Config({"s.py"}, few).nproc_per_node, 2u);
  EXPECT_EQ(Config({"s.py"}, With(few, {{"CUDA_VISIBLE_DEVICES", ""}})).nproc_per_node, 1u);
}

TEST(Flags, AnElasticJobUnderSlurm) {
  LaunchConfig config = Config({"--nnodes=2:4", "--rdzv-id=j", "s.py"}, kSlurm);
  EXPECT_EQ(config.rendezvous, Rendezvous::kC10d);
  EXPECT_EQ(config.min_nodes, 2u);
  EXPECT_EQ(config.max_nodes, 4u);
  EXPECT_EQ(config.endpoint_host, "tux03");
  EXPECT_EQ(config.node_rank, -1);
  EXPECT_EQ(config.rdzv_id, "j");
  EXPECT_EQ(Config({"--nnodes=2:4", "--rdzv-backend=static", "s.py"}, kSlurm).rendezvous, Rendezvous::kStatic);
}

// What the command line says counts more, and without a step Slurm's variables mean nothing.
TEST(Flags, SlurmIsNotAskedWhereTheCommandLineSaysIt) {
  EXPECT_EQ(Config({"--standalone", "s.py"}, kSlurm).rendezvous, Rendezvous::kStandalone);
  EXPECT_EQ(Config({"--nnodes=1", "s.py"}, kSlurm).rendezvous, Rendezvous::kStandalone);
  EXPECT_EQ(Config({"--nnodes=2", "--rdzv-endpoint=h:7", "s.py"}, kSlurm).endpoint_host, "h");
  EXPECT_EQ(Config({"--nnodes=2", "--master-addr=m", "s.py"}, kSlurm).endpoint_host, "m");
  EXPECT_EQ(Config({"s.py"}, With(kSlurm, {{"PHALANX_MASTER_ADDR", "m:1"}})).endpoint_host, "m");
  EXPECT_EQ(Config({"s.py"}, With(kSlurm, {{"SLURM_STEP_ID", ""}})).rendezvous, Rendezvous::kStandalone);
  Vars one = With(kSlurm, {{"SLURM_STEP_NUM_NODES", "1"}, {"SLURM_NODEID", "0"}});
  EXPECT_EQ(Config({"s.py"}, one).rendezvous, Rendezvous::kStandalone);
}

TEST(Flags, RefusesASlurmStepThatMakesNoSense) {
  EXPECT_THAT(Error({"s.py"}, With(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "8(x4)"}})),
              AllOf(HasSubstr("SLURM_STEP_TASKS_PER_NODE=8(x4)"), HasSubstr("srun --ntasks-per-node=1")));
  EXPECT_THAT(Error({"--nnodes=2", "s.py"}, With(kSlurm, {{"SLURM_NODEID", "2"}})),
              AllOf(HasSubstr("SLURM_NODEID=2: expected 0 to 1"), HasSubstr("srun --nodes=2")));
  EXPECT_THAT(Error({"s.py"}, With(kSlurm, {{"SLURM_NODEID", "4"}})), HasSubstr("SLURM_NODEID=4: expected"));
  EXPECT_THAT(Error({"s.py"}, With(kSlurm, {{"SLURM_STEP_NODELIST", ""}})), HasSubstr("SLURM_STEP_NODELIST="));
  EXPECT_THAT(Error({"s.py"}, With(kSlurm, {{"SLURM_STEP_NUM_NODES", "x"}})), HasSubstr("SLURM_STEP_NUM_NODES=x"));
}

TEST(Flags, RelaysOfTheStore) {
  EXPECT_EQ(Config({"s.py"}).store_relay, StoreRelayMode::kAuto);
  EXPECT_EQ(Config({"--store-relay=on", "s.py"}).store_relay, StoreRelayMode::kOn);
  EXPECT_EQ(Config({"--store_relay", "off", "s.py"}).store_relay, StoreRelayMode::kOff);
  EXPECT_THAT(Error({"--store-relay=yes", "s.py"}), HasSubstr("--store-relay=yes: expected auto, on or off"));
  const Vars on{{"PHALANX_STORE_RELAY", "on"}};
  EXPECT_EQ(Config({"s.py"}, on).store_relay, StoreRelayMode::kOn);
  EXPECT_EQ(Config({"--store-relay=auto", "s.py"}, on).store_relay, StoreRelayMode::kAuto) << "the flag counts more";
  EXPECT_EQ(Config({"s.py"}, {{"PHALANX_STORE_RELAY", ""}}).store_relay, StoreRelayMode::kAuto);
  EXPECT_THAT(Error({"s.py"}, {{"PHALANX_STORE_RELAY", "1"}}), HasSubstr("PHALANX_STORE_RELAY=1: expected auto, on"));
  const Vars torchs{{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"}};
  EXPECT_THAT(Error({"--store-relay=on", "s.py"}, torchs),
              HasSubstr("--store-relay=on: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 leaves the store to rank 0"));
  EXPECT_THAT(Error({"s.py"}, With(torchs, {{"PHALANX_STORE_RELAY", "on"}})), HasSubstr("PHALANX_STORE_RELAY=on: "));
  EXPECT_EQ(Config({"s.py"}, torchs).store_relay, StoreRelayMode::kAuto);
}

TEST(Flags, NodesInUnits) {
  LaunchConfig config = Config({"--nnodes=3:9", "--node-unit=4", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "s.py"});
  EXPECT_EQ(config.node_unit, 4u);
  EXPECT_EQ(config.min_nodes, 4u);
  EXPECT_EQ(config.max_nodes, 8u);
  EXPECT_THAT(config.notices, ElementsAre(HasSubstr("--nnodes=3:9: taken as 4:8")));
  EXPECT_EQ(Config({"--nnodes=2:4", "--rdzv-conf=node_unit=2", "--rdzv-endpoint=h", "s.py"}).node_unit, 2u);
  EXPECT_EQ(Config({"s.py"}).node_unit, 1u);
  EXPECT_THAT(Error({"--nnodes=5:7", "--node_unit=4", "s.py"}), HasSubstr("--nnodes=5:7: expected a number of nodes"));
  EXPECT_THAT(Error({"--node-unit=2", "s.py"}), HasSubstr("--nnodes=1: expected"));
  EXPECT_THAT(Error({"--node-unit=0", "s.py"}), HasSubstr("--node-unit=0: expected"));
  EXPECT_THAT(Error({"--rdzv-conf=node_unit=x", "s.py"}), HasSubstr("--rdzv-conf: node_unit=x: expected"));
}

TEST(Flags, PrintsHelpAndVersion) {
  auto text = [](std::vector<std::string> args) {
    ParseResult result = Parse(std::move(args));
    auto* print = std::get_if<PrintAndExit>(&result);
    return print != nullptr && print->exit_code == 0 ? print->text : "";
  };
  EXPECT_EQ(text({"--version"}), "phalanx-run " PHALANX_VERSION "\n");
  EXPECT_EQ(text({"-h"}), text({"--help"}));
  EXPECT_EQ(text({"--help-table"}), HelpTable());
  EXPECT_EQ(text({"-h", "--unknown"}), text({"--help"}));
  std::string help = text({"--nnodes=2", "--help", "s.py"});
  for (const FlagRow& row : FlagTable()) {
    if (row.help == nullptr) continue;
    EXPECT_THAT(help, HasSubstr(MainName(row)));
  }
  std::istringstream lines(help);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120u) << line;
  ParseResult script_help = Parse({"s.py", "--help"});
  EXPECT_TRUE(std::holds_alternative<LaunchConfig>(script_help));  // the script's own
}

TEST(Flags, ReportsAndNames) {
  EXPECT_EQ(Config({"s.py"}).ShownScript(), "s.py");
  const LaunchConfig config = Config({"--report-file=/a", "--script-name=train", "--preload=torch,numpy",
                                      "--report-file", "b", "s.py", "--report-file=c"});
  EXPECT_EQ(config.report_files, (std::vector<std::string>{"/a", Host().cwd + "/b"}));
  EXPECT_EQ(config.replay_log, "");
  EXPECT_EQ(config.script, "s.py");
  EXPECT_EQ(config.ShownScript(), "train");
  EXPECT_EQ(config.preload, "torch,numpy");
  EXPECT_EQ(Config({"--replay-log=logs", "s.py"}).replay_log, Host().cwd + "/logs");
  EXPECT_THAT(Error({"--replay-log=", "s.py"}), HasSubstr("--replay-log=: expected a directory"));
  EXPECT_THAT(Error({"--script-name=", "s.py"}), HasSubstr("--script-name=: expected a name"));
  EXPECT_THAT(Error({"--script-name=a\nb", "s.py"}), HasSubstr("expected a name"));
  EXPECT_THAT(Error({"--preload=a\nb", "s.py"}), HasSubstr("expected names of modules"));
}

TEST(Flags, WorkersStartColdForToolsThatFollowAProcessFromItsStart) {
  for (const char* variable : {"NSYS_PROFILING_SESSION_ID", "NV_NSIGHT_INJECTION_PORT_BASE", "CUDA_INJECTION64_PATH",
                               "PYTHONPROFILEIMPORTTIME", "PYTHONVERBOSE", "PYTHONMALLOCSTATS", "PYTHONPERFSUPPORT"}) {
    const Vars profiled{{variable, "1"}};
    const LaunchConfig config = Config({"s.py"}, profiled);
    EXPECT_FALSE(config.warm);
    EXPECT_EQ(config.spares, 0);
    EXPECT_THAT(config.notices, testing::ElementsAre(HasSubstr(variable)));
    EXPECT_TRUE(Config({"--warm", "s.py"}, profiled).warm);
    EXPECT_THAT(Config({"--no-warm", "s.py"}, profiled).notices, testing::IsEmpty());
    EXPECT_THAT(Config({"--no-python", "s.sh"}, profiled).notices, testing::IsEmpty());
    EXPECT_THAT(Config({"--spares=2", "s.py"}, profiled).notices, testing::Contains(HasSubstr("--spares")));
    EXPECT_TRUE(Config({"s.py"}, {{variable, ""}}).warm);
  }
}

TEST(Flags, AsTorchLaunch) {
  using ::testing::ElementsAre;
  EXPECT_THAT(Config({"--as-torch-launch", "s.py", "a"}).script_args, ElementsAre("--local-rank=${local_rank}", "a"));
  EXPECT_THAT(Config({"--as-torch-launch", "--use_env", "s.py", "a"}).script_args, ElementsAre("a"));
  EXPECT_THAT(Config({"--as-torch-launch", "s.py", "--use-env"}).script_args,
              ElementsAre("--local-rank=${local_rank}", "--use-env"));  // the script's own
  EXPECT_THAT(Error({"--use-env", "s.py"}), HasSubstr("--use-env: is a flag of python -m phalanx.launch"));
  EXPECT_THAT(Error({"--as-torch-launch", "--no-python", "s.sh"}), HasSubstr("expected --use-env"));
  EXPECT_EQ(Config({"--as-torch-launch", "--no-python", "--use-env", "s.sh"}).kind, ScriptKind::kProgram);
}

TEST(Flags, TheTableHasEveryNameOnce) {
  std::set<std::string> names;
  for (const FlagRow& row : FlagTable()) {
    for (const std::string& name : BothSpellings(MainName(row))) EXPECT_TRUE(names.insert(name).second) << name;
  }
}

TEST(Flags, ThePageShowsTheTable) {
  std::ifstream file(SourceDir() + "/docs/flags.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_NE(page.str().find(HelpTable()), std::string::npos)
      << "put the output of phalanx-run --help-table into docs/flags.md";
}

TEST(Flags, ElasticConfigIsReadAtTheDoor) {
  const std::string block = R"({"enabled":true,"max_train_batch_size":8,"micro_batch_sizes":[4,2],"version":0.1})";
  EXPECT_EQ(Config({"--elastic-config=ds.json", "s.py"}).elastic_config, block);
  EXPECT_EQ(Config({"s.py"}).elastic_config, "");
  EXPECT_EQ(Error({"--elastic-config=none.json", "s.py"}),
            "--elastic-config=none.json: cannot be read: No such file or directory");
  EXPECT_EQ(
      Error({"--elastic-config=plain.json", "s.py"}),
      "--elastic-config=plain.json: ElasticityConfigError: 'elasticity' is missing from config json, please add it "
      "if running an elastic training job.");
  EXPECT_THAT(Error({"--elastic-config=", "s.py"}), HasSubstr("expected a file"));
}

TEST(Flags, ElasticConfigMustGrantSomeNumberOfNodes) {
  const std::vector<std::string> two_to_three = {"--nnodes=2:3", "--rdzv-backend=c10d", "--rdzv-endpoint=h",
                                                 "--elastic-config=ds.json"};
  const auto with = [&two_to_three](const std::string& flag) {
    std::vector<std::string> args = two_to_three;
    args.insert(args.end(), {flag, "s.py"});
    return args;
  };
  EXPECT_NE(Config(with("--nproc-per-node=2")).elastic_config, "");
  EXPECT_EQ(Error(with("--nproc-per-node=3")),
            "--elastic-config=ds.json: no valid world size is --nnodes=2:3 times --nproc-per-node=3: up to 9 ranks it "
            "grants 1, 2, 4");
  EXPECT_THAT(Error(with("--nproc-per-node=4")), HasSubstr("up to 12 ranks it grants 1, 2, 4"));
  EXPECT_NE(Config(with("--nproc-per-node=gpu")).elastic_config, "");  // looked at when they are counted
}

TEST(Flags, ElasticConfigAgreesWithTheSchedulers) {
  const std::string variable = "DEEPSPEED_ELASTICITY_CONFIG";
  const auto other = [](int largest) {
    return fmt::format(R"({{"max_train_batch_size": {}, "micro_batch_sizes": [4, 2], "version": 0.1}})", largest);
  };
  EXPECT_NE(Config({"--elastic-config=ds.json", "s.py"}, {{variable, other(8)}}).elastic_config, "");
  EXPECT_EQ(Error({"--elastic-config=ds.json", "s.py"}, {{variable, other(16)}}),
            "--elastic-config=ds.json: DEEPSPEED_ELASTICITY_CONFIG in the environment does not agree with it, and the "
            "ranks would refuse that: ElasticityConfigError: Elastic config 'max_acceptable_batch_size=16' seen by "
            "resource scheduler does not match config passed to runtime max_acceptable_batch_size=8");
}

}  // namespace
}  // namespace phalanx::agent

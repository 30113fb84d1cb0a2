// More than 500 lines: a short step for each rule that ties flags to each other, all on one draft of the configuration.
#include "agent/flags/flags.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "agent/flags/arg_parser.h"
#include "agent/flags/elastic_config.h"
#include "agent/flags/flag_table.h"
#include "agent/flags/flag_values.h"
#include "agent/flags/slurm.h"
#include "agent/flags/worker_env.h"

namespace phalanx::agent {
namespace {

constexpr uint16_t kC10dPort = 29400;
constexpr uint16_t kStaticPort = 29500;
// torch.distributed.elastic.rendezvous.dynamic_rendezvous.create_handler's own.
constexpr int64_t kTorchKeepAliveMs = 5'000;
constexpr int64_t kTorchKeepAliveAttempts = 3;
// A master takes no shorter lease (wire/limits.h), and a longer one is as good as none.
constexpr int64_t kLeaseLeastMs = 1'000;
constexpr int64_t kLeaseMostMs = 24 * 3'600'000;
// --auto-config checks the nodes of jobs of so many, as dlrover-run does.
constexpr uint32_t kNodesThatAreChecked = 4;
constexpr int64_t kDefaultStopTimeoutMs = 30'000;
constexpr const char* kDefaultPrefixTemplate = "[${role_name}${local_rank}]:";

// Variables of tools that must be in a process from its start on, and why its worker starts cold then. A GPU profiler
// is loaded then, and follows what a process executes, not what it forks; Python tells of imports to whoever does them.
constexpr const char* kAsNsysDoes =
    "as nsys and ncu do: workers start cold, so that the profiler sees them as it sees torchrun's";
constexpr const char* kToldByTheImporter =
    "which tells of imports: workers start cold, so that each tells of all of its own";
constexpr std::array<std::pair<const char*, const char*>, 7> kFollowFromTheStart = {{
    {"NSYS_PROFILING_SESSION_ID", kAsNsysDoes},
    {"NV_NSIGHT_INJECTION_PORT_BASE", kAsNsysDoes},
    {"CUDA_INJECTION64_PATH", kAsNsysDoes},
    {"PYTHONPROFILEIMPORTTIME", kToldByTheImporter},
    {"PYTHONVERBOSE", kToldByTheImporter},
    {"PYTHONMALLOCSTATS", "which tells of memory from a process's start: workers start cold"},
    {"PYTHONPERFSUPPORT", "which names compiled functions for one process: workers start cold, so that perf knows all"},
}};

Status Wrong(const std::string& what) { return absl::InvalidArgumentError(what); }

// "--nnodes=0: expected N or MIN:MAX ..."
Status WithSource(const Status& status, const std::string& source, const std::string& value) {
  if (status.ok()) return status;
  std::string said = fmt::format("{}={}: {}", source, value, Message(status));
  if (absl::IsUnimplemented(status)) said = fmt::format("not available yet: {}={}: {}", source, value, Message(status));
  return Wrong(said);
}

std::vector<ArgSpec> Specs() {
  std::vector<ArgSpec> specs;
  for (const FlagRow& row : FlagTable()) {
    ArgSpec spec;
    std::string names = row.names;
    if (size_t space = names.find(' '); space != std::string::npos) spec.names.push_back(names.substr(0, space));
    for (std::string& spelling : BothSpellings(MainName(row))) spec.names.push_back(std::move(spelling));
    spec.arity = row.arity;
    spec.tier = row.family == FlagFamily::kTorchrun ? 0 : 1;
    specs.push_back(std::move(spec));
  }
  return specs;
}

Status Refusal(const FlagRow& row, const std::string& source) {
  bool never = row.standing == FlagStanding::kUnsupported;
  return Wrong(fmt::format("{}: {} ({})", never ? "not supported" : "not available yet", source, row.help));
}

Status Apply(const FlagRow& row, const GivenFlag& given, Draft& draft) {
  draft.given.insert(MainName(row));
  if (row.handler != nullptr) return WithSource(row.handler(draft, given), given.source, given.value);
  bool harmless = row.harmless != nullptr && given.value == row.harmless;
  return harmless ? absl::OkStatus() : Refusal(row, given.source);
}

// What PET_* variables say, for flags that the command line does not give.
Status ApplyVariables(const ParsedLine& line, const Environment& env, Draft& draft) {
  std::span<const FlagRow> table = FlagTable();
  for (size_t i = 0; i < table.size(); ++i) {
    const FlagRow& row = table[i];
    bool on_line = std::any_of(line.options.begin(), line.options.end(), [&](const auto& o) { return o.spec == i; });
    std::optional<std::string> value = row.pet && !on_line ? env.Get(PetName(row)) : std::nullopt;
    if (!value) continue;
    GivenFlag given{PetName(row), *value};
    if (row.arity == Arity::kNone) {
      if (*value != "0" && *value != "1") return Wrong(fmt::format("{}={}: expected 0 or 1", given.source, *value));
      if (*value == "0") continue;  // as if it were not set
      given.value.clear();
    }
    PHX_RETURN_IF_ERROR(Apply(row, given, draft));
  }
  return absl::OkStatus();
}

Status ApplyLine(const ParsedLine& line, Draft& draft) {
  for (const ParsedOption& option : line.options) {
    GivenFlag given{option.name, ""};
    for (const std::string& value : option.values)
      given.value += fmt::format("{}{}", given.value.empty() ? "" : " ", value);
    PHX_RETURN_IF_ERROR(Apply(FlagTable()[option.spec], given, draft));
  }
  return absl::OkStatus();
}

// Weighs what was given, resolves what was not, and fills the config.
class Resolver {
 public:
  Resolver(Draft draft, const Environment& env, const HostFacts& host)
      : draft_(std::move(draft)), config_(draft_.config), env_(env), host_(host) {}

  StatusOr<LaunchConfig> Resolve(ParsedLine line) {
    PHX_RETURN_IF_ERROR(ResolveScript(std::move(line)));
    PHX_RETURN_IF_ERROR(ResolveAutoConfig());
    FollowPlatform();
    PHX_RETURN_IF_ERROR(ResolveSlurm());
    PHX_RETURN_IF_ERROR(ResolveWorkers());
    PHX_RETURN_IF_ERROR(ResolveChecks());
    PHX_RETURN_IF_ERROR(ResolveUnits());
    PHX_RETURN_IF_ERROR(ResolveElastic());
    PHX_RETURN_IF_ERROR(ResolveRendezvous());
    PHX_RETURN_IF_ERROR(ResolveConf());
    PHX_RETURN_IF_ERROR(ResolveTimeouts());
    PHX_RETURN_IF_ERROR(ResolveOutput());
    PHX_RETURN_IF_ERROR(ResolveWarm());
    PHX_RETURN_IF_ERROR(ResolveIdentity());
    PHX_RETURN_IF_ERROR(ResolvePlaces());
    PHX_RETURN_IF_ERROR(ResolveStoreRelay());
    config_.notices = draft_.notices;
    return std::move(config_);
  }

 private:
  bool Given(const std::string& name) const { return draft_.given.count(name) > 0; }
  void Notice(const std::string& text) { draft_.notices.push_back(text); }
  void NoticeUnused(const std::string& flag, const std::string& why) {
    if (Given(flag)) Notice(fmt::format("{}: has no effect: {}", flag, why));
  }

  Status ResolveScript(ParsedLine line) {
    if (!line.script)
      return Wrong("no script is given: expected phalanx-run [flags] script [arguments of the script...]");
    if (line.script->empty()) return Wrong("the script's name is empty");
    config_.script = *std::move(line.script);
    config_.script_args = std::move(line.script_args);
    PHX_RETURN_IF_ERROR(ResolveTorchLaunch());
    if (draft_.run_path) {
      for (const char* flag : {"--no-python", "--module"}) NoticeUnused(flag, "--run-path runs the script's file");
      draft_.no_python = draft_.module = false;
    }
    if (draft_.no_python && draft_.module) {
      return Wrong("--no-python and --module exclude each other: a module is always run by Python");
    }
    if (draft_.no_python) {
      config_.kind = ScriptKind::kProgram;
      return AsksForDevices() ? ResolvePython() : absl::OkStatus();
    }
    config_.kind = draft_.module ? ScriptKind::kModule : ScriptKind::kScript;
    return ResolvePython();
  }

  // torch.distributed.launch gives its script --local-rank first.
  Status ResolveTorchLaunch() {
    if (draft_.use_env && !draft_.as_torch_launch) {
      return Wrong("--use-env: is a flag of python -m phalanx.launch; here the script never gets --local-rank");
    }
    if (draft_.use_env || !draft_.as_torch_launch) return absl::OkStatus();
    if (draft_.no_python) {
      return Wrong("--no-python: expected --use-env beside it: a program that is not Python gets no --local-rank");
    }
    config_.script_args.insert(config_.script_args.begin(), "--local-rank=${local_rank}");
    return absl::OkStatus();
  }

  // Of a Python of its own, also where the script is none.
  bool AsksForDevices() const {
    const bool counts = config_.nproc_kind != NprocKind::kCount && config_.nproc_kind != NprocKind::kCpu;
    const bool checks = config_.check_level > 0 || config_.check_only || config_.auto_config;
    return counts || checks || config_.numa_binding != NumaBinding::kNone || draft_.numa_affinity;
  }

  Status ResolvePython() {
    std::string beside;
    for (const char* name : {"python", "python3"}) {
      std::string path = fmt::format("{}/{}", host_.own_dir, name);
      if (beside.empty() && !host_.own_dir.empty() && host_.is_executable(path)) beside = path;
    }
    std::string wanted = env_.NonEmptyOr("PYTHON_EXEC", "");
    if (!wanted.empty()) {
      config_.python = OnPath(wanted);
      if (config_.python.empty())
        return Wrong(fmt::format("PYTHON_EXEC={}: expected a program that can be executed", wanted));
      config_.interpreter_given = config_.python != beside;
      return absl::OkStatus();
    }
    config_.python = beside.empty() ? OnPath("python3") : beside;
    if (!config_.python.empty()) return absl::OkStatus();
    const bool program = config_.kind == ScriptKind::kProgram;
    return Wrong(fmt::format("no Python found in {} nor as python3 on PATH{}: set PYTHON_EXEC to one{}", host_.own_dir,
                             program ? ", and one is asked which devices there are" : "",
                             program ? "" : ", or use --no-python"));
  }

  // Absolute or as given where it has a '/', else the first on PATH; empty where there is none.
  std::string OnPath(const std::string& name) const {
    if (name.find('/') != std::string::npos) return host_.is_executable(name) ? name : "";
    std::string path = env_.NonEmptyOr("PATH", "/usr/local/bin:/usr/bin:/bin");
    for (size_t at = 0; at <= path.size();) {
      size_t end = std::min(path.find(':', at), path.size());
      std::string candidate = fmt::format("{}/{}", Absolute(path.substr(at, end - at)), name);
      if (host_.is_executable(candidate)) return candidate;
      at = end + 1;
    }
    return "";
  }

  std::string Absolute(const std::string& path) const {
    if (path.empty()) return host_.cwd;
    return path[0] == '/' ? path : fmt::format("{}/{}", host_.cwd, path);
  }

  Status ResolveWorkers() {
    if (config_.nproc_kind == NprocKind::kCpu) {
      config_.nproc_kind = NprocKind::kCount;
      config_.nproc_per_node = std::max<uint32_t>(1, host_.cpu_count);
    }
    const bool counted = config_.nproc_kind == NprocKind::kCount;
    config_.omp_num_threads_unset =
        (!counted || config_.nproc_per_node > 1) && !env_.Get("OMP_NUM_THREADS").has_value();
    if (draft_.numa_affinity && Given("--numa-binding") && config_.numa_binding != NumaBinding::kNode) {
      return Wrong("--numa-affinity is --numa-binding=node, and another binding is given: leave one of them away");
    }
    if (draft_.numa_affinity) config_.numa_binding = NumaBinding::kNode;
    return counted ? CheckVisibleDevices(config_, env_) : absl::OkStatus();
  }

  // --node-unit, or dlrover's --rdzv-conf node_unit.
  Status ResolveUnits() {
    const auto conf = config_.rdzv_conf.find("node_unit");
    if (!draft_.node_unit && conf != config_.rdzv_conf.end()) {
      const StatusOr<uint32_t> unit = ParseNodeUnit(conf->second);
      if (!unit.ok()) return WithSource(unit.status(), "--rdzv-conf: node_unit", conf->second);
      draft_.node_unit = *unit;
    }
    config_.node_unit = draft_.node_unit.value_or(1);
    const std::pair<uint32_t, uint32_t> asked(config_.min_nodes, config_.max_nodes);
    const std::string text =
        asked.first == asked.second ? fmt::format("{}", asked.first) : fmt::format("{}:{}", asked.first, asked.second);
    const auto nodes = NodesInUnits(asked, config_.node_unit);
    if (!nodes.ok()) return WithSource(nodes.status(), "--nnodes", text);
    if (*nodes == asked) return absl::OkStatus();
    std::tie(config_.min_nodes, config_.max_nodes) = *nodes;
    Notice(fmt::format("--nnodes={}: taken as {}:{}, the multiples of --node-unit={}", text, nodes->first,
                       nodes->second, config_.node_unit));
    return absl::OkStatus();
  }

  Status ResolveElastic() {
    if (draft_.elastic_config_file.empty()) return absl::OkStatus();
    const Status checked = ReadElastic(Absolute(draft_.elastic_config_file));
    return checked.ok() ? checked : WithSource(checked, "--elastic-config", draft_.elastic_config_file);
  }

  Status ReadElastic(const std::string& path) {
    PHX_ASSIGN_OR_RETURN(const std::string text, host_.read_file(path));
    PHX_ASSIGN_OR_RETURN(config_.elastic_config, ElasticBlock(text));
    PHX_RETURN_IF_ERROR(CheckSchedulersBlock(config_.elastic_config, env_));
    return config_.nproc_kind == NprocKind::kCount ? CheckElasticSizes(config_) : absl::OkStatus();
  }

  // dlrover's guide: nodes and workers from the environment.
  Status ResolveAutoConfig() {
    if (!config_.auto_config) return absl::OkStatus();
    if (!Given("--nnodes")) {
      const std::string text = env_.NonEmptyOr("NODE_NUM", "");
      if (text.empty()) return Wrong("--auto-config: NODE_NUM is not set; expected the number of nodes");
      const auto nodes = ParseNodes(text);
      if (!nodes.ok()) return WithSource(nodes.status(), "--auto-config: NODE_NUM", text);
      std::tie(config_.min_nodes, config_.max_nodes) = *nodes;
      draft_.given.insert("--nnodes");
    }
    if (!Given("--nproc-per-node")) {
      config_.nproc_kind = NprocKind::kAuto;
      draft_.given.insert("--nproc-per-node");
    }
    const bool said = Given("--precheck") || Given("--network-check") || Given("--comm-perf-test");
    if (!said && config_.max_nodes >= kNodesThatAreChecked) config_.check_level = 1;
    return absl::OkStatus();
  }

  // Of --auto-config, and of "--nnodes=1:$NODE_NUM".
  void FollowPlatform() {
    const auto nodes = ParseNodes(env_.NonEmptyOr("NODE_NUM", ""));
    config_.sized_by_platform = nodes.ok() && nodes->second == config_.max_nodes;
  }

  Status ResolveChecks() {
    if (config_.check_only) config_.check_level = std::max(config_.check_level, 1u);
    for (const char* flag : {"--exclude-straggler", "--straggler-rule", "--check-timeout", "--check-directory",
                             "--check-program", "--check-nics", "--switchbox-check"}) {
      if (!Given(flag) || config_.check_level > 0) continue;
      const bool while_training = std::string_view(flag) == "--exclude-straggler";
      if (while_training && config_.watches_ranks) continue;
      if (!config_.auto_config) {
        return Wrong(fmt::format("{}: nothing is checked; give --network-check {}with it", flag,
                                 while_training ? "or --watch-ranks " : ""));
      }
      Notice(fmt::format("{}: --auto-config checks no nodes of so few", flag));
    }
    for (const char* flag : {"--box-pairs", "--min-bandwidth", "--min-channels", "--switchbox-source"}) {
      if (Given(flag) && !config_.check_switchbox) {
        return Wrong(fmt::format("{}: no switchbox is checked; give --switchbox-check with it", flag));
      }
    }
    if (config_.check_switchbox && config_.min_channels > config_.box_pairs.size()) {
      return Wrong(fmt::format("--min-channels={}: expected at most {}, the pairs of --box-pairs", config_.min_channels,
                               config_.box_pairs.size()));
    }
    if (!config_.check_directory.empty()) config_.check_directory = Absolute(config_.check_directory);
    for (std::string& program : config_.check_programs) {
      program = Absolute(program);
      if (!host_.is_executable(program)) {
        return Wrong(fmt::format("--check-program={}: expected a file that this user may execute", program));
      }
    }
    constexpr size_t kPrefix = 5;  // "tool:", "file:"
    std::string& source = config_.switchbox_source;
    if (source.find(':') == kPrefix - 1) source = source.substr(0, kPrefix) + Absolute(source.substr(kPrefix));
    return absl::OkStatus();
  }

  // Within a step of srun, Slurm says what the command line leaves open.
  Status ResolveSlurm() {
    const bool endpoint_given = !draft_.endpoint.empty() || Given("--master-addr") || draft_.master_port.has_value();
    const bool one_node = Given("--nnodes") && config_.max_nodes == 1;
    const bool elsewhere = draft_.standalone || !env_.NonEmptyOr("PHALANX_MASTER_ADDR", "").empty();
    if (endpoint_given || one_node || elsewhere) return absl::OkStatus();
    PHX_ASSIGN_OR_RETURN(const std::optional<SlurmStep> step, ReadSlurmStep(env_));
    if (!step) return absl::OkStatus();
    if (!Given("--nproc-per-node") && step->gpu_count > 0) {
      config_.nproc_per_node = step->gpu_count;
      Notice(fmt::format("Slurm: {} workers on this node, one for each of its GPUs (SLURM_GPUS_ON_NODE)",
                         step->gpu_count));
    }
    if (!Given("--nnodes")) config_.min_nodes = config_.max_nodes = step->node_count;
    return config_.max_nodes > 1 ? MeetBySlurm(*step) : absl::OkStatus();
  }

  Status MeetBySlurm(const SlurmStep& step) {
    const bool v6 = step.first_node.find(':') != std::string::npos;
    draft_.endpoint = fmt::format("{}:{}", v6 ? fmt::format("[{}]", step.first_node) : step.first_node, step.port);
    if (!Given("--rdzv-id")) config_.rdzv_id = fmt::format("slurm-{}", step.name);
    if (config_.min_nodes != config_.max_nodes && !Given("--rdzv-backend")) draft_.backend = "c10d";
    if (draft_.backend == "static" && !draft_.node_rank) {
      if (static_cast<uint32_t>(step.node_index) >= config_.max_nodes) {
        return Wrong(
            fmt::format("SLURM_NODEID={}: expected 0 to {}, as --nnodes={} and the step has {} nodes: start it "
                        "on as many (srun --nodes={}), or give a range",
                        step.node_index, config_.max_nodes - 1, config_.max_nodes, step.node_count, config_.max_nodes));
      }
      draft_.node_rank = step.node_index;
    }
    Notice(fmt::format("Slurm: step {}, node {} of {}; the job's nodes meet at {}", step.name, step.node_index,
                       step.node_count, draft_.endpoint));
    return absl::OkStatus();
  }

  Status ResolveRendezvous() {
    bool c10d = draft_.backend == "c10d";
    bool nothing_given = !c10d && draft_.endpoint.empty() && !draft_.master_port && config_.max_nodes == 1;
    std::string master = env_.NonEmptyOr("PHALANX_MASTER_ADDR", "");
    if (draft_.standalone) return ResolveStandalone(master);
    if (!master.empty()) return ResolveGivenMaster(master);
    if (nothing_given) return ResolveImplicitStandalone();
    return c10d ? ResolveC10d() : ResolveStatic();
  }

  Status ResolveStandalone(const std::string& master) {
    for (const char* flag : {"--rdzv-backend", "--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank"}) {
      NoticeUnused(flag, "--standalone runs by itself");
    }
    if (!master.empty())
      Notice(fmt::format("PHALANX_MASTER_ADDR={}: has no effect: --standalone runs by itself", master));
    if (config_.min_nodes > 1) {
      return Wrong(fmt::format(
          "--nnodes={}: expected 1 with --standalone, which no other node can join; use --rdzv-backend=c10d "
          "--rdzv-endpoint=HOST:PORT for more",
          config_.min_nodes));
    }
    ChooseLoneId();
    BeAlone();
    return absl::OkStatus();
  }

  Status ResolveImplicitStandalone() {
    NoticeUnused("--master-addr",
                 "a single node without --rdzv-endpoint or --master-port runs standalone, as with torchrun");
    PHX_RETURN_IF_ERROR(CheckNodeRank());
    ChooseLoneId();
    BeAlone();
    return absl::OkStatus();
  }

  // One that was chosen stays: what an earlier run has left in memory is found by it.
  void ChooseLoneId() {
    config_.rdzv_id_invented = !Given("--rdzv-id") || config_.rdzv_id == kUnchosenId;
    if (config_.rdzv_id_invented) {
      config_.rdzv_id = host_.fresh_uuid;
    } else {
      config_.other_rdzv_id = host_.fresh_uuid;
    }
  }

  void BeAlone() {
    config_.rendezvous = Rendezvous::kStandalone;
    config_.min_nodes = config_.max_nodes = 1;  // nobody else can come, so there is nobody to wait for
    config_.endpoint_host.clear();
    config_.endpoint_port = 0;
  }

  Status ResolveGivenMaster(const std::string& master) {
    StatusOr<Endpoint> endpoint = ParseEndpoint(master);
    if (!endpoint.ok() || endpoint->host.empty() || endpoint->port == 0) {
      return Wrong(fmt::format("PHALANX_MASTER_ADDR={}: expected HOST:PORT or [IPV6]:PORT", master));
    }
    for (const char* flag : {"--rdzv-backend", "--rdzv-endpoint", "--master-addr", "--master-port", "--node-rank"}) {
      NoticeUnused(flag, "PHALANX_MASTER_ADDR names the job's master");
    }
    config_.rendezvous = Rendezvous::kC10d;
    config_.endpoint_host = endpoint->host;
    config_.endpoint_port = endpoint->port.value_or(kC10dPort);
    config_.master_addr_env = master;
    return absl::OkStatus();
  }

  Status ResolveC10d() {
    for (const char* flag : {"--master-addr", "--master-port", "--node-rank"})
      NoticeUnused(flag, "only for --rdzv-backend=static");
    Endpoint endpoint;
    if (!draft_.endpoint.empty()) {
      PHX_ASSIGN_OR_RETURN(endpoint, ParseEndpoint(draft_.endpoint));
    } else if (config_.max_nodes > 1) {
      Notice("--rdzv-endpoint: not given: localhost:29400 is taken, which only agents on this machine reach");
    }
    if (endpoint.host.empty()) endpoint.host = "localhost";
    if (endpoint.port == 0) return ResolveFreePort(endpoint.host);
    config_.rendezvous = Rendezvous::kC10d;
    config_.endpoint_host = endpoint.host;
    config_.endpoint_port = endpoint.port.value_or(kC10dPort);
    return absl::OkStatus();
  }

  // torchrun's documented way to several jobs on one machine: --rdzv-endpoint=localhost:0.
  Status ResolveFreePort(const std::string& host) {
    bool local = host == "localhost" || host.rfind("127.", 0) == 0 || host == "::1";
    if (!local || config_.min_nodes > 1) {
      return Wrong(fmt::format(
          "--rdzv-endpoint={}: expected a port that the other nodes can know; port 0 (any free one) is for a "
          "single node on localhost",
          draft_.endpoint));
    }
    config_.rdzv_id_invented = config_.rdzv_id == kUnchosenId;  // it stays what torchrun's is
    BeAlone();
    return absl::OkStatus();
  }

  Status CheckNodeRank() const {
    int node_rank = draft_.node_rank.value_or(0);
    if (static_cast<uint32_t>(node_rank) < config_.max_nodes) return absl::OkStatus();
    return Wrong(fmt::format("--node-rank={}: expected a rank from 0 to {}, as --nnodes is {}", node_rank,
                             config_.max_nodes - 1, config_.max_nodes));
  }

  Status ResolveStatic() {
    PHX_RETURN_IF_ERROR(CheckNodeRank());
    Endpoint endpoint{draft_.master_addr, draft_.master_port};
    if (!draft_.endpoint.empty()) {
      PHX_ASSIGN_OR_RETURN(endpoint, ParseEndpoint(draft_.endpoint));
      for (const char* flag : {"--master-addr", "--master-port"}) NoticeUnused(flag, "--rdzv-endpoint is given");
    }
    if (endpoint.port == 0) {
      return Wrong(fmt::format("--rdzv-endpoint={}: expected a port from 1 to 65535 for the static rendezvous",
                               draft_.endpoint));
    }
    if (config_.min_nodes != config_.max_nodes) {
      Notice(fmt::format(
          "--nnodes={}:{}: the static rendezvous waits for all {} nodes; use --rdzv-backend=c10d for an elastic job",
          config_.min_nodes, config_.max_nodes, config_.max_nodes));
      config_.min_nodes = config_.max_nodes;
    }
    config_.rendezvous = Rendezvous::kStatic;
    config_.endpoint_host = endpoint.host.empty() ? "127.0.0.1" : endpoint.host;
    config_.endpoint_port = endpoint.port.value_or(kStaticPort);
    config_.node_rank = draft_.node_rank.value_or(0);
    return absl::OkStatus();
  }

  Status ResolveConf() {
    std::string without_meaning, unknown;
    for (const auto& [key, value] : config_.rdzv_conf) {
      std::string source = fmt::format("--rdzv-conf: {}", key);
      if (key == "join_timeout" || (key == "timeout" && config_.rdzv_conf.count("join_timeout") == 0)) {
        PHX_RETURN_IF_ERROR(ConfSeconds(source, value, config_.join_timeout_ms));
      } else if (key == "last_call_timeout" || key == "lastcall_timeout") {
        PHX_RETURN_IF_ERROR(ConfSeconds(source, value, config_.last_call_ms));
        config_.last_call_given = true;
      } else if (key == "keep_alive_interval" || key == "keep_alive_max_attempt") {
        continue;  // ResolveLease
      } else if (key == "is_host") {
        StatusOr<bool> is_host = ParseBool(value);
        if (!is_host.ok()) return WithSource(is_host.status(), source, value);
        config_.is_host = *is_host;
      } else if (key == "store_type" && value != "tcp") {
        return Wrong(fmt::format("{}={}: expected tcp; rendezvous over a shared file is not supported", source, value));
      } else if (std::string* list = ListFor(key, &without_meaning, &unknown)) {
        *list += fmt::format("{}{}", list->empty() ? "" : ", ", key);
      }
    }
    if (!without_meaning.empty())
      Notice(fmt::format("--rdzv-conf: {}: without effect: nothing is polled or kept alive by hand here",
                         without_meaning));
    if (!unknown.empty()) Notice(fmt::format("--rdzv-conf: {}: unknown, ignored", unknown));
    return ResolveLease();
  }

  // As torch's dynamic rendezvous has it: a node that misses so many of its signs of life in a row is dead. The one of
  // both that is not given is torch's.
  Status ResolveLease() {
    const auto interval = config_.rdzv_conf.find("keep_alive_interval");
    const auto attempts = config_.rdzv_conf.find("keep_alive_max_attempt");
    if (interval == config_.rdzv_conf.end() && attempts == config_.rdzv_conf.end()) return absl::OkStatus();
    int64_t interval_ms = kTorchKeepAliveMs;
    int64_t most = kTorchKeepAliveAttempts;
    if (interval != config_.rdzv_conf.end()) {
      PHX_RETURN_IF_ERROR(ConfSeconds("--rdzv-conf: keep_alive_interval", interval->second, interval_ms));
    }
    if (attempts != config_.rdzv_conf.end()) {
      const StatusOr<int64_t> given = ParseInteger(attempts->second, 1, 1'000'000);
      if (!given.ok()) return WithSource(given.status(), "--rdzv-conf: keep_alive_max_attempt", attempts->second);
      most = *given;
    }
    config_.lease_ms = interval_ms > kLeaseMostMs / most ? kLeaseMostMs : interval_ms * most;
    if (config_.lease_ms >= kLeaseLeastMs) return absl::OkStatus();
    Notice(
        fmt::format("--rdzv-conf: keep_alive_interval times keep_alive_max_attempt is {} ms: a silent node is "
                    "believed for 1 s at least",
                    config_.lease_ms));
    config_.lease_ms = kLeaseLeastMs;
    return absl::OkStatus();
  }

  // Which of the two lists a key that is not acted upon belongs to; none where it says what is the case anyway.
  static std::string* ListFor(const std::string& key, std::string* without_meaning, std::string* unknown) {
    if (key == "store_type" || key == "node_unit") return nullptr;
    for (const char* known : {"timeout", "close_timeout", "heartbeat_timeout", "cas_backoff_max_seconds",
                              "read_timeout", "pend_timeout", "rank"}) {
      if (key == known) return without_meaning;
    }
    return unknown;
  }

  static Status ConfSeconds(const std::string& source, const std::string& value, int64_t& target_ms) {
    StatusOr<int64_t> ms = ParseSecondsToMs(value);
    if (!ms.ok()) return WithSource(ms.status(), source, value);
    target_ms = *ms;
    return absl::OkStatus();
  }

  Status ResolveTimeouts() {
    std::optional<int64_t> stop_ms = draft_.stop_timeout_ms;
    if (stop_ms && draft_.shutdown_timeout_ms && *stop_ms != *draft_.shutdown_timeout_ms) {
      return Wrong("--stop-timeout and --shutdown-timeout mean the same and differ: give one of them");
    }
    if (!stop_ms) stop_ms = draft_.shutdown_timeout_ms;
    std::string variable = env_.NonEmptyOr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "");
    if (!stop_ms && !variable.empty()) {
      StatusOr<int64_t> ms = ParseSecondsToMs(variable);
      if (!ms.ok()) return WithSource(ms.status(), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", variable);
      stop_ms = *ms;
    }
    config_.stop_timeout_ms = stop_ms.value_or(kDefaultStopTimeoutMs);
    config_.restart_grace_ms = draft_.restart_grace_ms.value_or(stop_ms.value_or(config_.restart_grace_ms));
    if (Given("--restart-window") && config_.max_restarts) {
      Notice("--restart-window: has no effect: --max-restarts is given and is not renewed");
    }
    return absl::OkStatus();
  }

  Status ResolveOutput() {
    const bool filters = !config_.stdout_filters.empty() || !config_.stderr_filters.empty();
    const bool no_files = config_.log_dir == "/dev/null";
    if (filters && no_files) {
      return Wrong("--duplicate-stdout-filters, --duplicate-stderr-filters: expected a --log-dir other than /dev/null");
    }
    if (filters && !config_.tee.Any()) {
      Notice("--duplicate-stdout-filters, --duplicate-stderr-filters: have no effect: no rank is tee'd (--tee)");
    }
    if (config_.event_log == EventLog::kFile && config_.event_log_file.empty() && no_files) {
      return Wrong("--event-log-handler=jsonl: expected jsonl:FILE with --log-dir=/dev/null");
    }
    return ResolveDebugRank();
  }

  Status ResolveDebugRank() {
    if (config_.debug_rank < 0) return absl::OkStatus();
    const uint64_t most = uint64_t{config_.max_nodes} * config_.nproc_per_node;
    if (config_.nproc_kind == NprocKind::kCount && static_cast<uint64_t>(config_.debug_rank) >= most) {
      return Wrong(fmt::format("--debug-rank={}: expected a rank from 0 to {}, as there are at most {} workers",
                               config_.debug_rank, most - 1, most));
    }
    // Who quits the debugger ends the rank, and has seen enough.
    if (!config_.max_restarts) config_.max_restarts = 0;
    NoticeOutputOfDebugRank();
    return absl::OkStatus();
  }

  void NoticeOutputOfDebugRank() {
    std::vector<std::string> overridden;
    for (const char* flag :
         {"--redirects", "--tee", "--duplicate-stdout-filters", "--duplicate-stderr-filters", "--local-ranks-filter"}) {
      if (Given(flag)) overridden.emplace_back(flag);
    }
    if (overridden.empty()) return;
    Notice(fmt::format("{}: {} no effect on rank {}: --debug-rank gives it the terminal itself",
                       fmt::join(overridden, ", "), overridden.size() == 1 ? "has" : "have", config_.debug_rank));
  }

  void StartColdUnderProfiler() {
    if (Given("--warm") || Given("--no-warm") || config_.kind == ScriptKind::kProgram) return;
    for (const auto& [variable, why] : kFollowFromTheStart) {
      if (env_.NonEmptyOr(variable, "").empty()) continue;
      config_.warm = false;
      if (config_.spares > 0) Notice("--spares: has no effect: workers start cold");
      config_.spares = 0;
      config_.why_cold = fmt::format("{} is set, {}; --warm starts them warm all the same", variable, why);
      return Notice(config_.why_cold);
    }
  }

  Status ResolveWarm() {
    StartColdUnderProfiler();
    if (!config_.warm && config_.spares > 0) {
      return Wrong(
          fmt::format("--spares={}: expected 0 with --no-warm, which starts every worker cold", config_.spares));
    }
    if (!config_.warm) config_.spares = 0;
    if (Given("--spares") && config_.kind == ScriptKind::kProgram) {
      Notice("--spares: has no effect: a program that is not Python starts cold");
    }
    return absl::OkStatus();
  }

  // Addresses, names and secrets by which this node is known.
  Status ResolveIdentity() {
    std::string pod_ip = env_.NonEmptyOr("POD_IP", "");
    if (config_.local_addr.empty() && !pod_ip.empty()) {
      StatusOr<std::string> host = ParseHost(pod_ip);
      if (!host.ok()) return WithSource(host.status(), "POD_IP", pod_ip);
      config_.local_addr = *host;
    }
    return ResolveCredentials();
  }

  // Flags count before variables; files of a variable before its token.
  Status ResolveCredentials() {
    TlsFiles& tls = config_.tls;
    const bool token_given = !draft_.job_token_file.empty();
    const bool any_file = !tls.certificate.empty() || !tls.key.empty() || !tls.authority.empty();
    if (any_file && token_given) return Wrong("--job-token-file: expected it or --tls-cert, not both");
    if (any_file && !tls.whole()) return Wrong("--tls-cert, --tls-key, --tls-ca: expected all three or none");
    if (!any_file && !token_given) {
      tls = TlsFilesOf(env_);
      if (tls.any() && !tls.whole()) {
        return Wrong("PHALANX_TLS_CERT, PHALANX_TLS_KEY, PHALANX_TLS_CA: expected all three or none");
      }
    }
    if (tls.given()) {
      for (std::string* file : {&tls.certificate, &tls.key, &tls.authority}) *file = Absolute(*file);
      return absl::OkStatus();
    }
    return ResolveToken();
  }

  // Rank 0's own store, torch's, knows nothing of relays.
  Status ResolveStoreRelay() {
    const std::string variable = env_.NonEmptyOr(kStoreRelayVariable, "");
    if (!Given("--store-relay") && !variable.empty()) {
      const StatusOr<StoreRelayMode> said = ParseStoreRelay(variable);
      if (!said.ok()) return WithSource(said.status(), kStoreRelayVariable, variable);
      config_.store_relay = *said;
    }
    if (config_.store_relay != StoreRelayMode::kOn || !RankZeroHoldsStore(env_)) return absl::OkStatus();
    return Wrong(
        fmt::format("{}=on: TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 leaves the store to rank 0, which takes no "
                    "relay; leave one of both out",
                    Given("--store-relay") ? "--store-relay" : kStoreRelayVariable));
  }

  Status ResolveToken() {
    const bool from_file = !draft_.job_token_file.empty();
    const std::string source = from_file ? fmt::format("--job-token-file={}", draft_.job_token_file) : kTokenVariable;
    config_.token = env_.NonEmptyOr(kTokenVariable, "");
    if (from_file) {
      const StatusOr<std::string> text = host_.read_file(Absolute(draft_.job_token_file));
      if (!text.ok()) return WithSource(text.status(), "--job-token-file", draft_.job_token_file);
      config_.token = TokenIn(*text);
    }
    if (from_file || !config_.token.empty()) {
      const Status good = CheckToken(config_.token);
      if (!good.ok()) return Wrong(fmt::format("{}: {}", source, Message(good)));
      const std::string weakness = TokenWeakness(config_.token);
      if (!weakness.empty()) Notice(fmt::format("{}: {}", source, weakness));
      return absl::OkStatus();
    }
    if (config_.rendezvous == Rendezvous::kStandalone) {
      config_.token = host_.fresh_token;
      return absl::OkStatus();
    }
    PHX_RETURN_IF_ERROR(FindToken());
    if (!config_.token.empty() || !draft_.require_token) return absl::OkStatus();
    return Wrong("--require-token: expected a token (--job-token-file, PHALANX_TOKEN) or a certificate (--tls-cert)");
  }

  // The one that somebody has left in the state directory for all jobs.
  Status FindToken() {
    const std::string path = fmt::format("{}/{}", StateRoot(), kSharedTokenFile);
    const StatusOr<std::string> token = host_.read_secret(path);
    if (absl::IsNotFound(token.status())) return absl::OkStatus();
    if (!token.ok()) {
      return Wrong(
          fmt::format("state directory {} (--state-dir gives another): {}", StateRoot(), Message(token.status())));
    }
    const Status good = CheckToken(*token);
    if (!good.ok()) return Wrong(fmt::format("{}: {}", path, Message(good)));
    config_.token = *token;
    const std::string weakness = TokenWeakness(config_.token);
    Notice(fmt::format("the token in {} closes this job{}", path, weakness.empty() ? "" : "; " + weakness));
    return absl::OkStatus();
  }

  const std::string& StateRoot() {
    std::string& root = config_.state_root;
    if (root.empty()) root = draft_.state_root.empty() ? DefaultStateRoot() : Absolute(draft_.state_root);
    return root;
  }

  Status ResolvePlaces() {
    config_.state_dir = fmt::format("{}/{}", StateRoot(), StateFolderName());
    if (!config_.log_dir.empty()) config_.log_dir = Absolute(config_.log_dir);
    if (!config_.event_log_file.empty()) config_.event_log_file = Absolute(config_.event_log_file);
    if (config_.log_line_prefix_template.empty()) {
      config_.log_line_prefix_template =
          env_.NonEmptyOr("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", kDefaultPrefixTemplate);
    }
    for (std::string& file : config_.report_files) file = Absolute(file);
    if (!config_.replay_log.empty()) config_.replay_log = Absolute(config_.replay_log);
    config_.own_error_file = env_.NonEmptyOr("TORCHELASTIC_ERROR_FILE", "");
    const std::string sysfs_root = env_.NonEmptyOr("PHALANX_SYSFS_ROOT", "");
    if (!sysfs_root.empty()) config_.sysfs_root = Absolute(sysfs_root);
    config_.bootstrap_dir = env_.NonEmptyOr("PHALANX_BOOTSTRAP_DIR", "");
    return absl::OkStatus();
  }

  // Jobs without an id share nothing but that they have none.
  std::string StateFolderName() const {
    if (config_.rdzv_id == kUnchosenId && config_.rdzv_id_invented)
      return fmt::format("{}{}{}", kUnchosenId, kSharedIdMark, host_.fresh_uuid);
    return MastersDirectoryName(config_.rdzv_id, host_.hostname, config_.endpoint_port);
  }

  std::string DefaultStateRoot() {
    std::string xdg = env_.NonEmptyOr("XDG_STATE_HOME", "");
    if (!xdg.empty() && xdg[0] == '/') return xdg + "/phalanx";
    if (!xdg.empty()) Notice(fmt::format("XDG_STATE_HOME={}: ignored: it must be absolute", xdg));
    std::string home = env_.NonEmptyOr("HOME", host_.home);
    if (!home.empty() && home[0] == '/') return home + "/.local/state/phalanx";
    return fmt::format("/tmp/phalanx-{}", host_.uid);
  }

  Draft draft_;
  LaunchConfig& config_;
  const Environment& env_;
  const HostFacts& host_;
};

// Values come from anywhere: what would move the cursor or break the line is shown as \xNN.
std::string Visible(const std::string& text) {
  std::string out;
  for (char c : text) {
    bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    out += control ? fmt::format("\\x{:02x}", static_cast<unsigned char>(c)) : std::string(1, c);
  }
  return out;
}

PrintAndExit Usage(const Status& status) {
  return {2, fmt::format("phalanx-run: error: {}\nusage: phalanx-run [flags] script [arguments of the script...]; "
                         "phalanx-run --help lists the flags\n",
                         Visible(Message(status)))};
}

}  // namespace

ParseResult ParseFlags(const std::vector<std::string>& args, const Environment& env, const HostFacts& host) {
  ParsedLine line = ParseLine(Specs(), args);
  Draft draft;
  draft.config.signals_to_handle = *ParseSignals(draft.config.signals_to_handle_text);
  Status status = ApplyLine(line, draft);
  if (draft.help) return PrintAndExit{0, HelpText()};
  if (draft.version) return PrintAndExit{0, "phalanx-run " PHALANX_VERSION "\n"};
  if (draft.help_table) return PrintAndExit{0, HelpTable()};
  if (!draft.completion.empty()) return PrintAndExit{0, draft.completion};
  if (status.ok()) status = line.status;
  if (status.ok()) status = ApplyVariables(line, env, draft);
  if (!status.ok()) return Usage(status);
  StatusOr<LaunchConfig> config = Resolver(std::move(draft), env, host).Resolve(std::move(line));
  if (!config.ok()) return Usage(config.status());
  return *std::move(config);
}

}  // namespace phalanx::agent

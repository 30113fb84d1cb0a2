// More than 500 lines: a table, of one row a flag.
#include "agent/flags/flag_table.h"

#include <algorithm>
#include <cctype>

#include "agent/flags/completion.h"
#include "agent/flags/flag_values.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kMaxLocalWorld = 4096;
constexpr int64_t kMaxRestarts = 1'000'000;
constexpr int64_t kMaxRank = 100'000'000;
constexpr size_t kMaxCheckPrograms = 16;
constexpr int64_t kMaxBandwidthMbS = 1'000'000'000;
constexpr int64_t kLeastWatchMs = 100;

Status Expected(std::string_view what) { return absl::InvalidArgumentError(fmt::format("expected {}", what)); }

template <typename Target, typename Value>
Status Assign(Target& target, StatusOr<Value> value) {
  if (!value.ok()) return value.status();
  target = *std::move(value);
  return absl::OkStatus();
}

// A flag that says yes, and no more.
template <bool LaunchConfig::*field>
Status SwitchOn(Draft& draft, const GivenFlag&) {
  draft.config.*field = true;
  return absl::OkStatus();
}

Status HandleNnodes(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(auto nodes, ParseNodes(given.value));
  draft.config.min_nodes = nodes.first;
  draft.config.max_nodes = nodes.second;
  return absl::OkStatus();
}

Status HandleNodeUnit(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(draft.node_unit, ParseNodeUnit(given.value));
  return absl::OkStatus();
}

Status HandleElasticConfig(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a file: a DeepSpeed config with an elasticity block");
  draft.elastic_config_file = given.value;
  return absl::OkStatus();
}

Status HandleNproc(Draft& draft, const GivenFlag& given) {
  LaunchConfig& config = draft.config;
  config.nproc_per_node = 1;
  if (given.value == "cpu") return Assign(config.nproc_kind, StatusOr<NprocKind>(NprocKind::kCpu));
  if (given.value == "gpu") return Assign(config.nproc_kind, StatusOr<NprocKind>(NprocKind::kGpu));
  if (given.value == "xpu") return Assign(config.nproc_kind, StatusOr<NprocKind>(NprocKind::kXpu));
  if (given.value == "auto") return Assign(config.nproc_kind, StatusOr<NprocKind>(NprocKind::kAuto));
  StatusOr<int64_t> count = ParseInteger(given.value, 1, kMaxLocalWorld);
  if (!count.ok())
    return Expected(fmt::format("a number of workers from 1 to {}, or cpu, gpu, xpu or auto", kMaxLocalWorld));
  config.nproc_kind = NprocKind::kCount;
  config.nproc_per_node = static_cast<uint32_t>(*count);
  return absl::OkStatus();
}

Status HandleBackend(Draft& draft, const GivenFlag& given) {
  if (given.value == "etcd" || given.value == "etcd-v2") {
    return Expected("c10d, which needs no etcd: the first node that binds --rdzv-endpoint hosts the rendezvous");
  }
  if (given.value != "static" && given.value != "c10d") {
    return Expected(
        "static or c10d; out-of-tree rendezvous handlers are Python plug-ins of torchrun and not supported");
  }
  draft.backend = given.value;
  return absl::OkStatus();
}

Status HandleEndpoint(Draft& draft, const GivenFlag& given) {
  if (!given.value.empty()) PHX_RETURN_IF_ERROR(ParseEndpoint(given.value).status());
  draft.endpoint = given.value;
  return absl::OkStatus();
}

Status HandleRdzvId(Draft& draft, const GivenFlag& given) {
  if (given.value.empty() || given.value.size() > 256 || !IsCleanText(given.value)) {
    return Expected("a job id of 1 to 256 bytes of UTF-8 without control characters");
  }
  draft.config.rdzv_id = given.value;
  return absl::OkStatus();
}

Status HandleRdzvConf(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.rdzv_conf, ParseKeyValues(given.value));
}

Status HandleStandalone(Draft& draft, const GivenFlag&) {
  draft.standalone = true;
  return absl::OkStatus();
}

Status HandleNodeRank(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(int64_t rank, ParseInteger(given.value, 0, 999'999));
  draft.node_rank = static_cast<int>(rank);
  return absl::OkStatus();
}

Status HandleMasterAddr(Draft& draft, const GivenFlag& given) {
  return Assign(draft.master_addr, ParseHost(given.value));
}

Status HandleMasterPort(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(int64_t port, ParseInteger(given.value, 1, 65535));
  draft.master_port = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

Status HandleLocalAddr(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.local_addr, ParseHost(given.value));
}

Status HandleMaxRestarts(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(int64_t restarts, ParseInteger(given.value, 0, kMaxRestarts));
  draft.config.max_restarts = static_cast<uint32_t>(restarts);
  return absl::OkStatus();
}

Status HandleMonitorInterval(Draft& draft, const GivenFlag& given) {
  PHX_RETURN_IF_ERROR(ParseSecondsToMs(given.value).status());
  draft.notices.push_back(fmt::format("{}: has no effect: events are pushed here, nothing is polled", given.source));
  return absl::OkStatus();
}

Status HandleStartMethod(Draft& draft, const GivenFlag& given) {
  if (given.value != "spawn" && given.value != "fork" && given.value != "forkserver") {
    return Expected("spawn, fork or forkserver");
  }
  draft.notices.push_back(fmt::format("{}: has no effect: scripts are never started by multiprocessing", given.source));
  return absl::OkStatus();
}

Status HandleEventLogHandler(Draft& draft, const GivenFlag& given) {
  // torchrun's dynamic_rendezvous goes nowhere either.
  if (given.value == "null" || given.value == "dynamic_rendezvous") {
    draft.config.event_log = EventLog::kNone;
  } else if (given.value == "console") {
    draft.config.event_log = EventLog::kConsole;
  } else if (given.value == "jsonl" || (given.value.starts_with("jsonl:") && given.value != "jsonl:")) {
    draft.config.event_log = EventLog::kFile;
    draft.config.event_log_file = given.value.size() > 6 ? given.value.substr(6) : "";
  } else {
    return Expected("null, console, jsonl or jsonl:FILE; handlers of Python code are plug-ins of torchrun");
  }
  return absl::OkStatus();
}

Status HandleStdoutFilters(Draft& draft, const GivenFlag& given) {
  draft.config.stdout_filters = ParseFilters(given.value);
  return absl::OkStatus();
}

Status HandleStderrFilters(Draft& draft, const GivenFlag& given) {
  draft.config.stderr_filters = ParseFilters(given.value);
  return absl::OkStatus();
}

Status HandleLogFormat(Draft& draft, const GivenFlag& given) {
  if (given.value != "text" && given.value != "json") return Expected("text or json");
  draft.config.log_format = given.value == "json" ? LogFormat::kJson : LogFormat::kText;
  return absl::OkStatus();
}

Status HandleDebugRank(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(int64_t rank, ParseInteger(given.value, 0, kMaxRank));
  draft.config.debug_rank = static_cast<int>(rank);
  return absl::OkStatus();
}

Status HandleRole(Draft& draft, const GivenFlag& given) {
  if (given.value.size() > 256 || !IsCleanText(given.value)) {
    return Expected("a name of at most 256 bytes of UTF-8 without control characters");
  }
  draft.config.role = given.value;
  return absl::OkStatus();
}

Status HandleModule(Draft& draft, const GivenFlag&) {
  draft.module = true;
  return absl::OkStatus();
}

Status HandleRunPath(Draft& draft, const GivenFlag&) {
  draft.run_path = true;
  return absl::OkStatus();
}

Status HandleNoPython(Draft& draft, const GivenFlag&) {
  draft.no_python = true;
  return absl::OkStatus();
}

Status HandleLogDir(Draft& draft, const GivenFlag& given) {
  draft.config.log_dir = given.value;
  return absl::OkStatus();
}

Status HandleRedirects(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.redirects, ParseStreamMap(given.value));
}

Status HandleTee(Draft& draft, const GivenFlag& given) { return Assign(draft.config.tee, ParseStreamMap(given.value)); }

Status HandlePrefixTemplate(Draft& draft, const GivenFlag& given) {
  draft.config.log_line_prefix_template = given.value;
  return absl::OkStatus();
}

Status HandleRanksFilter(Draft& draft, const GivenFlag& given) {
  draft.config.local_ranks_filter.clear();
  if (given.value.empty()) return absl::OkStatus();
  return Assign(draft.config.local_ranks_filter, ParseLocalRanks(given.value));
}

Status HandleSignals(Draft& draft, const GivenFlag& given) {
  PHX_RETURN_IF_ERROR(Assign(draft.config.signals_to_handle, ParseSignals(given.value)));
  draft.config.signals_to_handle_text = given.value;
  return absl::OkStatus();
}

Status HandleShutdownTimeout(Draft& draft, const GivenFlag& given) {
  return Assign(draft.shutdown_timeout_ms, ParseSecondsToMs(given.value));
}

Status HandleStopTimeout(Draft& draft, const GivenFlag& given) {
  return Assign(draft.stop_timeout_ms, ParseSecondsToMs(given.value));
}

Status HandleRestartGrace(Draft& draft, const GivenFlag& given) {
  return Assign(draft.restart_grace_ms, ParseSecondsToMs(given.value));
}

Status HandleRescaleGrace(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.rescale_grace_ms, ParseSecondsToMs(given.value));
}

Status HandleOlderSaveAfter(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(const int64_t lives, ParseInteger(given.value, 0, kMaxRestarts));
  draft.config.older_save_after_lives = static_cast<uint32_t>(lives);
  return absl::OkStatus();
}

Status HandleHangTimeout(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(draft.config.hang_timeout_ms, ParseSecondsToMs(given.value));
  return absl::OkStatus();
}

Status HandleRestartWindow(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(int64_t window_ms, ParseSecondsToMs(given.value));
  if (window_ms == 0) return Expected("more than 0 seconds");
  draft.config.restart_window_ms = window_ms;
  return absl::OkStatus();
}

Status HandleNumaBinding(Draft& draft, const GivenFlag& given) {
  for (const NumaBinding binding :
       {NumaBinding::kNode, NumaBinding::kSocket, NumaBinding::kExclusive, NumaBinding::kCoreComplex}) {
    if (given.value != Name(binding)) continue;
    draft.config.numa_binding = binding;
    return absl::OkStatus();
  }
  return Expected("node, socket, exclusive or core-complex");
}

Status HandleNumaAffinity(Draft& draft, const GivenFlag&) {
  draft.numa_affinity = true;
  return absl::OkStatus();
}

Status HandleMembindPolicy(Draft&, const GivenFlag& given) {
  if (given.value == "none" || given.value == "preferred") return absl::OkStatus();
  if (given.value != "bind") return Expected("none or preferred");
  return absl::UnimplementedError(
      "memory of other nodes is never forbidden; none and preferred are accepted: what runs on a node's CPUs gets that "
      "node's memory first");
}

Status HandleNoWarm(Draft& draft, const GivenFlag&) {
  draft.config.warm = false;
  return absl::OkStatus();
}

Status HandleSpares(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(int64_t spares, ParseInteger(given.value, 0, kMaxLocalWorld));
  draft.config.spares = static_cast<int>(spares);
  return absl::OkStatus();
}

Status HandleStateDir(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a directory");
  draft.state_root = given.value;
  return absl::OkStatus();
}

Status HandleJobTokenFile(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a file with the job's token");
  draft.job_token_file = given.value;
  return absl::OkStatus();
}

Status HandleRequireToken(Draft& draft, const GivenFlag&) {
  draft.require_token = true;
  return absl::OkStatus();
}

template <std::string TlsFiles::*kFile>
Status HandleTlsFile(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a PEM file");
  draft.config.tls.*kFile = given.value;
  return absl::OkStatus();
}

Status HandleReportFile(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a file");
  draft.config.report_files.push_back(given.value);
  return absl::OkStatus();
}

Status HandlePrecheck(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(const int64_t level, ParseInteger(given.value, 0, 2));
  draft.config.check_level = std::max(draft.config.check_level, static_cast<uint32_t>(level));
  return absl::OkStatus();
}

Status HandleNetworkCheck(Draft& draft, const GivenFlag&) {
  draft.config.check_level = std::max(draft.config.check_level, 1u);
  return absl::OkStatus();
}

Status HandleCommPerfTest(Draft& draft, const GivenFlag&) {
  draft.config.check_level = 2;
  return absl::OkStatus();
}

Status HandleStragglerRule(Draft& draft, const GivenFlag& given) {
  if (given.value != "mean" && given.value != "median") return Expected("mean or median");
  draft.config.straggler_by_median = given.value == "median";
  return absl::OkStatus();
}

Status HandleCheckTimeout(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(draft.config.check_limit_ms, ParseSecondsToMs(given.value));
  return draft.config.check_limit_ms > 0 ? absl::OkStatus() : Expected("seconds above 0");
}

Status HandleCheckDirectory(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a directory");
  draft.config.check_directory = given.value;
  return absl::OkStatus();
}

Status HandleCheckProgram(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a program");
  if (draft.config.check_programs.size() == kMaxCheckPrograms) {
    return Expected(fmt::format("at most {} programs", kMaxCheckPrograms));
  }
  draft.config.check_programs.push_back(given.value);
  return absl::OkStatus();
}

Status HandleCheckNics(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.check_nics, ParseNics(given.value));
}

Status HandleWatch(Draft& draft, const GivenFlag& given) {
  int64_t& every_ms = draft.config.watch_every_ms;
  every_ms = LaunchConfig().watch_every_ms;
  if (given.value == "on") return absl::OkStatus();
  if (given.value == "off") return Assign(every_ms, StatusOr<int64_t>(0));
  const StatusOr<int64_t> seconds_ms = ParseSecondsToMs(given.value);
  if (!seconds_ms.ok() || *seconds_ms < kLeastWatchMs) return Expected("on, off or seconds, 0.1 at least");
  every_ms = *seconds_ms;
  return absl::OkStatus();
}

Status HandleSwitchboxSource(Draft& draft, const GivenFlag& given) {
  const bool has_path = given.value.starts_with("tool:") || given.value.starts_with("file:");
  if (given.value != "nvidia" && (!has_path || given.value.size() == 5)) {
    return Expected("nvidia, tool:PATH or file:PATH");
  }
  draft.config.switchbox_source = given.value;
  return absl::OkStatus();
}

Status HandleBoxPairs(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.box_pairs, ParseBoxPairs(given.value));
}

Status HandleMinBandwidth(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.min_bandwidth_mb_s, ParseInteger(given.value, 1, kMaxBandwidthMbS));
}

Status HandleMinChannels(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(const int64_t channels, ParseInteger(given.value, 1, kMaxBoxPairs));
  draft.config.min_channels = static_cast<uint32_t>(channels);
  return absl::OkStatus();
}

Status HandleReplayLog(Draft& draft, const GivenFlag& given) {
  if (given.value.empty()) return Expected("a directory");
  draft.config.replay_log = given.value;
  return absl::OkStatus();
}

// What phalanx.launcher calls a function by, whose script is always the same file.
Status HandleScriptName(Draft& draft, const GivenFlag& given) {
  if (given.value.empty() || given.value.size() > 256 || !IsCleanText(given.value)) {
    return Expected("a name of 1 to 256 bytes of UTF-8 without control characters");
  }
  draft.config.script_name = given.value;
  return absl::OkStatus();
}

// As PHALANX_PRELOAD, which workers would inherit, and a phalanx-run that they start.
Status HandlePreload(Draft& draft, const GivenFlag& given) {
  if (!IsCleanText(given.value)) return Expected("names of modules with commas between");
  draft.config.preload = given.value;
  return absl::OkStatus();
}

// What phalanx.launch gives first. torchrun itself knows no --use-env.
Status HandleAsTorchLaunch(Draft& draft, const GivenFlag&) {
  draft.as_torch_launch = true;
  return absl::OkStatus();
}

Status HandleUseEnv(Draft& draft, const GivenFlag&) {
  draft.use_env = true;
  return absl::OkStatus();
}

Status HandleParentPid(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.parent_pid, ParseInteger(given.value, 1, INT32_MAX));
}

Status HandlePortRange(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(auto range, ParsePortRange(given.value));
  draft.config.port_range_first = range.first;
  draft.config.port_range_last = range.second;
  return absl::OkStatus();
}

Status HandleStoreRelay(Draft& draft, const GivenFlag& given) {
  return Assign(draft.config.store_relay, ParseStoreRelay(given.value));
}

Status HandleHelp(Draft& draft, const GivenFlag&) {
  draft.help = true;
  return absl::OkStatus();
}

Status HandleVersion(Draft& draft, const GivenFlag&) {
  draft.version = true;
  return absl::OkStatus();
}

Status HandlePrintCompletion(Draft& draft, const GivenFlag& given) {
  PHX_ASSIGN_OR_RETURN(draft.completion, CompletionScript(given.value));
  return absl::OkStatus();
}

Status HandleHelpTable(Draft& draft, const GivenFlag&) {
  draft.help_table = true;
  return absl::OkStatus();
}

constexpr Arity kSwitch = Arity::kNone;
constexpr Arity kOne = Arity::kOne;
constexpr FlagFamily kTorch = FlagFamily::kTorchrun;
constexpr FlagFamily kDlrover = FlagFamily::kDlrover;
constexpr FlagFamily kOurs = FlagFamily::kPhalanx;
constexpr FlagStanding kSame = FlagStanding::kSame;
constexpr FlagStanding kBetter = FlagStanding::kBetter;
constexpr FlagStanding kNew = FlagStanding::kNew;
constexpr FlagStanding kIgnored = FlagStanding::kIgnored;
constexpr FlagStanding kRefused = FlagStanding::kRefused;
constexpr FlagStanding kUnsupported = FlagStanding::kUnsupported;
constexpr bool kPet = true;
constexpr bool kNoPet = false;
using G = FlagGroup;

constexpr FlagRow kTable[] = {
    // torchrun: acted upon.
    {"--nnodes", kOne, "N|MIN:MAX", kPet, kTorch, kBetter, G::kJob,
     "number of nodes, or a range for an elastic job, which starts as soon as MIN are there (default 1); more nodes "
     "than MAX wait as spares (docs/security.md says where)",
     HandleNnodes, nullptr},
    {"--nproc-per-node", kOne, "N|WORD", kPet, kTorch, kSame, G::kJob,
     "workers per node: a number, cpu, gpu, xpu or auto (the accelerators there are, else the CPUs); default 1",
     HandleNproc, nullptr},
    {"--standalone", kSwitch, nullptr, kPet, kTorch, kBetter, G::kJob,
     "one node by itself, at a free port; --rdzv-* is ignored, with a notice, but for --rdzv-id. Also without the "
     "flag, "
     "where nothing names another node",
     HandleStandalone, nullptr},
    {"--role", kOne, "NAME", kPet, kTorch, kSame, G::kJob,
     "role of the workers, for names in logs and ROLE_* (default: default)", HandleRole, nullptr},
    {"--rdzv-backend", kOne, "static|c10d", kPet, kTorch, kBetter, G::kRendezvous,
     "c10d: nodes meet at --rdzv-endpoint; static (default): at --master-addr:--master-port, each with its "
     "--node-rank. Both are served by "
     "phalanx-master; etcd, etcd-v2 and out-of-tree handlers are refused",
     HandleBackend, nullptr},
    {"--rdzv-endpoint", kOne, "HOST[:PORT]", kPet, kTorch, kSame, G::kRendezvous,
     "where the nodes of the job meet; the first to bind it hosts the job's master. Default port 29400 (c10d), 29500 "
     "(static)",
     HandleEndpoint, nullptr},
    {"--rdzv-id", kOne, "ID", kPet, kTorch, kBetter, G::kRendezvous,
     "job id (default: none). A standalone job keeps it, so that it finds what the one before has left in memory; "
     "torchrun, and phalanx-run where none is given, take a fresh one there",
     HandleRdzvId, nullptr},
    {"--rdzv-conf", kOne, "K=V,...", kPet, kTorch, kBetter, G::kRendezvous,
     "join_timeout, last_call_timeout (seconds), is_host, timeout; keys without meaning here are accepted with a "
     "notice",
     HandleRdzvConf, nullptr},
    {"--node-rank", kOne, "N", kPet, kTorch, kSame, G::kRendezvous, "rank of this node, static only (default 0)",
     HandleNodeRank, nullptr},
    {"--master-addr", kOne, "HOST", kPet, kTorch, kSame, G::kRendezvous,
     "node rank 0's address, static only (default 127.0.0.1)", HandleMasterAddr, nullptr},
    {"--master-port", kOne, "PORT", kPet, kTorch, kSame, G::kRendezvous,
     "node rank 0's port, static only (default 29500)", HandleMasterPort, nullptr},
    {"--local-addr", kOne, "HOST", kPet, kTorch, kBetter, G::kRendezvous,
     "address that other nodes reach this one by (default: POD_IP, else that of the connection to the master; never "
     "the FQDN)",
     HandleLocalAddr, nullptr},
    {"-m --module", kSwitch, nullptr, kPet, kTorch, kSame, G::kScript, "run the script as a module, as python -m does",
     HandleModule, nullptr},
    {"--no-python", kSwitch, nullptr, kPet, kTorch, kSame, G::kScript,
     "the script is a program of its own: execute it directly", HandleNoPython, nullptr},
    {"--start-method", kOne, "spawn|fork|forkserver", kPet, kTorch, kIgnored, G::kScript,
     "checked, without effect: scripts are never started by multiprocessing", HandleStartMethod, nullptr},
    {"--max-restarts", kOne, "N", kPet, kTorch, kBetter, G::kFailures,
     "worker failures the job survives; changes of membership cost none. Given: torchrun's meaning, 0 included. Not "
     "given: 3, renewed by --restart-window of steps, and two lives in a row without a step end the job, unless the "
     "next one goes on from an older save (--older-save-after)",
     HandleMaxRestarts, nullptr},
    {"--monitor-interval", kOne, "S", kPet, kTorch, kIgnored, G::kFailures,
     "checked, without effect: events are pushed, nothing is polled", HandleMonitorInterval, nullptr},
    {"--shutdown-timeout", kOne, "S", kPet, kTorch, kBetter, G::kFailures,
     "the same as --stop-timeout; decimals are taken; honoured on every stop (default: TORCH_ELASTIC_SHUTDOWN_TIMEOUT, "
     "else 30)",
     HandleShutdownTimeout, nullptr},
    {"--signals-to-handle", kOne, "SIG,...", kPet, kTorch, kBetter, G::kFailures,
     "signals that end the job when phalanx-run gets them (default SIGTERM,SIGINT,SIGHUP,SIGQUIT); unknown names are "
     "an error",
     HandleSignals, nullptr},
    {"--log-dir", kOne, "DIR", kPet, kTorch, kSame, G::kOutput,
     "directory of log and error files (default: a fresh torchelastic_* under TMPDIR); /dev/null: none", HandleLogDir,
     nullptr},
    {"-r --redirects", kOne, "0-3|R:0-3,...", kPet, kTorch, kBetter, G::kOutput,
     "streams that go to files: 1 stdout, 2 stderr, 3 both, for all or by local rank, of any number of digits (default "
     "0)",
     HandleRedirects, nullptr},
    {"-t --tee", kOne, "0-3|R:0-3,...", kPet, kTorch, kBetter, G::kOutput,
     "streams that go to files and to the console (as --redirects)", HandleTee, nullptr},
    {"--log-line-prefix-template", kOne, "TEXT", kPet, kTorch, kSame, G::kOutput,
     "what stands before each console line of a tee'd stream; ${role_name}, ${local_rank}, ${rank}, ${hostname} "
     "(default: TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE, else [${role_name}${local_rank}]:)",
     HandlePrefixTemplate, nullptr},
    {"--local-ranks-filter", kOne, "R,...", kPet, kTorch, kSame, G::kOutput,
     "local ranks whose output the console shows (default: all)", HandleRanksFilter, nullptr},
    {"--event-log-handler", kOne, "null|console|jsonl[:FILE]", kPet, kTorch, kBetter, G::kOutput,
     "where torchrun's events of workers and agent go, with the time at which they happened: nowhere (null, default), "
     "to stderr, or as JSON lines to FILE (default: events.jsonl in the run's log directory)",
     HandleEventLogHandler, nullptr},
    {"--duplicate-stdout-filters", kOne, "TEXT,...", kPet, kTorch, kSame, G::kOutput,
     "stdout lines of tee'd ranks that hold one of the texts are also written to attempt_N/filtered_stdout.log; ',,' "
     "is "
     "a comma",
     HandleStdoutFilters, nullptr},
    {"--duplicate-stderr-filters", kOne, "TEXT,...", kPet, kTorch, kSame, G::kOutput,
     "the same of stderr, to filtered_stderr.log", HandleStderrFilters, nullptr},
    {"--run-path", kSwitch, nullptr, kPet, kTorch, kBetter, G::kScript,
     "the script, a folder or a zip file with a __main__.py runs as __main__: the default here, without torchrun's "
     "detour over multiprocessing, and restarts stay warm",
     HandleRunPath, nullptr},
    {"--print-completion", kOne, "bash|zsh|fish|tcsh", kNoPet, kTorch, kBetter, G::kOther,
     "completion script for a shell; needs no further package", HandlePrintCompletion, nullptr},
    {"--numa-binding", kOne, "node|socket|exclusive|core-complex", kNoPet, kTorch, kBetter, G::kScript,
     "binds each worker to the CPUs near its GPU: those of its node, of its socket, cores of its own, or cores that "
     "share a cache. Without GPUs workers are spread evenly; needs no numactl",
     HandleNumaBinding, nullptr},
    {"--virtual-local-rank", kSwitch, nullptr, kPet, kTorch, kSame, G::kScript,
     "LOCAL_RANK=0 for every worker, and CUDA_VISIBLE_DEVICES shows each the one GPU that is its own",
     SwitchOn<&LaunchConfig::virtual_local_rank>, nullptr},

    // torchrun: refused.
    {"--logs-specs", kOne, "NAME", kNoPet, kTorch, kUnsupported, G::kOutput,
     "Python plug-ins of torchrun, group torchrun.logs_specs; use --log-dir, --redirects and --tee", nullptr, nullptr},

    // dlrover-run: acted upon.
    {"--node-unit", kOne, "N", kPet, kDlrover, kBetter, G::kJob,
     "train with a multiple of N nodes (default 1); --nnodes is taken as the multiples in it, and nodes left over wait "
     "as spares",
     HandleNodeUnit, nullptr},
    {"--numa-affinity", kSwitch, nullptr, kPet, kDlrover, kSame, G::kScript, "the same as --numa-binding=node",
     HandleNumaAffinity, nullptr},
    {"--membind-policy", kOne, "POLICY", kPet, kDlrover, kBetter, G::kScript,
     "none or preferred, which come to the same: a bound worker gets memory of its own node first. bind is refused",
     HandleMembindPolicy, nullptr},

    {"--precheck", kOne, "0|1|2", kPet, kDlrover, kBetter, G::kChecks,
     "nodes are checked before they train: 1: alone and in pairs, 2: also all together, 0: not at all (default). Who "
     "fails is named and left out; so are newcomers, before a job takes them in (docs/node-health.md)",
     HandlePrecheck, nullptr},
    {"--network-check", kSwitch, nullptr, kPet, kDlrover, kBetter, G::kChecks, "the same as --precheck=1",
     HandleNetworkCheck, nullptr},
    {"--comm-perf-test", kSwitch, nullptr, kPet, kDlrover, kBetter, G::kChecks, "the same as --precheck=2",
     HandleCommPerfTest, nullptr},
    {"--exclude-straggler", kSwitch, nullptr, kPet, kDlrover, kBetter, G::kChecks,
     "slow nodes are left out, while as many as --nnodes wants are left; without it they are named alone. Which are "
     "slow "
     "--network-check says before they train, --watch-ranks while they do",
     SwitchOn<&LaunchConfig::excludes_stragglers>, nullptr},
    {"--switchbox-check", kSwitch, nullptr, kPet, kDlrover, kBetter, G::kChecks,
     "the check of each node also measures its GPUs in pairs, over the switchbox between them. With --network-check",
     SwitchOn<&LaunchConfig::check_switchbox>, nullptr},
    {"--box-pairs", Arity::kOneOrMore, "A:B", kNoPet, kDlrover, kSame, G::kChecks,
     "GPUs that --switchbox-check pairs (default 0:1 2:4 3:5 6:7)", HandleBoxPairs, nullptr},
    {"--min-bandwidth", kOne, "MB/S", kPet, kDlrover, kSame, G::kChecks, "a pair below that has failed (default 10000)",
     HandleMinBandwidth, nullptr},
    {"--min-channels", kOne, "N", kPet, kDlrover, kSame, G::kChecks, "pairs that must not have failed (default 2)",
     HandleMinChannels, nullptr},
    {"--auto-config", kSwitch, nullptr, kPet, kDlrover, kBetter, G::kJob,
     "--nnodes is the environment's NODE_NUM, --nproc-per-node is auto, and from 4 nodes on --network-check is given; "
     "what the command line says counts. Nodes still need an endpoint",
     SwitchOn<&LaunchConfig::auto_config>, nullptr},

    // dlrover-run: refused.
    {"--auto-tunning", kSwitch, nullptr, kPet, kDlrover, kRefused, G::kOther, "batch sizes tuned while the job runs",
     nullptr, nullptr},
    {"--save-at-breakpoint", kSwitch, nullptr, kPet, kDlrover, kSame, G::kFailures,
     "the newest step of phalanx.checkpoint that is only in memory goes to storage when a worker fails or a node goes",
     SwitchOn<&LaunchConfig::save_at_breakpoint>, nullptr},
    {"--accelerator", kOne, "NAME", kPet, kDlrover, kRefused, G::kOther,
     "nvidia.com/gpu is accepted; nothing in the launcher depends on the accelerator", nullptr, "nvidia.com/gpu"},
    {"--training-port", kOne, "PORT", kPet, kDlrover, kRefused, G::kOther,
     "first HCCL port; meanwhile set HCCL_IF_BASE_PORT", nullptr, nullptr},
    {"--ucp-device-type", kOne, "DEVICE", kPet, kDlrover, kRefused, G::kOther,
     "device for converting universal checkpoints", nullptr, nullptr},

    // Ours.
    {"--stop-timeout", kOne, "S", kNoPet, kOurs, kNew, G::kFailures,
     "when the job is stopped from outside: seconds from the signal to SIGKILL (default 30)", HandleStopTimeout,
     nullptr},
    {"--restart-grace", kOne, "S", kNoPet, kOurs, kNew, G::kFailures,
     "when a round restarts: seconds from SIGTERM to SIGKILL for ranks that catch SIGTERM, others end at once (default "
     "0.5, or the stop timeout where that is given)",
     HandleRestartGrace, nullptr},
    {"--rescale-grace", kOne, "S", kNoPet, kOurs, kNew, G::kFailures,
     "before nodes join a job that trains, or leave it by a signal: seconds for ranks that called phalanx.on_rescale, "
     "or "
     "save often by phalanx.checkpoint, to come to a safe point (default 30)",
     HandleRescaleGrace, nullptr},
    {"--rescale-signal", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kFailures,
     "announce such a change by SIGUSR1, too, to ranks that catch it; who then exits with 0 is not done, but starts "
     "anew",
     SwitchOn<&LaunchConfig::rescale_signal>, nullptr},
    {"--restart-window", kOne, "S", kNoPet, kOurs, kNew, G::kFailures,
     "seconds of steps that renew the restart budget where --max-restarts is not given (default 3600)",
     HandleRestartWindow, nullptr},
    {"--older-save-after", kOne, "LIVES", kNoPet, kOurs, kNew, G::kFailures,
     "so many lives in a row that went on from a save and failed without a step: the next one goes on from the save "
     "before it, where storage has one, and what was trained since is trained again (default 2; 0: never)",
     HandleOlderSaveAfter, nullptr},
    {"--straggler-rule", kOne, "mean|median", kNoPet, kOurs, kNew, G::kChecks,
     "who is slow: mean: its check took more than twice the mean of the others (default); median: one of its values is "
     "far from the median, by the deviation from it",
     HandleStragglerRule, nullptr},
    {"--check-timeout", kOne, "S", kNoPet, kOurs, kNew, G::kChecks,
     "seconds for each part of a check: a node alone, a pair, all (default 60)", HandleCheckTimeout, nullptr},
    {"--check-directory", kOne, "DIR", kNoPet, kOurs, kNew, G::kChecks,
     "the check of each node also writes there, and measures how fast: the checkpoints' directory",
     HandleCheckDirectory, nullptr},
    {"--check-program", kOne, "PATH", kNoPet, kOurs, kNew, G::kChecks,
     "a program of your own that checks this node (docs/formats/node-check.md); may be given several times",
     HandleCheckProgram, nullptr},
    {"--check-nics", kOne, "NIC,NIC", kNoPet, kOurs, kNew, G::kChecks,
     "pairs of nodes also meet by each of these network interfaces, such as eth1,eth2: the rails that carry the "
     "gradients",
     HandleCheckNics, nullptr},
    {"--switchbox-source", kOne, "nvidia|tool:PATH|file:PATH", kNoPet, kOurs, kNew, G::kChecks,
     "who measures for --switchbox-check: torch's copies between GPUs (default), a vendor's tool, or a file of figures",
     HandleSwitchboxSource, nullptr},
    {"--watch-ranks", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kChecks,
     "a rank that works half as long again by itself in each step as the others do, for a minute, is named; with "
     "--exclude-straggler its node is left out. All ranks that wait in an all-reduce at the end of backward (DDP) are "
     "looked at",
     SwitchOn<&LaunchConfig::watches_ranks>, nullptr},
    {"--check-only", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kChecks,
     "check, say what was found, and end: with 1 where a node was left out. The script is not started",
     SwitchOn<&LaunchConfig::check_only>, nullptr},
    {"--watch", kOne, "on|off|S", kNoPet, kOurs, kNew, G::kChecks,
     "watch this node's GPUs, links, disks and memory while it trains, and name what explains a failure "
     "(docs/node-health.md): on reads each 15 s (default); or seconds between readings",
     HandleWatch, nullptr},
    {"--hang-timeout", kOne, "S", kNoPet, kOurs, kNew, G::kFailures,
     "seconds without a step of any rank that end a life as a failure does, and cost a restart (default: off; a hang "
     "is told of without it). Time in checkpoints is none",
     HandleHangTimeout, nullptr},
    {"--retry-same-error", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kFailures,
     "restart also behind a mistake in the program (ImportError, NameError, ...) that has come twice at the same line "
     "without a step between, which ends the job else",
     SwitchOn<&LaunchConfig::retries_same_error>, nullptr},
    {"--debug-rank", kOne, "N", kNoPet, kOurs, kNew, G::kOutput,
     "the terminal is rank N's, for breakpoint() and pdb; other ranks read nothing, and pass breakpoint() over. "
     "--max-restarts is 0 then, where it is not given",
     HandleDebugRank, nullptr},
    {"--log-format", kOne, "text|json", kNoPet, kOurs, kNew, G::kOutput,
     "what phalanx-run itself says: lines for people (default), or one JSON object a line", HandleLogFormat, nullptr},
    {"--explain", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kOutput,
     "say every decision of this node but its heartbeats, with reason and time, on the console",
     SwitchOn<&LaunchConfig::explain>, nullptr},
    {"--warm", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kWarm,
     "restart from warm spares, which have imported what the script imports (default)", SwitchOn<&LaunchConfig::warm>,
     nullptr},
    {"--no-warm", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kWarm, "start every worker cold", HandleNoWarm, nullptr},
    {"--spares", kOne, "N", kNoPet, kOurs, kNew, G::kWarm,
     "warm spares that wait on this node (default: as many as workers)", HandleSpares, nullptr},
    {"--state-dir", kOne, "DIR", kNoPet, kOurs, kNew, G::kPlaces,
     "directory under which each job has its own for record, address and token; beside those lies what launches learn "
     "for the next (modules to import ahead, generated code) (default ${XDG_STATE_HOME:-~/.local/state}/phalanx)",
     HandleStateDir, nullptr},
    {"--job-token-file", kOne, "FILE", kNoPet, kOurs, kNew, G::kSecurity,
     "the job's token, the same on all nodes: agents and master prove by it that they belong together, and talk "
     "encrypted (docs/security.md); else PHALANX_TOKEN",
     HandleJobTokenFile, nullptr},
    {"--tls-cert", kOne, "FILE", kNoPet, kOurs, kNew, G::kSecurity,
     "in place of a token: this node's certificate, PEM; --tls-key and --tls-ca go with it",
     HandleTlsFile<&TlsFiles::certificate>, nullptr},
    {"--tls-key", kOne, "FILE", kNoPet, kOurs, kNew, G::kSecurity, "its private key, PEM",
     HandleTlsFile<&TlsFiles::key>, nullptr},
    {"--tls-ca", kOne, "FILE", kNoPet, kOurs, kNew, G::kSecurity,
     "the authority whose certificates the job's other programs show, PEM", HandleTlsFile<&TlsFiles::authority>,
     nullptr},
    {"--require-token", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kSecurity,
     "refuse to run without a token or certificate", HandleRequireToken, nullptr},
    {"--port-range", kOne, "A-B", kNoPet, kOurs, kNew, G::kPlaces,
     "ports to take for the workers' stores, two at least (default: any free port)", HandlePortRange, nullptr},
    {"--store-relay", kOne, "auto|on|off", kNoPet, kOurs, kNew, G::kPlaces,
     "this node's ranks share one connection to the workers' store, by a port of its loopback that is their "
     "MASTER_ADDR "
     "and MASTER_PORT: on, off, or auto (default): in worlds of more than 16384 ranks (docs/operations.md); else "
     "PHALANX_STORE_RELAY",
     HandleStoreRelay, nullptr},
    {"--elastic-config", kOne, "FILE", kNoPet, kOurs, kNew, G::kJob,
     "a DeepSpeed config with an elasticity block: the job trains with the largest world size that it grants, and "
     "nodes "
     "left over wait as spares (docs/elastic-batch.md)",
     HandleElasticConfig, nullptr},
    {"--report-file", kOne, "FILE", kNoPet, kOurs, kNew, G::kPlaces,
     "when the job has ended: how, with the workers that failed, as JSON for programs (docs/formats/job-report.md); "
     "may "
     "be given several times",
     HandleReportFile, nullptr},
    {"--replay-log", kOne, "DIR", kNoPet, kOurs, kNew, G::kPlaces,
     "for a bug in Phalanx itself: record every event and decision of this node, and of a master that it starts, into "
     "files of DIR, which phalanx replay runs anew (docs/formats/replay-log.md)",
     HandleReplayLog, nullptr},
    {"--parent-pid", kOne, "PID", kNoPet, kOurs, kNew, G::kFailures,
     "process id of the program that starts phalanx-run: when it ends before the job, everything ends at once",
     HandleParentPid, nullptr},
    {"-h --help", kSwitch, nullptr, kNoPet, kTorch, kSame, G::kOther, "this text", HandleHelp, nullptr},
    {"--version", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kOther, "the version", HandleVersion, nullptr},
    {"--help-table", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kOther, nullptr, HandleHelpTable, nullptr},
    {"--script-name", kOne, "NAME", kNoPet, kOurs, kNew, G::kScript, nullptr, HandleScriptName, nullptr},
    {"--preload", kOne, "MODULE,...", kNoPet, kOurs, kNew, G::kWarm, nullptr, HandlePreload, nullptr},
    {"--as-torch-launch", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kScript, nullptr, HandleAsTorchLaunch, nullptr},
    {"--use-env", kSwitch, nullptr, kNoPet, kOurs, kNew, G::kScript, nullptr, HandleUseEnv, nullptr},
};

}  // namespace

std::span<const FlagRow> FlagTable() { return kTable; }

std::string MainName(const FlagRow& row) {
  std::string names = row.names;
  return names.substr(names.find("--"));
}

std::string PetName(const FlagRow& row) {
  std::string name = fmt::format("PET_{}", MainName(row).substr(2));
  for (char& c : name) c = c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return name;
}

std::string Spelling(const FlagRow& row) {
  std::string names = row.names;
  size_t space = names.find(' ');
  if (space != std::string::npos) names.insert(space, 1, ',');
  return row.metavar == nullptr ? names : fmt::format("{} {}", names, row.metavar);
}

}  // namespace phalanx::agent

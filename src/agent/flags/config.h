// What one phalanx-run was asked to do: the flags, checked and with their defaults resolved. Plain data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/tls_files.h"

namespace phalanx::agent {

// Of the job's token. Not in the environment of anything that phalanx-run starts but its master.
constexpr const char* kTokenVariable = "PHALANX_TOKEN";
constexpr const char* kStoreRelayVariable = "PHALANX_STORE_RELAY";

enum class ScriptKind {
  kScript,   // python -u <script> args...
  kModule,   // -m: python -u -m <module> args...
  kProgram,  // --no-python: <program> args...
};

enum class Rendezvous {
  kStandalone,  // --standalone, or nothing that names another node
  kStatic,      // --master-addr/--master-port/--node-rank
  kC10d,        // --rdzv-endpoint
};

// Where a local rank's stream goes: torchrun's --redirects and --tee, bit 1 = stdout, bit 2 = stderr.
struct StreamMap {
  int for_all = 0;
  std::map<int, int> by_local_rank;  // overrides for_all
  // Whether any rank is named.
  bool Any() const { return for_all != 0 || !by_local_rank.empty(); }
  int Of(int local_rank) const {
    auto it = by_local_rank.find(local_rank);
    return it == by_local_rank.end() ? for_all : it->second;
  }
};

enum class EventLog {
  kNone,
  kConsole,  // lines on stderr, as torchrun's "console"
  kFile,     // lines in events.jsonl of the run's log directory, or in the file given
};

enum class LogFormat { kText, kJson };

// torchrun's --numa-binding: the CPUs near a worker's device that it is bound to.
enum class NumaBinding {
  kNone,
  kNode,         // all of the NUMA node
  kSocket,       // all NUMA nodes of the socket
  kExclusive,    // cores of the node that no other worker has
  kCoreComplex,  // the cores of the node that share one last level of cache
};

// Whether a node's ranks share one connection to the round's store (store/relay.h).
enum class StoreRelayMode {
  kAuto,  // in worlds that one store could not hold otherwise
  kOn,
  kOff,
};

enum class NprocKind { kCount, kCpu, kGpu, kXpu, kAuto };

struct LaunchConfig {
  // The script.
  ScriptKind kind = ScriptKind::kScript;
  std::string script;
  std::string script_name;               // what it is called in texts for people and programs; empty: as it is
  std::vector<std::string> script_args;  // ${local_rank} not yet substituted
  std::string python;                    // interpreter; for kProgram only where devices are asked for
  bool interpreter_given = false;        // PYTHON_EXEC named a foreign interpreter
  uint64_t open_files_limit = 0;         // soft limit that phalanx-run was started with: the workers'; 0: the agent's

  // The job.
  uint32_t min_nodes = 1;
  uint32_t max_nodes = 1;
  NprocKind nproc_kind = NprocKind::kCount;
  uint32_t nproc_per_node = 1;  // counts where nproc_kind is kCount; others are resolved by the shell at start
  Rendezvous rendezvous = Rendezvous::kStandalone;
  std::string rdzv_id = "none";   // the job id
  bool rdzv_id_invented = false;  // a run's that nobody will ask for by name: standalone, or at any free port
  std::string other_rdzv_id;    // kStandalone with an id that was chosen: this one's, where a run of that id lives here
  std::string endpoint_host;    // without brackets; empty for kStandalone
  uint16_t endpoint_port = 0;   // 29400 (c10d) or 29500 (static) where none was given; 0 = free port, kStandalone
  std::optional<bool> is_host;  // --rdzv-conf is_host
  std::map<std::string, std::string> rdzv_conf;
  int node_rank = -1;  // kStatic, else -1
  std::string role = "default";
  std::optional<uint32_t> max_restarts;
  int64_t restart_window_ms = 3'600'000;
  int64_t join_timeout_ms = 600'000;
  int64_t last_call_ms = 300;
  bool last_call_given = false;  // then it is torchrun's, and newcomers do not renew it
  uint32_t node_unit = 1;        // min_nodes and max_nodes are multiples of it
  std::string elastic_config;    // the elasticity block of --elastic-config, one line of JSON; empty: none
  std::string local_addr;        // --local-addr, else POD_IP, else empty: that of the connection to the master

  // Checks of nodes.
  uint32_t check_level = 0;  // 0: none; 1: alone and in pairs; 2: also all together
  bool excludes_stragglers = false;
  bool straggler_by_median = false;  // else by the mean
  int64_t check_limit_ms = 60'000;
  bool check_only = false;                  // there is nothing to train
  std::string check_directory;              // absolute, for the disk; empty: none is written to
  bool watches_ranks = false;               // which rank holds the others up
  std::vector<std::string> check_programs;  // absolute
  std::vector<std::string> check_nics;      // by which pairs meet, beside the node's own address
  bool check_switchbox = false;
  std::string switchbox_source = "nvidia";  // or tool:PATH, file:PATH, absolute
  std::vector<std::pair<uint32_t, uint32_t>> box_pairs = {{0, 1}, {2, 4}, {3, 5}, {6, 7}};
  int64_t min_bandwidth_mb_s = 10'000;
  uint32_t min_channels = 2;
  int64_t watch_every_ms = 15'000;  // between readings of this node's hardware while it trains; 0: it is not watched
  bool auto_config = false;         // nodes and workers come from the environment

  // Stopping.
  int64_t stop_timeout_ms = 30'000;
  int64_t rescale_grace_ms = 30'000;    // 0: a planned change waits for no rank
  uint32_t older_save_after_lives = 2;  // that failed without a step in a row; 0: never
  int64_t hang_timeout_ms = 0;          // without a step; 0: off
  bool retries_same_error = false;      // that no new try mends
  int64_t lease_ms = 0;                 // how long a silent node is believed; 0: the master's own 3 s
  bool sized_by_platform = false;       // max_nodes is the environment's NODE_NUM
  bool rescale_signal = false;          // SIGUSR1 announces it to ranks that catch that
  bool save_at_breakpoint = false;      // for every Checkpointer, whatever it says itself
  int64_t restart_grace_ms = 500;       // = stop_timeout_ms where that was given and --restart-grace was not
  std::set<int> signals_to_handle;
  std::string signals_to_handle_text = "SIGTERM,SIGINT,SIGHUP,SIGQUIT";  // as given: TORCHELASTIC_SIGNALS_TO_HANDLE

  // Which CPUs and which device a worker gets.
  NumaBinding numa_binding = NumaBinding::kNone;
  std::string sysfs_root = "/sys";  // PHALANX_SYSFS_ROOT
  bool virtual_local_rank = false;

  // Output.
  std::string log_dir;  // empty: a fresh directory torchelastic_* under TMPDIR, made only when something is redirected
  StreamMap redirects;
  StreamMap tee;
  std::set<int> local_ranks_filter;  // empty: all
  std::string log_line_prefix_template;
  std::vector<std::string> stdout_filters;  // lines that hold one of them are copied to filtered_stdout.log
  std::vector<std::string> stderr_filters;
  EventLog event_log = EventLog::kNone;
  std::string event_log_file;  // kFile: absolute; empty: events.jsonl of the run's log directory
  LogFormat log_format = LogFormat::kText;
  int debug_rank = -1;  // the rank that gets the terminal; -1: none
  bool explain = false;

  // Warm workers.
  bool warm = true;
  std::string why_cold;  // why `warm` is false although no flag says so; empty: there is no such reason
  int spares = -1;       // -1: as many as nproc_per_node
  std::string preload;   // modules with commas between: PHALANX_PRELOAD of the zygote alone; empty: the environment's

  // Where things are.
  std::string state_root;         // of this user's jobs, resolved: what one launch learns, the next one uses
  std::string state_dir;          // <state_root>/<job>, or none@<host>-<port>
  std::string bootstrap_dir;      // PHALANX_BOOTSTRAP_DIR: where zygote.py and worker.py are; empty: looked for
  uint16_t port_range_first = 0;  // 0,0: any free port
  uint16_t port_range_last = 0;
  StoreRelayMode store_relay = StoreRelayMode::kAuto;
  std::string master_addr_env;            // PHALANX_MASTER_ADDR host:port; empty: embedded or endpoint
  std::string token;                      // --job-token-file, PHALANX_TOKEN, or made for kStandalone
  TlsFiles tls;                           // --tls-cert, --tls-key, --tls-ca, absolute; in place of a token
  std::vector<std::string> report_files;  // --report-file, absolute
  std::string replay_log;                 // --replay-log, absolute; empty: none is kept
  int64_t parent_pid = 0;                 // --parent-pid; 0: whoever started us may end before us
  std::string own_error_file;             // TORCHELASTIC_ERROR_FILE of phalanx-run itself
  bool omp_num_threads_unset = false;     // nproc > 1 and OMP_NUM_THREADS unset: workers get 1, with one notice

  // Flags that are accepted and have no effect here, as "--flag: why", said once at start.
  std::vector<std::string> notices;

  const std::string& ShownScript() const { return script_name.empty() ? script : script_name; }
};

}  // namespace phalanx::agent

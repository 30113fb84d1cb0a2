// phalanx-master: flags in, calls out.
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "agent/flags/elastic_config.h"
#include "agent/flags/flag_values.h"
#include "base/env.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/net.h"
#include "base/process/process.h"
#include "base/thread.h"
#include "cli/host.h"
#include "cli/state_dir.h"
#include "master/core/door.h"
#include "master/serve/server.h"

namespace phalanx::cli {
namespace {

constexpr std::chrono::hours kRecordsKeptFor{30 * 24};
constexpr int kNotStarted = 71;  // sysexits.h's EX_OSERR; 1 would say that the job has failed

struct MasterFlags {
  std::vector<std::string> hosts = {"127.0.0.1"};
  uint16_t port = 29400;
  std::string job_id = "none";
  bool any_job_id = false;
  std::string nnodes = "1:1";
  uint32_t node_unit = 1;
  std::optional<uint32_t> max_restarts;
  int64_t restart_window_s = 3'600;
  int64_t join_timeout_s = 600;
  int64_t last_call_ms = 300;
  int64_t rescale_grace_s = 30;
  uint32_t older_save_after_lives = 2;
  int64_t hang_timeout_s = 0;
  int64_t lease_s = 0;
  std::string straggler_rule = "mean";
  int64_t await_platform_s = 0;
  std::optional<uint32_t> epoch;
  uint32_t precheck = 0;
  bool excludes_stragglers = false;
  int64_t check_timeout_s = 60;
  bool retries_same_error = false;
  std::string elastic_config;
  std::string token_file;
  TlsFiles tls;
  bool require_token = false;
  std::string state_dir;
  std::string replay_log;
  bool resume = false;
  bool elected = false;
  uint64_t term = 0;
  uint64_t candidate_term = 0;
  std::string before_id;
  bool before_broke = false;
  bool embedded = false;
  bool spec_from_hello = false;
  int64_t linger_ms = 10'000;
  int ready_fd = -1;
  bool unnamed = false;
  bool verbose = false;
};

void DeclareWaits(CLI::App& app, MasterFlags& f) {
  app.add_option("--hang-timeout", f.hang_timeout_s,
                 "seconds without a step that end a round, as a failure does; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--lease", f.lease_s, "seconds that a silent node is believed; 0: 3, and longer in a large job")
      ->check(CLI::Range(0, 86'400))
      ->capture_default_str();
  app.add_option(
         "--await-platform", f.await_platform_s,
         "seconds that a round waits for what Kubernetes' operator has to say first: who goes, and where nodes are")
      ->check(CLI::Range(0, 3'600))
      ->envname("PHALANX_AWAIT_PLATFORM")  // masters before this one start with it all the same
      ->capture_default_str();
  app.add_option(
         "--epoch", f.epoch,
         "which of the masters that Kubernetes' operator gives the job one after the other, from 0: it makes room "
         "for a later one")
      ->envname("MASTER_EPOCH");
}

void DeclareChecks(CLI::App& app, MasterFlags& f) {
  app.add_option("--precheck", f.precheck,
                 "check nodes before they train: 1: alone and in pairs, 2: also all together; 0: not at all")
      ->check(CLI::Range(0, 2))
      ->capture_default_str();
  app.add_flag("--exclude-straggler", f.excludes_stragglers,
               "leave out slow nodes, whom a check or --watch-ranks names");
  app.add_option("--straggler-rule", f.straggler_rule, "which nodes are slow: mean or median (docs/node-health.md)")
      ->check(CLI::IsMember({"mean", "median"}))
      ->capture_default_str();
  app.add_option("--check-timeout", f.check_timeout_s, "seconds for each part of a check")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

void Declare(CLI::App& app, MasterFlags& f) {
  app.set_version_flag("--version", "phalanx-master " PHALANX_VERSION);
  app.add_option("--host", f.hosts, "addresses to listen on, and no others")->delimiter(',')->capture_default_str();
  app.add_option("--port", f.port, "port to listen on; 0: any free one")->capture_default_str();
  app.add_option("--job-id", f.job_id, "the job's id, as --rdzv-id of phalanx-run")
      ->capture_default_str()
      ->envname("PHALANX_MASTER_JOB_ID");  // as below
  app.add_flag("--any-job-id", f.any_job_id,
               "nodes may give the job another id: the token or the certificate that they show is enough")
      ->envname("PHALANX_ANY_JOB_ID");  // masters before it start with it all the same
  app.add_option("--nnodes", f.nnodes, "nodes of the job: N or MIN:MAX")->capture_default_str();
  app.add_option("--node-unit", f.node_unit, "train with a multiple of so many nodes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-restarts", f.max_restarts,
                 "worker failures the job survives; not given: 3, renewed by --restart-window of steps");
  app.add_option("--restart-window", f.restart_window_s, "seconds of steps that renew the restarts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--join-timeout", f.join_timeout_s, "seconds to wait for enough nodes")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--last-call-ms", f.last_call_ms, "milliseconds without a new node after which enough nodes start")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--rescale-grace", f.rescale_grace_s, "seconds that a planned change waits for ranks' safe points")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--older-save-after", f.older_save_after_lives,
                 "lives in a row that go on from a save and fail without a step before an older one is tried; 0: never")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  DeclareWaits(app, f);
  DeclareChecks(app, f);
  app.add_flag("--retry-same-error", f.retries_same_error,
               "restart also behind a mistake in the program that has come twice without a step between");
  app.add_option("--elastic-config", f.elastic_config,
                 "a DeepSpeed config with an elasticity block: rounds have world sizes that it grants");
  app.add_option("--token-file", f.token_file, "file with the job's token; else PHALANX_TOKEN");
  app.add_option("--tls-cert", f.tls.certificate, "in place of a token: this master's certificate, PEM");
  app.add_option("--tls-key", f.tls.key, "its private key, PEM");
  app.add_option("--tls-ca", f.tls.authority, "the authority whose certificates nodes show, PEM");
  app.add_flag("--require-token", f.require_token, "refuse to run without a token or certificate");
  app.add_option("--state-dir", f.state_dir, "folder of this job's record (default: ~/.local/state/phalanx/<job>)");
  app.add_flag("--resume", f.resume,
               "go on with the job of a master that has died: from the journal in --state-dir, or from its agents");
  app.add_option("--replay-log", f.replay_log,
                 "folder for a log of every step, which `phalanx replay` runs anew (docs/formats/replay-log.md)");
  app.add_flag("--verbose", f.verbose, "one line on stderr for each decision, also where embedded");
  const std::string group = "For phalanx-run, which starts a master as its child";
  app.add_flag("--embedded", f.embedded, "end some time after the last agent")->group(group);
  app.add_flag("--spec-from-hello", f.spec_from_hello, "take the job's shape from its first node")->group(group);
  app.add_option("--linger-ms", f.linger_ms, "how long to wait, embedded, for a next agent")->group(group);
  app.add_flag("--elected", f.elected, "with --resume: this job's master was elected, and is not at its endpoint")
      ->group(group);
  app.add_option("--term", f.term, "with --resume: of this job's master, where its journal does not say")->group(group);
  app.add_option("--candidate-term", f.candidate_term,
                 "the job's master is lost: take the job up, as its master of this term, if most of its nodes come")
      ->check(CLI::PositiveNumber)
      ->group(group);
  app.add_option("--before-id", f.before_id, "with --candidate-term: the id of that master")->group(group);
  app.add_flag("--before-broke", f.before_broke, "... and it was not silent: its stream broke a moment ago")
      ->group(group);
  app.add_flag("--unnamed", f.unnamed, "the record may go after 30 days: nobody chose the job's id")->group(group);
  app.add_option("--ready-fd", f.ready_fd, "say 'ready PORT' or 'error CODE SENTENCE' there")->group(group);
}

// Where nobody gives one: that of all jobs that keep their state beside this one. A phalanx-run has looked for its
// master.
StatusOr<std::string> Token(const MasterFlags& flags, const Environment& env, const std::string& state_dir) {
  if (flags.token_file.empty()) {
    const std::string given = env.NonEmptyOr("PHALANX_TOKEN", "");
    if (!given.empty() || flags.embedded) return given;
    return SharedTokenIn(StateRootOf(state_dir));
  }
  StatusOr<std::string> token = ReadPrivateLine(flags.token_file);
  if (!token.ok()) return WithContext(token.status(), "--token-file");
  if (token->empty())
    return absl::InvalidArgumentError(fmt::format("--token-file={}: the file is empty", flags.token_file));
  return agent::TokenIn(*token);
}

// Of an open job the master makes a token, for commands of this user; one that takes the job up keeps it. An open job
// goes on without where OpenSSL makes no certificate of it.
void MakeOwnToken(master::ServerOptions& options, std::string& token) {
  options.plain_nodes = true;
  const StatusOr<std::string> kept = ReadPrivateLine(options.state_dir + "/token");
  token = options.resume && kept.ok() && agent::CheckToken(*kept).ok() ? *kept : RandomHex(16);
  StatusOr<wire::Credentials> made = wire::Credentials::FromToken(token, wire::Role::kMaster);
  if (!made.ok()) return Log(LogLevel::kWarning, "no-status", {{"what", Message(made.status())}});
  options.credentials = *std::move(made);
}

Status ReadCredentials(const MasterFlags& flags, const Environment& env, master::ServerOptions& options,
                       std::string& token) {
  TlsFiles tls = flags.tls;
  if (!tls.any() && flags.token_file.empty()) tls = TlsFilesOf(env);
  if (tls.any() && !tls.whole()) {
    return absl::InvalidArgumentError(
        "--tls-cert, --tls-key, --tls-ca (PHALANX_TLS_CERT and so on): expected all three or none");
  }
  if (tls.given()) {
    PHX_ASSIGN_OR_RETURN(options.credentials, wire::Credentials::FromFiles(tls, wire::Side::kMaster));
    return absl::OkStatus();
  }
  PHX_ASSIGN_OR_RETURN(token, Token(flags, env, options.state_dir));
  if (token.empty() && flags.require_token) {
    return absl::InvalidArgumentError("--require-token: expected --token-file, PHALANX_TOKEN or --tls-cert");
  }
  if (token.empty()) {
    MakeOwnToken(options, token);
    return absl::OkStatus();
  }
  const Status good = agent::CheckToken(token);
  if (!good.ok()) return WithContext(good, flags.token_file.empty() ? "the job's token" : "--token-file");
  const std::string weakness = agent::TokenWeakness(token);
  if (!weakness.empty()) Log(LogLevel::kWarning, "weak-token", {{"what", weakness}});
  PHX_ASSIGN_OR_RETURN(options.credentials, wire::Credentials::FromToken(token, wire::Role::kMaster));
  return absl::OkStatus();
}

Status ReadElasticConfig(const std::string& path, v1::JobSpec& spec) {
  if (path.empty()) return absl::OkStatus();
  const std::string flag = fmt::format("--elastic-config={}", path);
  const StatusOr<std::string> text = agent::ReadConfigFile(path);
  if (!text.ok()) return WithContext(text.status(), flag);
  StatusOr<std::string> block = agent::ElasticBlock(*text);
  if (!block.ok()) return WithContext(block.status(), flag);
  spec.set_elastic_config(*std::move(block));
  const std::optional<std::string> fault = master::SpecFault(spec);
  return fault ? absl::InvalidArgumentError(*fault) : absl::OkStatus();
}

StatusOr<master::ServerOptions> Options(const MasterFlags& flags, const Environment& env, std::string& token) {
  master::ServerOptions options;
  options.hosts = flags.hosts;
  options.port = flags.port;
  options.job_id = flags.job_id;
  options.any_job_id = flags.any_job_id;
  options.verbose = flags.verbose || !flags.embedded;
  options.resume = flags.resume;
  options.await_platform_ms = flags.await_platform_s * 1'000;
  options.epoch = flags.epoch;
  if (flags.embedded) options.linger_ms = flags.linger_ms;
  options.succession = flags.embedded;
  options.elected = flags.elected;
  options.term = flags.term;
  options.candidate_term = flags.candidate_term;
  options.before_id = flags.before_id;
  options.before_broke = flags.before_broke;
  if (!flags.spec_from_hello) {
    auto nodes = agent::ParseNodes(flags.nnodes);
    if (nodes.ok()) nodes = agent::NodesInUnits(*nodes, flags.node_unit);
    if (!nodes.ok()) return WithContext(nodes.status(), fmt::format("--nnodes={}", flags.nnodes));
    v1::JobSpec& spec = options.spec.emplace();
    spec.set_min_nodes(nodes->first);
    spec.set_max_nodes(nodes->second);
    if (flags.max_restarts) spec.set_max_restarts(*flags.max_restarts);
    spec.set_restart_window_ms(flags.restart_window_s * 1'000);
    spec.set_join_timeout_ms(flags.join_timeout_s * 1'000);
    spec.set_last_call_ms(flags.last_call_ms);
    spec.set_node_unit(flags.node_unit);
    spec.set_rescale_grace_ms(flags.rescale_grace_s * 1'000);
    spec.set_older_save_after_lives(flags.older_save_after_lives);
    spec.set_hang_timeout_ms(flags.hang_timeout_s * 1'000);
    spec.set_lease_ms(flags.lease_s * 1'000);
    spec.set_retries_same_error(flags.retries_same_error);
    spec.mutable_check()->set_level(flags.precheck);
    spec.mutable_check()->set_excludes_stragglers(flags.excludes_stragglers);
    if (flags.straggler_rule == "median") spec.mutable_check()->set_straggler_rule(v1::CheckSpec::MEDIAN_DEVIATION);
    spec.mutable_check()->set_limit_ms(flags.check_timeout_s * 1'000);
    PHX_RETURN_IF_ERROR(ReadElasticConfig(flags.elastic_config, spec));
  }
  options.replay_log = flags.replay_log;
  options.state_dir = flags.state_dir;
  if (options.state_dir.empty()) {
    options.state_dir =
        fmt::format("{}/{}", DefaultStateRoot(env), agent::MastersDirectoryName(flags.job_id, Hostname(), flags.port));
  }
  PHX_RETURN_IF_ERROR(ReadCredentials(flags, env, options, token));
  if (options.any_job_id && options.plain_nodes) {
    return absl::InvalidArgumentError(
        "--any-job-id: expected a token or certificates: of an open job the id is all that its nodes show");
  }
  return options;
}

// Files by which `phalanx status` finds a live master; gone when it ends, unless they are another's by then.
class Signpost {
 public:
  Signpost(const std::string& folder, const std::string& host, uint16_t port, const std::string& token) {
    const std::string dial = host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
    Write(folder + "/address", JoinHostPort(dial, port));
    if (token.empty()) unlink((folder + "/token").c_str());  // of an earlier master, and nobody believes it now
    if (!token.empty()) Write(folder + "/token", token);
  }
  Signpost(const Signpost&) = delete;
  Signpost& operator=(const Signpost&) = delete;
  ~Signpost() {
    for (const auto& [path, text] : written_) {
      const StatusOr<std::string> now = ReadPrivateLine(path);
      if (now.ok() && *now == text) unlink(path.c_str());
    }
  }

 private:
  void Write(const std::string& path, const std::string& text) {
    const StatusOr<std::string> there = ReadPrivateLine(path);
    if (there.ok() && *there == text) return;  // a token file that was given to us stays
    const Status written = WritePrivateFile(path, text + "\n");
    if (!written.ok()) return Log(LogLevel::kWarning, "state-dir", {{"what", Message(written)}});
    written_.push_back({path, text});
  }

  std::vector<std::pair<std::string, std::string>> written_;
};

// `fd` is closed by that, but where it is `held`.
void SayReady(int fd, const std::string& line, bool held = false) {
  if (fd < 0) return;
  const std::string text = line + "\n";
  if (write(fd, text.data(), text.size()) < 0) Log(LogLevel::kWarning, "ready-fd", {{"what", "nobody listens"}});
  if (!held) close(fd);
}

// Waits for `wanted` of `signals`, or for the first when it is over. `leash`, where valid, is a socket whose other side
// closes it when a master that is to be elected is not wanted.
void WaitForEnd(int signals, Fd leash, int wanted, master::MasterServer& server, const std::atomic<bool>& over) {
  while (wanted > 0 && !over) {
    pollfd fds[] = {{signals, POLLIN, 0}, {leash.get(), POLLIN, 0}};  // one of -1 is passed over
    if (poll(fds, 2, -1) < 0) continue;                               // interrupted: no other error is possible here
    signalfd_siginfo signal;
    if (fds[0].revents != 0 && read(signals, &signal, sizeof signal) > 0) --wanted;
    if (fds[1].revents == 0) continue;
    server.LetGo();
    leash.Reset();
  }
}

int Fail(const MasterFlags& flags, const Status& why, int code) {
  const bool in_use = why.code() == absl::StatusCode::kAlreadyExists;
  SayReady(flags.ready_fd, fmt::format("error {} {}", in_use ? "address-in-use" : "failed", Message(why)));
  fmt::print(stderr, "phalanx-master: {}\n", Message(why));
  return code;
}

int Serve(const MasterFlags& flags, const Environment& env) {
  // First of all threads: they inherit the mask.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Sent to everything of a job by schedulers, as a word to the ranks.
  for (const int signal : {SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  ::signal(SIGPIPE, SIG_IGN);  // the ready descriptor's other end may be gone

  RaiseOpenFilesLimit(UINT64_MAX);  // a connection a node
  std::string token;                // of this user's commands; empty: certificates from files
  StatusOr<master::ServerOptions> options = Options(flags, env, token);
  if (!options.ok()) return Fail(flags, options.status(), 2);
  const Status folder = MakePrivateFolder(options->state_dir);
  if (!folder.ok()) return Fail(flags, WithContext(folder, "--state-dir"), kNotStarted);
  if (options->plain_nodes) {
    Log(LogLevel::kWarning, "no-token",
        {{"what", "whoever reaches this port and knows the job id may join; give --token-file or PHALANX_TOKEN"}});
  }
  StatusOr<std::unique_ptr<master::MasterServer>> server;
  std::optional<Signpost> signpost;
  const auto set_signpost = [&signpost, &server, &options, &token] {
    signpost.emplace(options->state_dir, options->hosts.front(), (*server)->port(), token);
  };
  options->on_elected = set_signpost;
  options->on_moved = [&signpost] { signpost.reset(); };
  server = master::MasterServer::Open(*options);
  if (!server.ok()) return Fail(flags, server.status(), kNotStarted);

  if (flags.unnamed) MarkUnnamed(options->state_dir);
  if (flags.candidate_term == 0) set_signpost();
  std::atomic<bool> over = false;
  const Fd signal_fd(signalfd(-1, &signals, SFD_CLOEXEC));
  if (!signal_fd.valid()) return Fail(flags, ErrnoStatus(errno, "signalfd"), kNotStarted);
  // Before the waiter, which closes it.
  const bool held = flags.candidate_term > 0;
  SayReady(flags.ready_fd, fmt::format("ready {}", (*server)->port()), held);
  StatusOr<std::thread> waiter = StartThread([&signal_fd, held, &server, &options, &flags, &over] {
    PruneUnnamedJobs(StateRootOf(options->state_dir), kRecordsKeptFor);
    // The first may have gone to everything on this node (the end of a Slurm step or of a container): agents that leave
    // still need their master, and it ends after the last of them.
    WaitForEnd(signal_fd.get(), Fd(held ? flags.ready_fd : -1), flags.embedded ? 2 : 1, **server, over);
    (*server)->Stop();
  });
  if (!waiter.ok()) {
    fmt::print(stderr, "phalanx-master: {}\n", Message(waiter.status()));
    return kNotStarted;
  }
  const int code = (*server)->Run();
  over = true;
  pthread_kill(waiter->native_handle(), SIGHUP);  // it waits for that, too
  waiter->join();
  return code;
}

}  // namespace
}  // namespace phalanx::cli

int main(int argc, char** argv) {
  // Costs a third of a registration's time, and finds nothing in a program of two threads.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  phalanx::cli::MasterFlags flags;
  CLI::App app("The master of one job: decides who trains with whom, and what happens after a failure.",
               "phalanx-master");
  phalanx::cli::Declare(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  return phalanx::cli::Serve(flags, phalanx::Environment::FromProcess());
}

// One row for each flag that phalanx-run knows, whether it acts on it or refuses it. Included by flag*.cc and
// completion.cc only.
#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "agent/flags/arg_parser.h"
#include "agent/flags/config.h"
#include "base/status.h"

namespace phalanx::agent {

enum class FlagFamily { kTorchrun, kDlrover, kPhalanx };

enum class FlagStanding {
  kSame,         // as torchrun's
  kBetter,       // torchrun's and more: the help says what
  kNew,          // ours
  kIgnored,      // accepted and checked, without effect here
  kRefused,      // known, not available yet
  kUnsupported,  // known, refused for good
};

enum class FlagGroup { kJob, kChecks, kRendezvous, kScript, kFailures, kOutput, kWarm, kPlaces, kSecurity, kOther };

// Where a value came from, for messages: "--nnodes" or "PET_NNODES".
struct GivenFlag {
  std::string source;
  std::string value;  // empty for switches
};

// What was given, before flags are weighed against each other.
struct Draft {
  LaunchConfig config;
  bool help = false;
  bool version = false;
  bool help_table = false;
  std::string completion;  // the script to print; empty: none was asked for
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool as_torch_launch = false;  // read as torch.distributed.launch reads its arguments
  bool use_env = false;          // its flag: the script gets no --local-rank
  bool standalone = false;
  bool numa_affinity = false;
  std::string backend = "static";
  std::string endpoint;
  std::string master_addr;
  std::optional<uint16_t> master_port;
  std::optional<int> node_rank;
  std::optional<uint32_t> node_unit;
  std::string elastic_config_file;
  std::optional<int64_t> stop_timeout_ms;      // --stop-timeout
  std::optional<int64_t> shutdown_timeout_ms;  // --shutdown-timeout
  std::optional<int64_t> restart_grace_ms;
  std::optional<int64_t> torch_shutdown_timeout_ms;
  std::string state_root;  // --state-dir
  std::string job_token_file;
  bool require_token = false;
  std::set<std::string> given;  // main names of the flags given, by command line or PET_*
  std::vector<std::string> notices;
};

// Checks one value and writes it into the draft. The error says what is expected; the caller names flag and value.
using FlagHandler = Status (*)(Draft& draft, const GivenFlag& given);

struct FlagRow {
  const char* names;  // "-r --redirects"; the last is the main name, and its underscore spelling is known as well
  Arity arity;
  const char* metavar;  // nullptr for switches
  bool pet;             // PET_<MAIN_NAME> sets it, too
  FlagFamily family;
  FlagStanding standing;
  FlagGroup group;
  const char* help;      // refused: what it will be, and what to do meanwhile
  FlagHandler handler;   // nullptr: refused
  const char* harmless;  // refused, but for this value, which asks for nothing; nullptr: no such value
};

std::span<const FlagRow> FlagTable();

// "--redirects"
std::string MainName(const FlagRow& row);
// "PET_REDIRECTS"
std::string PetName(const FlagRow& row);
// "-r, --redirects N"
std::string Spelling(const FlagRow& row);

// --help, for people, grouped.
std::string HelpText();

}  // namespace phalanx::agent

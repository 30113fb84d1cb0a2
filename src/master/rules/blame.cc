#include "master/rules/blame.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/signal_name.h"
#include "master/rules/last_exception.h"

namespace phalanx::master {
namespace {

// What is said by a rank whose peer is gone. Each is a fragment of the last exception, case-sensitive.
constexpr std::string_view kPeerIsGone[] = {
    // The system.
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Software caused connection abort",
    // gloo.
    "gloo/transport/tcp",
    "Connection was likely closed",
    // NCCL and its process group.
    "ncclRemoteError",
    "ncclSystemError",
    "remote process exited or there was a network error",
    "NCCL communicator was aborted",
    "Some NCCL operations have failed or timed out",
    "Watchdog caught collective operation timeout",
    "Process group watchdog thread terminated with exception",
    "ProcessGroupNCCL's watchdog",
    // The c10d store of a round whose first node is gone.
    "DistNetworkError",
    "DistStoreError",
    "failed to recv, got 0 bytes",
    "The client socket has failed to connect",
    "TCPStore",
};

// The exception stands at the end; what a script printed earlier says nothing about its end.
constexpr size_t kExceptionTailBytes = 4'096;

// "XID 79 (...) on GPU 3, 0.4 s before" -> ", 0.4 s after XID 79 (...) on GPU 3"; another form stays as it is.
std::string AfterWhat(const std::string& blamed_on) {
  constexpr std::string_view kBefore = " before";
  const size_t comma = blamed_on.rfind(", ");
  if (blamed_on.empty()) return "";
  if (comma == std::string::npos || !blamed_on.ends_with(kBefore)) return fmt::format(", behind {}", blamed_on);
  const std::string span = blamed_on.substr(comma + 2, blamed_on.size() - comma - 2 - kBefore.size());
  return fmt::format(", {} after {}", span, blamed_on.substr(0, comma));
}

bool SaysPeerIsGone(std::string_view text) {
  return std::any_of(std::begin(kPeerIsGone), std::end(kPeerIsGone),
                     [text](std::string_view said) { return text.find(said) != std::string_view::npos; });
}

}  // namespace

std::string RecordedMessage(const std::string& error_json) {
  if (error_json.empty()) return "";
  const nlohmann::json parsed = nlohmann::json::parse(error_json, nullptr, /*allow_exceptions=*/false);
  if (!parsed.is_object()) return error_json;
  const auto message = parsed.find("message");
  if (message == parsed.end()) return error_json;
  if (message->is_string()) return message->get<std::string>();
  if (!message->is_object()) return error_json;
  const auto inner = message->find("message");
  return inner != message->end() && inner->is_string() ? inner->get<std::string>() : error_json;
}

bool IsCollateral(const v1::WorkerExited& exit) {
  if (exit.signal() == SIGPIPE) return true;
  // Other signals come from the system, a person or the script's own fault; only NCCL's watchdog aborts for others'
  // sake.
  if (exit.signal() != 0 && exit.signal() != SIGABRT) return false;
  const std::string recorded = RecordedMessage(exit.error_json());
  if (!recorded.empty()) return SaysPeerIsGone(recorded);
  std::string_view tail = exit.last_words();
  tail.remove_prefix(tail.size() - std::min(tail.size(), kExceptionTailBytes));
  return SaysPeerIsGone(tail);
}

bool EndedEarly(const v1::WorkerExited& exit) { return exit.exit_code() == 0 && exit.signal() == 0; }

bool WasKilled(const v1::WorkerExited& exit) { return exit.signal() == SIGKILL || exit.signal() == SIGTERM; }

void AddFailure(std::vector<Failure>& failures, Failure failure) {
  if (failures.size() < kMaxFailures) return failures.push_back(std::move(failure));
  if (failure.collateral) return;
  const auto last = std::find_if(failures.rbegin(), failures.rend(), [](const Failure& f) { return f.collateral; });
  if (last != failures.rend()) *last = std::move(failure);
}

size_t FirstCause(const std::vector<Failure>& failures) {
  const auto first = [&failures](auto is) {
    return static_cast<size_t>(std::find_if(failures.begin(), failures.end(), is) - failures.begin());
  };
  const size_t own = first([](const Failure& f) { return !f.collateral; });
  if (own < failures.size()) return own;
  // What is said of a peer that is gone is also said where a device or a link of one's own is.
  const size_t blamed = first([](const Failure& f) { return !f.told.exited().blamed_on().empty(); });
  if (blamed < failures.size()) return blamed;
  const size_t early = first([](const Failure& f) { return EndedEarly(f.told.exited()); });
  return early < failures.size() ? early : 0;
}

bool AllCollateral(const std::vector<Failure>& failures) {
  return std::all_of(failures.begin(), failures.end(), [](const Failure& f) { return f.collateral; });
}

std::string EarlyEndText(int64_t rank, int64_t steps) {
  return fmt::format("rank {} ended early (exit code 0{})", rank,
                     steps > 0 ? fmt::format(", after step {}", steps) : "");
}

std::string DescribeEnd(const Failure& f) {
  const v1::WorkerExited& exit = f.told.exited();
  const uint32_t rank = f.told.rank();
  std::string text = fmt::format("rank {} failed (exit code {})", rank, exit.exit_code());
  if (EndedEarly(exit)) text = EarlyEndText(rank, exit.steps());
  if (exit.signal() != 0)
    text =
        fmt::format("rank {} died ({}{})", rank, SignalName(exit.signal()), exit.core_dumped() ? ", core dumped" : "");
  if (!exit.killed_by().empty()) text = fmt::format("rank {} was killed by {}", rank, exit.killed_by());
  text += fmt::format(" on node {}{}", f.node, AfterWhat(exit.blamed_on()));
  return exit.end_note().empty() ? text : fmt::format("{} ({})", text, exit.end_note());
}

std::string Describe(const Failure& f) {
  const std::string exception = EndedEarly(f.told.exited()) ? "" : LastException(f.told.exited());
  return exception.empty() ? DescribeEnd(f) : fmt::format("{}: {}", DescribeEnd(f), exception);
}

std::string DescribeCause(const std::vector<Failure>& failures) {
  const Failure& cause = failures[FirstCause(failures)];
  if (!EndedEarly(cause.told.exited())) return Describe(cause);
  const auto failed =
      std::find_if(failures.begin(), failures.end(), [](const Failure& f) { return !EndedEarly(f.told.exited()); });
  return failed == failures.end() ? Describe(cause) : fmt::format("{}, then {}", Describe(cause), Describe(*failed));
}

}  // namespace phalanx::master

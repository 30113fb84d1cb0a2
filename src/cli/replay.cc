#include "cli/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "agent/replay/player.h"
#include "cli/rows.h"
#include "master/replay/player.h"
#include "replay/log.h"
#include "replay/text.h"

namespace phalanx::cli {
namespace {

using nlohmann::ordered_json;
using replay::LogEnd;
using replay::LogReader;
using replay::RecordedStep;

using Print = std::function<void(const std::string&)>;

constexpr size_t kMaxShownBytes = 160;

StatusOr<std::unique_ptr<replay::Player>> PlayerOf(const v1::ReplayStart& start) {
  return start.has_master() ? master::PlayMaster(start) : agent::PlayAgent(start);
}

std::string MasterText(const v1::MasterEvent& event) {
  switch (event.body_case()) {
    case v1::MasterEvent::kAttached:
      return fmt::format("stream {} from {}: {}", event.attached().session(), event.attached().peer_address(),
                         replay::OneLine(event.attached().message()));
    case v1::MasterEvent::kSaid:
      return fmt::format("stream {}: {}", event.said().session(), replay::OneLine(event.said().message()));
    case v1::MasterEvent::kDetached:
      return fmt::format("stream {} ends: {}", event.detached().session(), event.detached().cause());
    case v1::MasterEvent::kTick:
      return "time has passed";
    case v1::MasterEvent::kResumed:
      return "the job is taken up";
    case v1::MasterEvent::kProbed:
      return replay::OneLine(event.probed());
    case v1::MasterEvent::kLookedAt:
      return event.looked_at().ranks() ? "somebody looks at the ranks" : "somebody looks at the job";
    case v1::MasterEvent::kLetIn:
      return fmt::format("somebody lets node {} in", event.let_in().node());
    case v1::MasterEvent::kPlatformSaid:
      return "the platform: " + replay::OneLine(event.platform_said());
    case v1::MasterEvent::kPlatformGone:
      return "the platform is gone";
    case v1::MasterEvent::BODY_NOT_SET:
      return "";
  }
  return "";
}

std::string EventText(const v1::ReplayEvent& event) {
  if (event.has_master()) return MasterText(event.master());
  return event.agent().has_tick() ? "time has passed" : replay::OneLine(event.agent());
}

// One step that has been run anew.
struct Played {
  int64_t at_ms = 0;  // since the start
  std::string event;
  std::optional<v1::ReplayDecisions> recorded;
  v1::ReplayDecisions replayed;
  std::optional<int> difference;  // which decision
};

// A difference, for the end.
struct Difference {
  int64_t event = 0;  // from 1
  Played step;
};

struct Sum {
  int64_t events = 0;
  int64_t decisions = 0;
  int64_t different = 0;  // events
  std::optional<Difference> first;
};

const v1::ReplayDecision* DecisionAt(const v1::ReplayDecisions& decisions, int index) {
  return index < decisions.decisions_size() ? &decisions.decisions(index) : nullptr;
}

std::string SpanText(int64_t ms) { return fmt::format("{:>6}.{:03} s", ms / 1'000, ms % 1'000); }

// --- for people ---------------------------------------------------------------------------------------------------

class TextTeller {
 public:
  TextTeller(const Print& print, bool all) : print_(print), all_(all) {}

  void Start(const v1::ReplayStart& start) {
    std::string who = fmt::format("master {}", start.master().master_id());
    if (start.has_agent()) who = fmt::format("agent {} on {}", start.agent().node_id(), start.agent().hostname());
    Line(fmt::format("{} of job '{}', recorded by Phalanx {} from {}", who, start.job_id(), start.software_version(),
                     Clock(start.unix_ms(), true)));
    if (start.software_version() != PHALANX_VERSION) {
      Line(fmt::format("this is Phalanx {}, which may decide otherwise", PHALANX_VERSION));
    }
    Line("");
  }

  void Step(const Played& step) {
    const bool quiet = step.replayed.decisions().empty() && !step.difference && step.recorded;
    if (quiet && !all_) {
      ++left_out_;
      return;
    }
    TellLeftOut();
    Line(fmt::format("{}  {}", SpanText(step.at_ms), Short(step.event)));
    for (int i = 0; i < step.replayed.decisions_size(); ++i) {
      if (step.difference == i) Line("            ! here it differs from what was recorded");
      const v1::ReplayDecision& decision = step.replayed.decisions(i);
      Line("            " + Text(Short(decision.action()), Short(decision.reason())));
    }
    if (step.difference == step.replayed.decisions_size()) Line("            ! here it differs from what was recorded");
    if (!step.recorded) Line("            ! its decisions are not in the log");
  }

  void End(const Sum& sum, LogEnd end, uint64_t torn_bytes) {
    TellLeftOut();
    Line("");
    if (end == LogEnd::kFull) Line("the log came to its bound here; the process went on");
    if (end == LogEnd::kCutOff) Line("the log has no end: its process was killed, or still runs");
    if (torn_bytes > 0) Line(fmt::format("the last {} bytes are part of a frame, and left out", torn_bytes));
    const std::string counts = fmt::format("{} events, {} decisions", sum.events, sum.decisions);
    if (!sum.first) return Line(fmt::format("{}: all the same", counts));
    const Played& step = sum.first->step;
    const int index = *step.difference;
    Line(fmt::format("{}: different in {} events, first in event {} at{}, decision {}", counts, sum.different,
                     sum.first->event, SpanText(step.at_ms), index + 1));
    Line("  event:    " + step.event);
    Line("  recorded: " + Whole(DecisionAt(*step.recorded, index)));
    Line("  replayed: " + Whole(DecisionAt(step.replayed, index)));
  }

 private:
  static std::string Text(const std::string& action, const std::string& reason) {
    if (reason.empty()) return fmt::format("-> {}", action);
    return fmt::format("-> {}, because: {}", action, reason);
  }

  static std::string Whole(const v1::ReplayDecision* decision) {
    return decision == nullptr ? "nothing" : Text(decision->action(), decision->reason());
  }

  std::string Short(const std::string& text) const {
    if (all_ || text.size() <= kMaxShownBytes) return text;
    return text.substr(0, kMaxShownBytes) + "...";
  }

  // One line, whatever is in the text.
  void Line(std::string text) {
    std::replace(text.begin(), text.end(), '\n', ' ');
    print_(Printable(std::move(text)) + "\n");
  }

  void TellLeftOut() {
    if (left_out_ > 0) Line(fmt::format("            ({} events without a decision; --all shows them)", left_out_));
    left_out_ = 0;
  }

  const Print& print_;
  const bool all_;
  int64_t left_out_ = 0;
};

// --- for programs -------------------------------------------------------------------------------------------------

class JsonTeller {
 public:
  explicit JsonTeller(const Print& print) : print_(print) {}

  void Start(const v1::ReplayStart& start) {
    Line({{"of", start.has_master() ? "master" : "agent"},
          {"id", start.has_master() ? start.master().master_id() : start.agent().node_id()},
          {"job_id", start.job_id()},
          {"version", start.software_version()},
          {"unix_ms", start.unix_ms()}});
  }

  void Step(const Played& step) {
    ordered_json line = {{"ms", step.at_ms},
                         {"event", step.event},
                         {"decisions", Json(step.replayed)},
                         {"same", !step.difference.has_value()}};
    if (step.difference) line["recorded"] = Json(*step.recorded);
    if (!step.recorded) line["recorded"] = nullptr;
    Line(line);
  }

  void End(const Sum& sum, LogEnd end, uint64_t torn_bytes) {
    const char* const how = end == LogEnd::kClosed ? "closed" : end == LogEnd::kFull ? "full" : "cut off";
    ordered_json line = {{"events", sum.events}, {"decisions", sum.decisions}, {"different", sum.different},
                         {"end", how},           {"torn_bytes", torn_bytes},   {"same", !sum.first.has_value()}};
    if (sum.first) {
      line["first_difference"] = {{"event", sum.first->event}, {"decision", *sum.first->step.difference + 1}};
    }
    Line(line);
  }

 private:
  static ordered_json Json(const v1::ReplayDecisions& decisions) {
    ordered_json list = ordered_json::array();
    for (const v1::ReplayDecision& decision : decisions.decisions()) {
      list.push_back({{"action", decision.action()}, {"reason", decision.reason()}});
    }
    return list;
  }

  void Line(const ordered_json& line) { print_(Dump(line, -1)); }

  const Print& print_;
};

// --- the run ------------------------------------------------------------------------------------------------------

void Count(Sum& sum, const Played& step) {
  ++sum.events;
  sum.decisions += step.replayed.decisions_size();
  if (!step.difference) return;
  ++sum.different;
  if (!sum.first) sum.first = {sum.events, step};
}

template <typename Teller>
StatusOr<bool> Run(LogReader reader, Teller teller) {
  PHX_ASSIGN_OR_RETURN(const std::unique_ptr<replay::Player> player, PlayerOf(reader.start()));
  teller.Start(reader.start());
  Sum sum;
  while (true) {
    PHX_ASSIGN_OR_RETURN(std::optional<RecordedStep> recorded, reader.Next());
    if (!recorded) break;
    Played step;
    step.at_ms = recorded->event.now_ms() - reader.start().now_ms();
    step.event = EventText(recorded->event);
    PHX_ASSIGN_OR_RETURN(step.replayed, player->Step(recorded->event));
    step.recorded = std::move(recorded->decisions);
    if (step.recorded) step.difference = replay::FirstDifference(*step.recorded, step.replayed);
    Count(sum, step);
    teller.Step(step);
  }
  teller.End(sum, reader.end(), reader.torn_bytes());
  return !sum.first.has_value();
}

}  // namespace

StatusOr<bool> ReplayLog(std::string_view log, const ReplayView& view, const Print& print) {
  PHX_ASSIGN_OR_RETURN(LogReader reader, LogReader::Open(log));
  if (view.json) return Run(std::move(reader), JsonTeller(print));
  return Run(std::move(reader), TextTeller(print, view.all));
}

}  // namespace phalanx::cli

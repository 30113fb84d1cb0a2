#include "cli/ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "cli/phase_text.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

using nlohmann::ordered_json;

// More than any job has: times of so many ranks still have room in their sum.
constexpr int64_t kMaxRanks = 1 << 24;

// What the whole record says of one round, also in rows that came after its end.
struct Life {
  std::optional<int64_t> stepping_at;  // every rank has made a step
  int64_t saving_ms = 0;               // in all
  int64_t saving_at_stepping_ms = 0;   // before that: part of starting or recovering
  bool told = false;                   // its ranks call phalanx.step
  int64_t from_step = 0;               // behind which it began
  std::optional<int64_t> last_step;    // of the round before
  int64_t redo_until = 0;              // of all before
  std::optional<int64_t> caught_up_at;
  int64_t saving_at_caught_up_ms = 0;
  // From when no step came, to when one did.
  std::vector<std::pair<int64_t, std::optional<int64_t>>> stalls;
};

// Books time from the beginning on, gapless: every entry begins where the last one ended.
class Bookkeeper {
 public:
  Bookkeeper(const std::vector<Row>& rows, int64_t begin) : rows_(rows), at_(begin) {
    ledger_.begin_unix_ms = begin;
    int64_t latest = begin;
    for (const Row& row : rows) times_.push_back(latest = std::max(latest, row.unix_ms));
    for (size_t i = 0; i < rows.size(); ++i) Learn(i);
    if (no_steps_ && ended_well_) {
      for (size_t i = 0; i < rows.size(); ++i) {
        if (rows[i].kind == "round-started") lives_[rows[i].epoch].stepping_at = times_[i];
      }
      ledger_.notes.push_back("no step was seen: rounds are taken for training from their beginning");
    }
  }

  // What a live master knows beyond its rows.
  void LearnSaving(uint64_t epoch, int64_t saving_ms) {
    Life& life = lives_[epoch];
    life.saving_ms = std::max(life.saving_ms, saving_ms);
  }

  Ledger Book(int64_t end) && {
    size_t after_turn = 0;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (!IsTurn(rows_[i]) || ended_) continue;
      Turn(after_turn, i);
      after_turn = i + 1;
    }
    end = std::max(end, times_.empty() ? at_ : times_.back());
    if (live_) EndLife(after_turn, rows_.size(), end);
    Add(ended_ ? Cause::kEnding : live_ ? Cause::kRecovering : Cause::kWaiting, end);
    ledger_.end_unix_ms = end;
    NoteUntold();
    return std::move(ledger_);
  }

 private:
  void Learn(size_t i) {
    const Row& row = rows_[i];
    const bool telling = row.kind == "round-stepping" || row.kind == "steps-told" || row.kind == "caught-up" ||
                         row.kind == "saving" || row.kind == "job-finished" || row.kind == "record-lost" ||
                         row.kind == "stalled" || row.kind == "stall-over" || row.kind == "hang";
    if (row.kind == "first-step" || row.kind == "steps-told") no_steps_ = false;
    if (row.kind == "worker-exited") ends_[row.epoch].push_back(&row);
    if (!telling) return;
    const ordered_json detail = Detail(row);
    if (row.kind == "job-finished") ended_well_ = NumberIn(detail, "exit_code") == 0;
    if (row.kind == "record-lost") ledger_.notes.push_back(Printable(row.reason) + ": times there may be misplaced");
    Life& life = lives_[row.epoch];
    const int64_t saving_ms = std::max<int64_t>(0, NumberIn(detail, "saving_ms"));
    life.saving_ms = std::max(life.saving_ms, saving_ms);
    // A master that was started anew hears of each once more, and says so: the first counts.
    if (row.kind == "round-stepping") {
      if (life.stepping_at) return;
      life.stepping_at = times_[i];
      life.saving_at_stepping_ms = saving_ms;
    } else if (row.kind == "steps-told") {
      if (life.told) return;
      life.told = true;
      life.from_step = std::max<int64_t>(0, NumberIn(detail, "from_step"));
      life.redo_until = NumberIn(detail, "highest_step");
      if (detail.contains("last_step")) life.last_step = std::max<int64_t>(0, NumberIn(detail, "last_step"));
    } else if (row.kind == "caught-up") {
      if (life.caught_up_at) return;
      life.caught_up_at = times_[i] - std::max<int64_t>(0, NumberIn(detail, "ms_ago"));
      life.saving_at_caught_up_ms = saving_ms;
    } else if (row.kind == "stalled" || (row.kind == "hang" && (life.stalls.empty() || life.stalls.back().second))) {
      life.stalls.push_back({times_[i] - std::max<int64_t>(0, NumberIn(detail, "silent_ms")), std::nullopt});
    } else if (row.kind == "stall-over" && !life.stalls.empty() && !life.stalls.back().second) {
      life.stalls.back().second = times_[i];
    }
  }

  // Books up to the decision in row `i`; those from `first` on came after the one before.
  void Turn(size_t first, size_t i) {
    const Row& turn = rows_[i];
    const ordered_json detail = Detail(turn);
    const bool finished = turn.kind == "job-finished";
    const bool well = finished && NumberIn(detail, "exit_code") == 0;
    if (live_ && well) {
      BookLife(times_[i]);
    } else if (live_) {
      EndLife(first, i, times_[i]);
      if (finished && incident_) ledger_.incidents[*incident_].ended_job = true;
      Add(finished ? Cause::kEnding : Cause::kRecovering, times_[i]);
    } else {
      Add(Cause::kWaiting, times_[i]);
    }
    live_ = turn.kind == "round-started";
    ended_ = finished;
    if (finished) incident_.reset();
    if (!live_) return;
    epoch_ = turn.epoch;
    ranks_ = std::clamp<int64_t>(NumberIn(detail, "world_size"), 0, kMaxRanks);
  }

  // Books the live round up to what ended it, which becomes an incident: the first cause between two rows, or, where
  // there is none, the decision in row `end`. Without a decision and without a cause the round goes on.
  void EndLife(size_t first, size_t end, int64_t until) {
    const Row* turn = end < rows_.size() ? &rows_[end] : nullptr;
    size_t cause = first;
    while (cause < end && !IsCause(rows_[cause], turn)) ++cause;
    if (cause == end && turn == nullptr) return BookLife(until);
    Incident incident;
    int64_t at = until;
    if (cause < end) {
      const ordered_json detail = Detail(rows_[cause]);
      if (detail.contains("silent_ms")) incident.noticed_ms = std::max<int64_t>(0, NumberIn(detail, "silent_ms"));
      at = std::clamp(times_[cause] - incident.noticed_ms.value_or(0), at_, until);
      const Row* first_cause = FirstCause(rows_[cause]);
      incident.first_cause = first_cause->reason;
      incident.node = first_cause->node;
      incident.rank = first_cause->rank;
    }
    BookLife(at);
    incident.unix_ms = at;
    incident.epoch = epoch_;
    incident.what = turn != nullptr ? turn->reason : incident.first_cause;
    const Life& life = lives_[epoch_];
    if (!life.stepping_at && !life.told) incident.steps_lost = 0;
    incident_ = ledger_.incidents.size();
    if (!incident.steps_lost || !loser_) loser_ = incident_;
    ledger_.incidents.push_back(std::move(incident));
  }

  bool IsCause(const Row& row, const Row* turn) const {
    if (row.kind == "worker-exited") return row.epoch == epoch_ && IsFailure(row);
    if (row.kind != "node-lost" && row.kind != "node-left") return false;
    if (NumberIn(Detail(row), "broke_round") != 0) return true;
    // Records of older versions say it in the sentence alone.
    return turn != nullptr && turn->reason.starts_with(row.reason);
  }

  // Of several workers' ends the one that the others suffered from, which may be recorded late.
  const Row* FirstCause(const Row& cause) const {
    if (cause.kind != "worker-exited") return &cause;
    const Row* first = FirstCauseOf(ends_.at(epoch_), epoch_);
    return first != nullptr ? first : &cause;
  }

  // Books the live round up to `until`.
  void BookLife(int64_t until) {
    const Life& life = lives_[epoch_];
    const bool stepped = life.stepping_at && *life.stepping_at <= until;
    Add(incident_ ? Cause::kRecovering : Cause::kStarting, stepped ? *life.stepping_at : until);
    if (!stepped) return;
    incident_.reset();
    int64_t saved_ms = life.saving_at_stepping_ms;
    if (loser_) {
      Incident& loser = ledger_.incidents[*loser_];
      if (!loser.steps_lost) loser.steps_untold = !life.told;
      if (life.told && life.last_step) loser.steps_lost = std::max<int64_t>(0, *life.last_step - life.from_step);
    }
    if (life.told && life.from_step < life.redo_until) {
      const bool caught_up = life.caught_up_at && *life.caught_up_at <= until;
      const int64_t saving_ms = caught_up ? life.saving_at_caught_up_ms : life.saving_ms;
      AddStalls(life, caught_up ? *life.caught_up_at : until);
      AddWithSaving(Cause::kRedoing, caught_up ? *life.caught_up_at : until, saving_ms - saved_ms);
      saved_ms = std::max(saved_ms, saving_ms);
    }
    AddStalls(life, until);
    AddWithSaving(Cause::kTraining, until, life.saving_ms - saved_ms);
    loser_.reset();
  }

  // What the life's stalls took between what is booked and `until`. Their order among other entries does not matter.
  void AddStalls(const Life& life, int64_t until) {
    const int64_t from = at_;
    int64_t stalled_ms = 0;
    for (const auto& [begin, end] : life.stalls) {
      stalled_ms += std::max<int64_t>(0, std::min(end.value_or(until), until) - std::max(begin, from));
    }
    Add(Cause::kStalled, std::min(until, from + stalled_ms));
  }

  void AddWithSaving(Cause cause, int64_t until, int64_t saving_ms) {
    // Agents tell of their saves by clocks of their own: never more than there is.
    const int64_t most = std::max<int64_t>(0, until - at_);
    Add(Cause::kSaving, at_ + std::clamp<int64_t>(saving_ms, 0, most));
    Add(cause, until);
  }

  // The time from where the last entry ended until `until` has this cause.
  void Add(Cause cause, int64_t until) {
    const int64_t ms = std::max<int64_t>(0, until - at_);
    at_ += ms;
    ledger_.ms[static_cast<size_t>(cause)] += ms;
    const std::optional<size_t> whose = cause == Cause::kRedoing ? loser_ : incident_;
    if (!whose) return;
    Incident& incident = ledger_.incidents[*whose];
    if (cause == Cause::kRedoing) incident.redoing_ms += ms;
    if (cause == Cause::kRecovering) incident.recovering_ms += ms;
    if (cause == Cause::kWaiting) incident.waiting_ms += ms;
    const bool counts = cause == Cause::kRedoing || cause == Cause::kRecovering || cause == Cause::kWaiting;
    if (counts) incident.rank_ms += ms * ranks_;
  }

  void NoteUntold() {
    const auto untold = std::count_if(ledger_.incidents.begin(), ledger_.incidents.end(),
                                      [](const Incident& incident) { return incident.steps_untold; });
    if (untold == 0) return;
    ledger_.notes.push_back(fmt::format(
        "redoing is unknown for {} of {} incidents: the script does not call phalanx.step, so steps that it "
        "did again are counted as training",
        untold, ledger_.incidents.size()));
  }

  const std::vector<Row>& rows_;
  std::vector<int64_t> times_;  // of the rows, never decreasing
  std::map<uint64_t, Life> lives_;
  std::map<uint64_t, std::vector<const Row*>> ends_;  // of workers, by round
  bool no_steps_ = true;
  bool ended_well_ = false;

  Ledger ledger_;
  int64_t at_;  // everything before is booked
  bool live_ = false;
  bool ended_ = false;
  uint64_t epoch_ = 0;
  int64_t ranks_ = 0;
  std::optional<size_t> incident_;  // whose consequences go on
  std::optional<size_t> loser_;     // the last one that cost steps, until they have been done again
};

constexpr std::array<std::pair<Cause, const char*>, kCauses> kNames = {{{Cause::kTraining, "training"},
                                                                        {Cause::kSaving, "saving"},
                                                                        {Cause::kStalled, "stalled"},
                                                                        {Cause::kRedoing, "redoing"},
                                                                        {Cause::kRecovering, "recovering"},
                                                                        {Cause::kWaiting, "waiting for nodes"},
                                                                        {Cause::kStarting, "starting"},
                                                                        {Cause::kEnding, "ending"}}};

std::string Seconds(int64_t ms) { return fmt::format("{}.{:03} s", ms / 1'000, ms % 1'000); }

// "99.2 %"; never more than it is.
std::string Share(int64_t ms, int64_t of_ms) {
  const int64_t permille = of_ms == 0 ? 0 : ms * 1'000 / of_ms;
  return fmt::format("{}.{} %", permille / 10, permille % 10);
}

std::string StepsLost(const Incident& incident) {
  if (incident.steps_lost) return fmt::format("{}", *incident.steps_lost);
  return incident.steps_untold ? "unknown" : "-";
}

Incident Sum(const std::vector<Incident>& incidents) {
  Incident sum;
  for (const Incident& incident : incidents) {
    sum.recovering_ms += incident.recovering_ms;
    sum.waiting_ms += incident.waiting_ms;
    sum.redoing_ms += incident.redoing_ms;
    sum.rank_ms += incident.rank_ms;
    sum.steps_untold = sum.steps_untold || incident.steps_untold;
    if (incident.steps_lost) sum.steps_lost = sum.steps_lost.value_or(0) + *incident.steps_lost;
  }
  return sum;
}

std::vector<std::string> IncidentRow(const std::string& when, const Incident& incident, const std::string& what) {
  return {when,
          Seconds(incident.recovering_ms),
          Seconds(incident.waiting_ms),
          Seconds(incident.redoing_ms),
          StepsLost(incident),
          Seconds(incident.rank_ms),
          incident.noticed_ms ? Seconds(*incident.noticed_ms) : "-",
          what};
}

std::string IncidentTable(const Ledger& ledger) {
  std::vector<std::vector<std::string>> table = {
      {"WHEN", "RECOVERING", "WAITING", "REDOING", "STEPS LOST", "RANK TIME", "NOTICED AFTER", "WHAT"}};
  for (const Incident& incident : ledger.incidents) {
    std::string what = incident.what;
    // The decision names the first report; who was to blame may have become known after it.
    if (!incident.first_cause.empty() && !what.starts_with(incident.first_cause)) {
      what += fmt::format("; first cause: {}", incident.first_cause);
    }
    if (incident.ended_job) what += " (the end of the job)";
    table.push_back(IncidentRow(Clock(incident.unix_ms, true), incident, Printable(what)));
  }
  if (ledger.incidents.size() > 1) {
    const std::string count = fmt::format("{} incidents", ledger.incidents.size());
    table.push_back(IncidentRow("all", Sum(ledger.incidents), count));
  }
  return Table(table);
}

}  // namespace

Ledger MakeLedger(const JobView& view, int64_t now_unix_ms) {
  const v1::StatusReply& status = view.status;
  const int64_t first = view.rows.empty() ? status.started_unix_ms() : view.rows.front().unix_ms;
  Bookkeeper bookkeeper(view.rows, std::min(status.started_unix_ms(), first));
  if (view.live) bookkeeper.LearnSaving(status.epoch(), status.saving_ms());
  return std::move(bookkeeper).Book(view.live ? now_unix_ms : 0);
}

std::string LedgerText(const JobView& view, const Ledger& ledger) {
  const v1::StatusReply& s = view.status;
  const int64_t wall_ms = ledger.end_unix_ms - ledger.begin_unix_ms;
  std::string out = fmt::format("job {}: {}", Printable(s.job_id()), PhaseText(s));
  if (s.phase() == "unfinished") out += " (its master is gone, and has not recorded an end: up to its last row)";
  if (s.phase() == kNotAnswering) out += " (up to the last row of its record)";
  out += fmt::format("\n{} to {}{}: {}, goodput {}\n\n", Clock(ledger.begin_unix_ms, true),
                     Clock(ledger.end_unix_ms, true), view.live ? " (now)" : "", Seconds(wall_ms),
                     Share(ledger.Of(Cause::kTraining), wall_ms));
  std::vector<std::vector<std::string>> table = {{"CAUSE", "TIME", "SHARE"}};
  for (const auto& [cause, name] : kNames) {
    table.push_back({name, Seconds(ledger.Of(cause)), Share(ledger.Of(cause), wall_ms)});
  }
  table.push_back({"all", Seconds(wall_ms), ""});
  out += Table(table);
  for (const std::string& note : ledger.notes) out += fmt::format("\n{}\n", note);
  if (ledger.incidents.empty()) return out + "\nno incidents\n";
  return out + "\n" + IncidentTable(ledger);
}

std::string LedgerJson(const JobView& view, const Ledger& ledger) {
  const v1::StatusReply& s = view.status;
  const int64_t wall_ms = ledger.end_unix_ms - ledger.begin_unix_ms;
  ordered_json causes = ordered_json::object();
  for (const auto& [cause, name] : kNames) {
    causes[cause == Cause::kWaiting ? "waiting_ms" : fmt::format("{}_ms", name)] = ledger.Of(cause);
  }
  ordered_json incidents = ordered_json::array();
  for (const Incident& i : ledger.incidents) {
    incidents.push_back({{"unix_ms", i.unix_ms},
                         {"epoch", i.epoch},
                         {"what", i.what},
                         {"first_cause", i.first_cause},
                         {"node", i.node},
                         {"rank", i.rank},
                         {"noticed_ms", i.noticed_ms ? ordered_json(*i.noticed_ms) : ordered_json()},
                         {"recovering_ms", i.recovering_ms},
                         {"waiting_ms", i.waiting_ms},
                         {"redoing_ms", i.redoing_ms},
                         {"steps_lost", i.steps_lost ? ordered_json(*i.steps_lost) : ordered_json()},
                         {"steps_untold", i.steps_untold},
                         {"rank_ms", i.rank_ms},
                         {"ended_job", i.ended_job}});
  }
  ordered_json json = {{"job_id", s.job_id()},
                       {"live", view.live},
                       {"phase", s.phase()},
                       {"begin_unix_ms", ledger.begin_unix_ms},
                       {"end_unix_ms", ledger.end_unix_ms},
                       {"wall_ms", wall_ms},
                       {"causes", causes},
                       {"goodput_permille", wall_ms == 0 ? 0 : ledger.Of(Cause::kTraining) * 1'000 / wall_ms},
                       {"incidents", incidents},
                       {"notes", ledger.notes}};
  if (s.phase() == "finished") json["exit_code"] = s.exit_code();
  return Dump(json, 2);
}

}  // namespace phalanx::cli

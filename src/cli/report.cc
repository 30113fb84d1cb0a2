#include "cli/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "cli/check_rows.h"
#include "cli/hang.h"
#include "cli/phase_text.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

using nlohmann::ordered_json;

ordered_json ToJson(const Row& row) {
  return {{"id", row.id},     {"unix_ms", row.unix_ms}, {"epoch", row.epoch},   {"kind", row.kind},
          {"node", row.node}, {"rank", row.rank},       {"reason", row.reason}, {"detail", Detail(row)}};
}

std::string Nodes(const v1::StatusReply& s) {
  if (s.max_nodes() == 0) return "";
  if (s.min_nodes() == s.max_nodes()) return fmt::format(" of {} node{}", s.max_nodes(), s.max_nodes() == 1 ? "" : "s");
  return fmt::format(" of {}:{} nodes", s.min_nodes(), s.max_nodes());
}

std::vector<std::string> NodeRow(const v1::NodeStatus& node) {
  const std::string rank = node.group_rank() < 0 ? "-" : fmt::format("{}", node.group_rank());
  const std::string steps = node.min_step() == node.max_step() ? fmt::format("{}", node.max_step())
                                                               : fmt::format("{}-{}", node.min_step(), node.max_step());
  return {Printable(node.hostname()),
          Printable(node.address()),
          node.state(),
          rank,
          fmt::format("{}", node.local_world_size()),
          steps,
          fmt::format("{}.{} s", node.silent_ms() / 1'000, node.silent_ms() % 1'000 / 100)};
}

const char* DoingText(v1::RankStatus::Doing doing) {
  switch (doing) {
    case v1::RankStatus::STARTING:
      return "starting";
    case v1::RankStatus::RUNNING:
      return "running";
    case v1::RankStatus::STEPPING:
      return "stepping";
    case v1::RankStatus::SAVING:
      return "saving";
    case v1::RankStatus::EXITING:
      return "exiting";
    case v1::RankStatus::ENDED:
      return "ended";
    default:  // of a newer agent
      return "?";
  }
}

std::string SpanOrNone(int64_t ms) { return ms < 0 ? "-" : Span(ms); }

// All the same in a job that steps: where its ranks are at one moment tells nothing.
StepsMade StepsOfHang(const v1::StatusReply& s) { return s.stalled_ms() > 0 ? StepsMadeIn(s) : StepsMade(); }

// In a job that hangs, what tells a rank that others wait for from one that waits.
std::string DoesText(const v1::RankStatus& rank, const StepsMade& made) {
  const std::string place = PlaceText(rank, made);
  return place.empty() ? DoingText(rank.doing()) : fmt::format("{}, {}", DoingText(rank.doing()), place);
}

std::vector<std::string> RankRow(const v1::NodeStatus& node, const v1::RankStatus& rank, const StepsMade& made) {
  return {fmt::format("{}", node.rank_base() + rank.local_rank()),
          Printable(node.hostname()),
          rank.pid() > 0 ? fmt::format("{}", rank.pid()) : "-",
          fmt::format("{}", rank.step()),
          DoesText(rank, made),
          SpanOrNone(rank.quiet_ms()),
          SpanOrNone(rank.age_ms()),
          rank.resident_bytes() > 0 ? Bytes(static_cast<uint64_t>(rank.resident_bytes())) : "-"};
}

// By rank: `nodes` are in the order of theirs.
std::string RankTable(const std::vector<v1::NodeStatus>& nodes, const StepsMade& made) {
  std::vector<std::vector<std::string>> table = {
      {"RANK", "NODE", "PID", "STEP", "DOES", "SINCE ITS LAST STEP", "SINCE IT BEGAN", "MEMORY"}};
  std::string silent;
  for (const v1::NodeStatus& node : nodes) {
    for (const v1::RankStatus& rank : node.ranks()) table.push_back(RankRow(node, rank, made));
    if (node.group_rank() >= 0 && node.ranks().empty()) {
      silent += fmt::format("node {} has not said in time what its ranks do\n", Printable(node.hostname()));
    }
  }
  return (table.size() > 1 ? Table(table) : "") + silent;
}

// Why nodes wait, each reason once.
std::string SparesText(const std::vector<v1::NodeStatus>& nodes) {
  std::set<std::string> reasons;
  for (const v1::NodeStatus& node : nodes) {
    if (node.state() != "left out" && !node.waits_because().empty()) reasons.insert(Printable(node.waits_because()));
  }
  std::string out;
  for (const std::string& reason : reasons) out += fmt::format("nodes wait as spares: {}\n", reason);
  return out;
}

std::string StepText(int64_t step) { return step < 0 ? "-" : fmt::format("{}", step); }

std::string CheckpointTable(const v1::StatusReply& s) {
  if (s.checkpoints().empty()) return "";
  std::vector<std::vector<std::string>> table = {{"CHECKPOINTS IN", "IN MEMORY", "ON STORAGE", "ON ITS WAY THERE"}};
  for (const v1::CheckpointStatus& dir : s.checkpoints()) {
    const std::string storing =
        dir.storing_step() < 0 ? "-" : fmt::format("{}, for {}", dir.storing_step(), Span(dir.storing_ms()));
    table.push_back({Printable(dir.dir()), StepText(dir.committed_step()), StepText(dir.stored_step()), storing});
  }
  return Table(table);
}

ordered_json CheckpointsJson(const v1::StatusReply& s) {
  ordered_json dirs = ordered_json::array();
  for (const v1::CheckpointStatus& dir : s.checkpoints()) {
    dirs.push_back({{"dir", dir.dir()},
                    {"committed_step", dir.committed_step()},
                    {"stored_step", dir.stored_step()},
                    {"storing_step", dir.storing_step()},
                    {"storing_ms", dir.storing_ms()}});
  }
  return dirs;
}

// That nobody works at it, since when, and what was decided last. A job that has ended has its reason alone.
std::string UnservedText(const JobView& view) {
  const v1::StatusReply& s = view.status;
  if (s.phase() != "unfinished") return "";
  const EndedJob& end = view.ended;
  const std::string at = Clock(end.at_unix_ms, true);
  std::string out =
      end.master_said.empty()
          ? fmt::format("nobody serves it: its last master has ended without a word, at {} or later\n", at)
          : fmt::format("nobody serves it since {}: {}\n", at, Printable(end.master_said));
  if (end.step >= 0) out += fmt::format("the last step that its record names: {}\n", end.step);
  return out;
}

std::string EndedText(const JobView& view) {
  const EndedJob& end = view.ended;
  std::string out =
      fmt::format(", ran for {}", Span(std::max<int64_t>(end.at_unix_ms - view.status.started_unix_ms(), 0)));
  if (end.nodes > 0) out += fmt::format(" on {} node{}", end.nodes, end.nodes == 1 ? "" : "s");
  if (end.step >= 0) out += fmt::format("; the last step that its record names: {}", end.step);
  return out;
}

std::string LeftText(const std::vector<LeftStep>& left) {
  std::string out;
  for (const LeftStep& each : left) {
    out += fmt::format(
        "step {} of {} still lies in this machine's memory: `phalanx ckpt rescue {} --to {}` writes it there\n",
        each.step, Printable(each.dir), Printable(each.folder), Printable(each.dir));
  }
  return out;
}

ordered_json LeftJson(const std::vector<LeftStep>& left) {
  ordered_json list = ordered_json::array();
  for (const LeftStep& each : left) list.push_back({{"dir", each.dir}, {"step", each.step}, {"folder", each.folder}});
  return list;
}

}  // namespace

std::string StatusText(const JobView& view, int64_t now_unix_ms, bool ranks) {
  const v1::StatusReply& s = view.status;
  std::string out = fmt::format("job {}: {}", Printable(s.job_id()), PhaseText(s));
  if (s.phase() == "unfinished") out += " (its master is gone, and has not recorded an end)";
  if (s.phase() == kNotAnswering) out += " (this is what its record has)";
  if (s.world_size() > 0) out += fmt::format(", world {}", s.world_size());
  out += fmt::format(", epoch {}, {} restart{}, {} left\n", s.epoch(), s.restart_count(),
                     s.restart_count() == 1 ? "" : "s", s.restarts_left());
  out += fmt::format("began {}", Clock(s.started_unix_ms(), true));
  if (view.live) out += fmt::format(", {} ago", Span(now_unix_ms - s.started_unix_ms()));
  if (s.phase() == "finished" && !view.live) out += EndedText(view);
  out += "\n";
  if (s.phase() == kNotAnswering) {
    out += "its master says nothing: it stands still, or cannot be reached from here; ranks may train on meanwhile\n";
  }
  const std::string unserved = view.live ? "" : UnservedText(view);
  out += unserved;
  const char* what = unserved.empty() ? "last decision" : "its last decision, which nobody carries out any more";
  if (!s.reason().empty()) out += fmt::format("{}: {}\n", what, Printable(s.reason()));
  if (!view.live) return out + LeftText(view.left);
  std::vector<v1::NodeStatus> nodes(s.nodes().begin(), s.nodes().end());
  std::sort(nodes.begin(), nodes.end(), [](const auto& a, const auto& b) {
    return std::pair(static_cast<uint32_t>(a.group_rank()), a.hostname()) <
           std::pair(static_cast<uint32_t>(b.group_rank()), b.hostname());
  });
  if (s.refused_callers() > 0) {
    out += fmt::format("{} caller{} turned away; the last: {}\n", s.refused_callers(),
                       s.refused_callers() == 1 ? "" : "s", Printable(s.last_refused()));
  }
  if (s.refused_store_clients() > 0) {
    out += fmt::format("{} client{} turned away by c10d stores; the last that was told of: {}\n",
                       s.refused_store_clients(), s.refused_store_clients() == 1 ? "" : "s",
                       Printable(s.last_refused_store_client()));
  }
  out += fmt::format("{} agent{}{}\n", nodes.size(), nodes.size() == 1 ? "" : "s", Nodes(s));
  if (nodes.empty()) return out;
  std::vector<std::vector<std::string>> table = {{"NODE", "ADDRESS", "STATE", "GROUP RANK", "RANKS", "STEP", "SILENT"}};
  for (const v1::NodeStatus& node : nodes) table.push_back(NodeRow(node));
  const std::string check = s.has_check() ? "\n" + CheckText(s.check()) : "";
  return out + Table(table) + (ranks ? RankTable(nodes, StepsOfHang(s)) : "") + SparesText(nodes) +
         LeftOutText(s.left_out()) + CheckpointTable(s) + check;
}

std::string StatusJson(const JobView& view) {
  const v1::StatusReply& s = view.status;
  ordered_json nodes = ordered_json::array();
  const StepsMade made = StepsOfHang(s);
  for (const v1::NodeStatus& n : s.nodes()) {
    ordered_json node = {
        {"node_id", n.node_id()},     {"hostname", n.hostname()},     {"address", n.address()},
        {"state", n.state()},         {"group_rank", n.group_rank()}, {"local_world_size", n.local_world_size()},
        {"silent_ms", n.silent_ms()}, {"min_step", n.min_step()},     {"max_step", n.max_step()}};
    if (!n.waits_because().empty()) node["waits_because"] = n.waits_because();
    for (const v1::RankStatus& rank : n.ranks()) {
      node["ranks"].push_back({{"rank", n.rank_base() + rank.local_rank()},
                               {"local_rank", rank.local_rank()},
                               {"pid", rank.pid()},
                               {"step", rank.step()},
                               {"doing", DoingText(rank.doing())},
                               {"quiet_ms", rank.quiet_ms()},
                               {"age_ms", rank.age_ms()},
                               {"resident_bytes", rank.resident_bytes()}});
      const std::string place = PlaceText(rank, made);
      if (!place.empty()) node["ranks"].back()["place"] = place;
    }
    nodes.push_back(std::move(node));
  }
  ordered_json json = {{"job_id", s.job_id()},
                       {"live", view.live},
                       {"phase", s.phase()},
                       {"epoch", s.epoch()},
                       {"world_size", s.world_size()},
                       {"restart_count", s.restart_count()},
                       {"restarts_left", s.restarts_left()},
                       {"min_nodes", s.min_nodes()},
                       {"max_nodes", s.max_nodes()},
                       {"started_unix_ms", s.started_unix_ms()},
                       {"reason", s.reason()}};
  if (s.phase() == "finished") json["exit_code"] = s.exit_code();
  if (!view.MayTrain()) json["ended_unix_ms"] = view.ended.at_unix_ms;
  if (!view.live) {
    json["step"] = view.ended.step;
    json["in_memory"] = LeftJson(view.left);
  }
  if (view.live) {
    if (s.stalled_ms() > 0) json["stalled_ms"] = s.stalled_ms();
    json["nodes"] = nodes;
    json["checkpoints"] = CheckpointsJson(s);
    if (!s.left_out().empty()) json["left_out"] = LeftOutJson(s.left_out());
    if (s.has_check()) json["check"] = CheckJson(s.check());
    json["refused_callers"] = s.refused_callers();
    if (s.refused_callers() > 0) json["last_refused"] = s.last_refused();
    json["refused_admin"] = s.refused_admin();
    json["refused_platform"] = s.refused_platform();
    json["refused_store_clients"] = s.refused_store_clients();
    if (s.refused_store_clients() > 0) json["last_refused_store_client"] = s.last_refused_store_client();
  }
  return Dump(json, 2);
}

std::string MissingText(const JobView& view) {
  const int64_t missing = MissingRows(view.rows);
  if (missing == 0) return "";
  const char* why =
      "the master remembers some of each round; what else it could record is in events.db, on its machine";
  if (view.recorded) why = "the record has lost them, or they are older than the newest million";
  if (view.recorded && view.live)
    why = "the record has lost them or has not been written yet, or they are older than the newest million";
  return fmt::format("{} of {} rows are not told: {}", missing, ToldRows(view.rows) + missing, why);
}

std::string EventsText(const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> table = {{"TIME", "EPOCH", "EVENT", "WHAT AND WHY"}};
  for (const Row& row : rows) {
    table.push_back({Clock(row.unix_ms), fmt::format("{}", row.epoch), row.kind, Printable(row.reason)});
  }
  return Table(table);
}

std::string EventsJson(const std::vector<Row>& rows) {
  std::string out;
  for (const Row& row : rows) out += Dump(ToJson(row), -1);
  return out;
}

StatusOr<Story> TellStory(const std::vector<Row>& rows, std::optional<uint64_t> epoch) {
  std::vector<size_t> turns;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (IsTurn(rows[i])) turns.push_back(i);
  }
  if (turns.empty()) return absl::NotFoundError("no round has begun yet: nothing to explain");
  size_t chosen = turns.size() - 1;
  if (epoch) {
    const auto it = std::find_if(turns.begin(), turns.end(),
                                 [&](size_t i) { return rows[i].kind == "round-started" && rows[i].epoch == *epoch; });
    if (it == turns.end()) return absl::NotFoundError(fmt::format("--epoch={}: no such round is recorded", *epoch));
    chosen = static_cast<size_t>(it - turns.begin());
  } else if (chosen > 0 && rows[turns[chosen]].kind == "job-finished" &&
             NumberIn(Detail(rows[turns[chosen]]), "exit_code") == 0) {
    --chosen;  // a good end explains itself: tell of the last restart
  }
  const size_t begin = chosen == 0 ? 0 : turns[chosen - 1] + 1;
  const size_t end = chosen + 1 == turns.size() ? rows.size() : turns[chosen + 1];
  const uint64_t ended_epoch = chosen == 0 ? 0 : rows[turns[chosen - 1]].epoch;
  Story story;
  story.turn = &rows[turns[chosen]];
  for (size_t i = begin; i < end; ++i) {
    const Row& row = rows[i];
    const bool late = row.epoch == ended_epoch && i > turns[chosen];
    const bool consequence = row.kind == "first-step" || row.kind == "round-stepping";
    if (i > turns[chosen] ? late || consequence : row.epoch >= ended_epoch) story.rows.push_back(&row);
  }
  if (!epoch) story.hang = HangOf(rows);
  if (TextIn(Detail(*story.turn), "because") != "nodes") story.first_cause = FirstCauseOf(story.rows, ended_epoch);
  return story;
}

std::string StoryText(const Story& story, const JobView& view, int64_t now_unix_ms) {
  const Row& turn = *story.turn;
  std::string out;
  if (story.hang) out = HangText(*story.hang, view.status, now_unix_ms) + "\n";
  if (turn.kind == "round-started")
    out += fmt::format("epoch {} began at {}: {}\n", turn.epoch, Clock(turn.unix_ms, true), Printable(turn.reason));
  if (turn.kind == "round-held")
    out += fmt::format("epoch {} was held at {}: {}\n", turn.epoch, Clock(turn.unix_ms, true), Printable(turn.reason));
  if (turn.kind == "job-finished")
    out += fmt::format("the job ended at {}: {}\n", Clock(turn.unix_ms, true), Printable(turn.reason));
  out += "\n";
  std::vector<std::vector<std::string>> table;
  for (const Row* row : story.rows) {
    const int64_t since_ms = row->unix_ms - turn.unix_ms;
    const std::string what = row == story.first_cause ? CauseText(*row) : row->reason;
    table.push_back({fmt::format("{}{} ms", since_ms < 0 ? "" : "+", since_ms), row->kind, Printable(what)});
  }
  out += Table(table);
  if (story.first_cause == nullptr) return out;
  const ordered_json detail = Detail(*story.first_cause);
  out += fmt::format("\nfirst cause: {} (local rank {}, pid {}, {} steps)\n", Printable(CauseText(*story.first_cause)),
                     NumberIn(detail, "local_rank"), NumberIn(detail, "pid"), NumberIn(detail, "steps"));
  const std::string words = TextIn(detail, "last_words");
  if (!words.empty()) out += fmt::format("its last words:\n{}\n", Printable(words));
  return out;
}

std::string StoryJson(const Story& story, const JobView& view, int64_t now_unix_ms) {
  ordered_json events = ordered_json::array();
  for (const Row* row : story.rows) events.push_back(ToJson(*row));
  ordered_json json = {{"epoch", story.turn->epoch}, {"kind", story.turn->kind}, {"reason", story.turn->reason}};
  json["first_cause"] = story.first_cause == nullptr ? ordered_json() : ToJson(*story.first_cause);
  if (story.first_cause != nullptr) json["first_cause"]["reason"] = CauseText(*story.first_cause);
  if (story.hang) json["hang"] = HangJson(*story.hang, view.status, now_unix_ms);
  json["events"] = events;
  return Dump(json, 2);
}

}  // namespace phalanx::cli

#include "master/topics/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "master/rules/words.h"

namespace phalanx::master {
namespace {

// Names and reasons that one sentence lists.
constexpr size_t kMostNamed = 8;
// Of a node, of all parts; no check of ours comes near.
constexpr int kMostResultsKept = 256;
// The check that a node makes by itself also in a pair (python/phalanx/node_check/checks.py).
constexpr std::string_view kMatmul = "matmul";

Machine MachineOf(const HealthMember& node) { return {node.hostname, node.address}; }

void MakeRoom(HealthState& health) {
  if (health.left_out.size() < kMaxLeftOut) return;
  health.left_out.erase(std::min_element(health.left_out.begin(), health.left_out.end(),
                                         [](const auto& a, const auto& b) { return a.second.until < b.second.until; }));
}

// Null: none has.
const v1::CheckResult* FirstFailed(const v1::CheckReport& report) {
  const auto failed = std::find_if(report.results().begin(), report.results().end(), [](const v1::CheckResult& result) {
    return result.outcome() == v1::CheckResult::FAILED;
  });
  return failed == report.results().end() ? nullptr : &*failed;
}

// The first result that failed, or why the part did not come to its end; empty: it passed.
std::string FailureIn(const v1::CheckReport& report) {
  const v1::CheckResult* const failed = FirstFailed(report);
  if (failed == nullptr) return report.ended();
  return failed->sentence().empty() ? failed->check() + " failed" : failed->sentence();
}

// Whether what failed first in a pair is the work of that node alone.
bool IsItsOwn(const v1::CheckReport& report) {
  const v1::CheckResult* const failed = FirstFailed(report);
  return failed != nullptr && failed->check() == kMatmul;
}

// The node of that session, where it owes its group an answer; else none.
std::optional<size_t> WhoOwes(const CheckRun& run, uint64_t session) {
  const auto node = run.by_session.find(session);
  if (node == run.by_session.end()) return std::nullopt;
  const auto group = run.group_of.find(node->second);
  if (group == run.group_of.end()) return std::nullopt;
  const std::vector<size_t>& owed = run.groups[group->second].owed;
  if (std::find(owed.begin(), owed.end(), node->second) == owed.end()) return std::nullopt;
  return node->second;
}

class Checker {
 public:
  Checker(HealthState& health, Instant now) : health_(health), run_(*health.run), now_(now) {}

  HealthOrders Take() { return std::move(orders_); }

  void CheckAlone() {
    std::vector<std::vector<size_t>> groups;
    for (size_t i = 0; i < run_.nodes.size(); ++i) groups.push_back({i});
    Order(v1::CheckOrder::ALONE, std::move(groups), "each node is checked by itself");
  }

  void Hear(size_t node, const v1::CheckReport& report) {
    v1::CheckedNode& told = *run_.summary.mutable_nodes(static_cast<int>(node));
    for (const v1::CheckResult& result : report.results()) {
      if (told.results_size() < kMostResultsKept) *told.add_results() = result;
      // What a pair measures together counts for both: the better of its pairs is what a node can do.
      for (const v1::CheckValue& value : result.values()) Merge(run_.measured[node], value);
    }
    CheckGroup& group = run_.groups[run_.group_of.at(node)];
    const std::string failed = FailureIn(report);
    if (!failed.empty() && run_.kind == v1::CheckOrder::ALONE) run_.own_fault[node] = failed;
    if (!failed.empty() && run_.kind == v1::CheckOrder::PAIR && IsItsOwn(report)) {
      run_.own_fault[node] = failed;
      run_.suspects.Condemn(node);
      group.is_void = true;  // it says nothing of the other
    }
    if (!failed.empty() && group.failed.empty()) group.failed = failed;
    if (group.values.empty()) {
      for (const v1::CheckResult& result : report.results()) {
        group.values.insert(group.values.end(), result.values().begin(), result.values().end());
      }
    }
    Settle(group, node);
    if (run_.open == 0) GoOn();
  }

  void Lose(size_t node) {
    run_.suspects.Forget(node);
    run_.summary.mutable_nodes(static_cast<int>(node))->set_verdict(v1::CheckedNode::GONE);
    const auto found = run_.group_of.find(node);
    if (found == run_.group_of.end()) return;
    CheckGroup& group = run_.groups[found->second];
    if (group.owed.empty()) return;
    // Whoever it was with waits for it in vain; the next order ends that.
    group.is_void = true;
    group.owed = {node};
    Settle(group, node);
    if (run_.open == 0) GoOn();
  }

  void GiveUpWaiting() {
    for (CheckGroup& group : run_.groups) {
      const std::vector<size_t> owed = group.owed;
      for (const size_t node : owed) {
        const std::string why =
            fmt::format("{} has not answered within {} s", run_.nodes[node].name, AnswerWithinMs(run_.spec) / 1'000);
        if (run_.kind == v1::CheckOrder::ALONE) run_.own_fault[node] = why;
        if (group.failed.empty()) group.failed = why;
        Settle(group, node);
      }
    }
    if (run_.open == 0) GoOn();
  }

 private:
  // That node owes its group nothing more.
  void Settle(CheckGroup& group, size_t node) {
    std::erase(group.owed, node);
    if (!group.owed.empty()) return;
    if (!group.is_void) Note(group);
    --run_.open;
  }

  void Note(const CheckGroup& group) {
    const size_t first = group.nodes.front();
    if (run_.kind == v1::CheckOrder::ALONE && !group.failed.empty()) run_.suspects.Condemn(first);
    if (run_.kind != v1::CheckOrder::PAIR) return;
    const size_t second = group.nodes.back();
    run_.suspects.Note({first, second}, group.failed.empty());
    if (!group.failed.empty()) run_.last_failure[first] = run_.last_failure[second] = group.failed;
    v1::CheckedPair& pair = *run_.summary.add_pairs();
    pair.set_first(static_cast<uint32_t>(first));
    pair.set_second(static_cast<uint32_t>(second));
    pair.set_part(run_.part);
    pair.set_passed(group.failed.empty());
    pair.set_sentence(group.failed);
    for (const v1::CheckValue& value : group.values) *pair.add_values() = value;
  }

  void GoOn() {
    if (run_.kind == v1::CheckOrder::ALL) return Conclude();
    std::vector<int64_t> cost_us;
    cost_us.reserve(run_.measured.size());
    for (const Measured& measured : run_.measured) cost_us.push_back(CheckTimeUs(measured));
    const bool compare = run_.summary.pairs_size() > 0 && !SlowOnes().empty();
    std::vector<std::vector<size_t>> groups;
    for (const Suspects::Pair& pair : run_.suspects.Next(cost_us, compare)) groups.push_back({pair.first, pair.second});
    if (!groups.empty()) {
      run_.summary.set_rounds(run_.summary.rounds() + 1);
      return Order(v1::CheckOrder::PAIR, std::move(groups),
                   run_.summary.rounds() == 1 ? "neighbours are checked together"
                                              : "whoever failed or is slow is checked with good ones");
    }
    const std::vector<size_t> good = Good();
    if (run_.spec.level() < 2 || good.size() < 2) return Conclude();
    Order(v1::CheckOrder::ALL, {good}, "all good nodes are checked together");
  }

  void Order(v1::CheckOrder::Kind kind, std::vector<std::vector<size_t>> groups, const std::string& reason) {
    run_.kind = kind;
    run_.groups.clear();
    run_.group_of.clear();
    run_.open = groups.size();
    ++run_.part;
    v1::CheckOrder& order = orders_.order;
    order.set_run(run_.id);
    order.set_part(run_.part);
    order.set_kind(kind);
    order.set_limit_ms(run_.spec.limit_ms());
    order.set_reason(reason);
    orders_.groups.clear();
    for (std::vector<size_t>& nodes : groups) {
      HealthOrders::Group& sent = orders_.groups.emplace_back();
      for (const size_t node : nodes) {
        run_.group_of[node] = run_.groups.size();
        sent.sessions.push_back(run_.nodes[node].session);
        sent.names.push_back(run_.nodes[node].name);
      }
      CheckGroup& group = run_.groups.emplace_back();
      group.owed = nodes;
      group.nodes = std::move(nodes);
    }
    run_.due = now_ + AnswerWithinMs(run_.spec);
    if (run_.open == 0) GoOn();
  }

  // It may train: nothing accuses it.
  bool IsGood(size_t node) const {
    const Suspects::Standing standing = run_.suspects.StandingOf(node);
    return standing == Suspects::Standing::kGood ||
           (standing == Suspects::Standing::kUnclear && run_.suspects.FailedWith(node).empty());
  }

  std::vector<size_t> Good() const {
    std::vector<size_t> good;
    for (size_t i = 0; i < run_.nodes.size(); ++i) {
      if (IsGood(i)) good.push_back(i);
    }
    return good;
  }

  // Of the good ones.
  std::vector<Slow> SlowOnes() const {
    std::vector<Measured> measured(run_.nodes.size());
    for (const size_t node : Good()) measured[node] = run_.measured[node];
    return FindSlow(run_.spec.straggler_rule(), measured);
  }

  std::string Accusation(size_t node) const {
    if (!run_.own_fault[node].empty()) return run_.own_fault[node];
    std::vector<std::string> partners;
    for (const size_t other : run_.suspects.FailedWith(node)) partners.push_back(run_.nodes[other].name);
    return fmt::format("with {}: {}", ListText(partners, "more", kMostNamed), run_.last_failure[node]);
  }

  void LeaveOut(size_t node, v1::CheckedNode::Verdict verdict, const std::string& why) {
    v1::CheckedNode& told = *run_.summary.mutable_nodes(static_cast<int>(node));
    told.set_verdict(verdict);
    told.set_sentence(why);
    const bool needs_others = verdict == v1::CheckedNode::SLOW || run_.own_fault[node].empty();
    // Of a machine with several agents once.
    if (machines_.insert(MachineOf(run_.nodes[node])).second) {
      phalanx::master::LeaveOut(health_, run_.nodes[node], why, needs_others, run_.spec.left_out_ms(), now_);
    }
    orders_.verdicts.emplace_back(run_.nodes[node].session, why);
  }

  // What it was left out for is mended, as far as this check could see it.
  bool IsMended(size_t node) const {
    const auto entry = health_.left_out.find(MachineOf(run_.nodes[node]));
    if (entry == health_.left_out.end() || !entry->second.needs_others) return true;
    return run_.suspects.StandingOf(node) == Suspects::Standing::kGood;  // it has passed with another
  }

  // Others are left out for longer next time. Of a machine's agents none may be accused, and one that passes says
  // nothing of another that is left out and was not asked.
  void Acquit(const std::vector<Slow>& slow) {
    std::set<Machine> accused;
    for (const Slow& each : slow) accused.insert(MachineOf(run_.nodes[each.node]));
    for (size_t i = 0; i < run_.nodes.size(); ++i) {
      if (!IsGood(i)) accused.insert(MachineOf(run_.nodes[i]));
    }
    for (const size_t node : Good()) {
      const Machine machine = MachineOf(run_.nodes[node]);
      if (accused.contains(machine) || WhyLeftOut(health_, machine, now_) != nullptr) continue;
      if (IsMended(node)) health_.left_out.erase(machine);
    }
  }

  void JudgeSlow(std::vector<Slow> slow, std::vector<std::string>& out, std::vector<std::string>& named,
                 std::set<size_t>& left) {
    // The slowest goes first, while enough are left.
    std::stable_sort(slow.begin(), slow.end(), [this](const Slow& a, const Slow& b) {
      return CheckTimeUs(run_.measured[a.node]) > CheckTimeUs(run_.measured[b.node]);
    });
    size_t good = Good().size();
    for (const Slow& each : slow) {
      const std::string text = fmt::format("{} slow ({})", run_.nodes[each.node].name, each.why);
      if (run_.spec.excludes_stragglers() && good > run_.keep) {
        --good;
        left.insert(each.node);
        LeaveOut(each.node, v1::CheckedNode::SLOW, "slow: " + each.why);
        out.push_back(text);
        continue;
      }
      v1::CheckedNode& told = *run_.summary.mutable_nodes(static_cast<int>(each.node));
      told.set_verdict(v1::CheckedNode::NAMED);
      told.set_sentence("slow: " + each.why);
      named.push_back(run_.spec.excludes_stragglers() ? text + ", which stays: without it too few were left" : text);
    }
  }

  void Conclude() {
    std::vector<std::string> out;
    std::vector<std::string> unclear;
    std::vector<std::string> named;
    std::set<size_t> left;
    // Before any is left out: of two agents of one machine the bad one counts.
    std::vector<Slow> slow = SlowOnes();
    Acquit(slow);
    JudgeSlow(std::move(slow), out, named, left);
    size_t train = 0;
    for (size_t i = 0; i < run_.nodes.size(); ++i) {
      const Suspects::Standing standing = run_.suspects.StandingOf(i);
      if (left.contains(i)) continue;
      if (standing == Suspects::Standing::kGone) {
        orders_.gone = true;
        named.push_back(fmt::format("{} went while it was checked", run_.nodes[i].name));
        continue;
      }
      if (IsGood(i)) {
        ++train;
        orders_.verdicts.emplace_back(run_.nodes[i].session, "");
        continue;
      }
      const bool bad = standing == Suspects::Standing::kBad;
      const std::string why = Accusation(i);
      LeaveOut(i, bad ? v1::CheckedNode::FAILED : v1::CheckedNode::UNCLEAR, why);
      if (bad) {
        out.push_back(fmt::format("{} failed ({})", run_.nodes[i].name, why));
      } else {
        unclear.push_back(run_.nodes[i].name);
      }
    }
    for (const Suspects::Pair& link : run_.suspects.BadLinks()) {
      named.push_back(
          fmt::format("the link between {} and {} failed", run_.nodes[link.first].name, run_.nodes[link.second].name));
    }
    if (run_.kind == v1::CheckOrder::ALL && !run_.groups.front().failed.empty()) {
      orders_.all_failed = true;
      named.push_back("all together failed: " + run_.groups.front().failed);
    }
    if (!unclear.empty()) {
      const size_t node = IndexOf(unclear.front());
      out.push_back(fmt::format("which of {} is at fault nobody can tell ({})", ListText(unclear, "more", kMostNamed),
                                run_.last_failure[node]));
    }
    Publish(out, named, train);
  }

  size_t IndexOf(const std::string& name) const {
    size_t i = 0;
    while (run_.nodes[i].name != name) ++i;
    return i;
  }

  void Publish(const std::vector<std::string>& out, const std::vector<std::string>& named, size_t train) {
    v1::CheckSummary& summary = run_.summary;
    summary.set_took_ms(now_ - run_.begun_at);
    std::string text =
        fmt::format("node check: {}, {}, {}.{} s: ", Plural(run_.nodes.size(), "node"),
                    Plural(summary.rounds(), "round"), summary.took_ms() / 1'000, summary.took_ms() % 1'000 / 100);
    if (!named.empty()) text += ListText(named, "more", kMostNamed);
    if (!named.empty() && !out.empty()) text += "; ";
    if (!out.empty()) text += ListText(out, "more", kMostNamed) + ": left out";
    if (!out.empty() && !run_.newcomers) text += fmt::format(", {} train", train);
    if (named.empty() && out.empty()) text += "all good";
    summary.set_sentence(text);
    for (size_t i = 0; i < run_.nodes.size() && run_.nodes.size() <= kMostRecorded; ++i) {
      orders_.measured.emplace_back(run_.nodes[i].name, MeasuredText(run_.measured[i]));
    }
    summary.set_done(true);
    health_.last = std::move(summary);
    health_.last_is_kept = health_.last.ByteSizeLong() <= kMostKeptBytes;
    orders_.groups.clear();
    orders_.over = true;
    // Last: this object's own run.
    health_.run.reset();
  }

  HealthState& health_;
  CheckRun& run_;
  const Instant now_;
  std::set<Machine> machines_;  // that are left out by this check
  HealthOrders orders_;
};

}  // namespace

HealthOrders BeginCheck(HealthState& health, const v1::CheckSpec& spec, std::vector<HealthMember> nodes, size_t keep,
                        bool newcomers, Instant now) {
  CheckRun& run = health.run.emplace();
  run.id = ++health.runs;
  run.begun_at = now;
  run.spec = spec;
  run.keep = keep;
  run.newcomers = newcomers;
  run.suspects = Suspects(nodes.size());
  run.measured.resize(nodes.size());
  run.own_fault.resize(nodes.size());
  run.last_failure.resize(nodes.size());
  run.summary.set_run(run.id);
  for (size_t i = 0; i < nodes.size(); ++i) {
    run.by_session[nodes[i].session] = i;
    v1::CheckedNode& node = *run.summary.add_nodes();
    node.set_node(nodes[i].name);
    node.set_address(nodes[i].address);
  }
  run.nodes = std::move(nodes);
  Checker checker(health, now);
  checker.CheckAlone();
  return checker.Take();
}

HealthOrders OnCheckReport(HealthState& health, uint64_t session, const v1::CheckReport& report, Instant now) {
  if (!health.run || report.run() != health.run->id || report.part() != health.run->part) return {};
  const std::optional<size_t> node = WhoOwes(*health.run, session);
  if (!node) return {};
  Checker checker(health, now);
  checker.Hear(*node, report);
  return checker.Take();
}

HealthOrders OnCheckSessionLost(HealthState& health, uint64_t session, Instant now) {
  if (!health.run) return {};
  const auto node = health.run->by_session.find(session);
  if (node == health.run->by_session.end()) return {};
  Checker checker(health, now);
  checker.Lose(node->second);
  return checker.Take();
}

void WaitAnew(HealthState& health, uint64_t session, Instant now) {
  if (!health.run || !WhoOwes(*health.run, session)) return;
  CheckRun& run = *health.run;
  run.due = std::max(run.due, now + AnswerWithinMs(run.spec));
}

HealthOrders OnHealthTick(HealthState& health, Instant now) {
  if (!health.run || now < health.run->due) return {};
  Checker checker(health, now);
  checker.GiveUpWaiting();
  return checker.Take();
}

void AbandonCheck(HealthState& health) { health.run.reset(); }

void LeaveOut(HealthState& health, const HealthMember& member, const std::string& why, bool needs_others,
              int64_t first_ms, Instant now) {
  const Machine machine = MachineOf(member);
  if (!health.left_out.contains(machine)) MakeRoom(health);
  LeftOutMachine& entry = health.left_out[machine];
  entry.node = member.name;
  entry.reason = why;
  entry.needs_others = needs_others;
  ++entry.times;
  const int64_t longest_ms = std::max(kMostLeftOutMs, first_ms);
  int64_t span_ms = first_ms;
  for (uint32_t i = 1; i < entry.times && span_ms < longest_ms; ++i) span_ms *= 2;
  entry.until = now + std::min(span_ms, longest_ms);
}

const LeftOutMachine* WhyLeftOut(const HealthState& health, const Machine& machine, Instant now) {
  const auto found = health.left_out.find(machine);
  return found == health.left_out.end() || now >= found->second.until ? nullptr : &found->second;
}

Instant NextHealthDeadline(const HealthState& health) { return health.run ? health.run->due : kNever; }

std::vector<Machine> LeftOutMachines(const HealthState& health, const std::string& name, Instant now) {
  std::vector<Machine> found;
  for (const auto& [machine, entry] : health.left_out) {
    if (now >= entry.until) continue;
    if (entry.node == name || machine.first == name || machine.second == name) found.push_back(machine);
  }
  return found;
}

std::vector<v1::LeftOut> LeftOutNow(const HealthState& health, Instant now) {
  std::vector<v1::LeftOut> told;
  for (const auto& [machine, entry] : health.left_out) {
    v1::LeftOut& each = told.emplace_back();
    each.set_hostname(machine.first);
    each.set_address(machine.second);
    each.set_node(entry.node);
    each.set_reason(entry.reason);
    each.set_rest_ms(std::max<int64_t>(0, entry.until - now));
    each.set_times(entry.times);
    each.set_needs_others(entry.needs_others);
  }
  return told;
}

void RestoreLastCheck(HealthState& health, v1::CheckSummary told) {
  health.runs = std::max(health.runs, told.run());
  health.last = std::move(told);
  health.last_is_kept = true;
}

void RestoreLeftOut(HealthState& health, const v1::LeftOut& told, Instant now) {
  if (health.left_out.size() >= kMaxLeftOut) return;
  health.left_out[{told.hostname(), told.address()}] = {told.node(), told.reason(),
                                                        now + std::clamp<int64_t>(told.rest_ms(), 0, kMostLeftOutMs),
                                                        told.times(), told.needs_others()};
}

}  // namespace phalanx::master

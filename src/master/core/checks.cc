#include "master/core/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "master/core/arrivals.h"
#include "master/core/door.h"
#include "master/core/ending.h"
#include "master/core/members.h"
#include "master/core/messages.h"
#include "master/core/platform.h"
#include "master/core/texts.h"

namespace phalanx::master {
namespace {

// Of a group of many nobody reads all names.
constexpr size_t kNamesTold = 2;

Machine MachineOf(const Node& node) { return {node.hello.hostname(), node.hello.address()}; }

void SendGroup(Turn& turn, const v1::CheckOrder& order, const HealthOrders::Group& group) {
  const JobState& job = turn.job;
  const auto first = job.nodes.find(group.sessions.front());
  if (first == job.nodes.end()) return;  // it has gone in this turn, and is told to be gone
  v1::CheckOrder part = order;
  part.set_group_size(static_cast<uint32_t>(group.sessions.size()));
  if (group.sessions.size() > 1) {
    part.set_store_address(first->second.hello.address());
    part.set_store_port(first->second.store_port);
  }
  for (size_t i = 0; i < std::min(group.names.size(), kNamesTold); ++i) part.add_names(group.names[i]);
  for (size_t rank = 0; rank < group.sessions.size(); ++rank) {
    if (!job.nodes.contains(group.sessions[rank])) continue;
    v1::MasterMessage message;
    v1::CheckOrder& own = *message.mutable_check();
    own = part;
    own.set_group_rank(static_cast<uint32_t>(rank));
    if (rank == 0 && group.sessions.size() > 1) {
      for (const std::string& address : MemberAddresses(job, group.sessions)) own.add_member_addresses(address);
    }
    turn.Send(group.sessions[rank], std::move(message), order.reason());
  }
}

void NoteLeftOut(Turn& turn, uint64_t session, Node& node, const std::string& why) {
  JobState& job = turn.job;
  const LeftOutMachine* const entry = WhyLeftOut(job.health, MachineOf(node), turn.now);
  const int64_t rest_ms = entry == nullptr ? job.spec->check().left_out_ms() : entry->until - turn.now;
  job.left_out.insert(session);
  job.left_out_due = std::min(job.left_out_due, turn.now + rest_ms);
  const std::string name = NodeName(job, node.hello);
  const std::string text = fmt::format("node {} is left out for {}: {}", name, SecondsText(rest_ms), why);
  turn.Note("node-left-out", name, text, -1,
            {{"seconds", rest_ms / 1'000}, {"times", int64_t{entry == nullptr ? 1 : entry->times}}});
  const std::string mended =
      job.spec->check().only() ? "" : fmt::format("; when it is mended, phalanx let-in {} asks it again at once", name);
  turn.SendNotice(session, fmt::format("this node is left out for {}: {}{}", SecondsText(rest_ms), why, mended));
}

void Begin(Turn& turn, bool newcomers);

// Who has come while others were checked is checked before all are told to go: good ones are its partners.
void ConcludeChecksAlone(Turn& turn, bool passed, const std::string& sentence) {
  JobState& job = turn.job;
  job.check_failed |= !passed;
  if (job.unchecked > 0) Begin(turn, false);
  if (!job.health.run) FinishJob(turn, job.check_failed ? 1 : 0, sentence);
}

void Conclude(Turn& turn, const HealthOrders& orders) {
  JobState& job = turn.job;
  const std::string& sentence = job.health.last.sentence();
  turn.Note("nodes-checked", "", sentence, -1,
            {{"took_ms", job.health.last.took_ms()}, {"rounds", int64_t{job.health.last.rounds()}}});
  for (const auto& [node, measured] : orders.measured) {
    turn.Note("node-checked", node, fmt::format("{}: {}", node, measured));
  }
  const auto notice = std::make_shared<const v1::MasterMessage>(NoticeOf(sentence));
  size_t left_out = orders.gone ? 1 : 0;  // one that dies of its check has not passed it
  size_t let_in = 0;
  for (const auto& [session, why] : orders.verdicts) {
    left_out += why.empty() ? 0 : 1;
    const auto found = job.nodes.find(session);
    if (found == job.nodes.end()) continue;
    Node& node = found->second;
    if (why.empty() && node.unchecked) ++let_in;
    job.ChangeNode(node, [&why = why](Node& n) {
      n.unchecked = n.doubted = false;
      n.rechecked = true;
      if (!n.departs || !why.empty()) n.left_out = why;  // that it is good does not keep it here
    });
    turn.Send(session, notice, sentence);
    if (!why.empty()) NoteLeftOut(turn, session, node, why);
  }
  turn.remember = true;
  job.check_due = true;  // others may have come meanwhile
  job.checked = true;
  if (let_in > 0) job.join_deadline = job.next_notice = job.paused_deadline = kNever;
  if (job.phase == Phase::kGathering) job.gather_at = job.gather_limit = turn.now;  // enough has been waited
  if (job.spec->check().only()) return ConcludeChecksAlone(turn, left_out == 0 && !orders.all_failed, sentence);
  if (job.phase == Phase::kRunning && let_in > 0) PlanGrowth(turn);
}

void Apply(Turn& turn, const HealthOrders& orders) {
  // The job has ended while nodes were checked: nobody is told any more.
  if (turn.job.phase == Phase::kFinished) return AbandonCheck(turn.job.health);
  if (orders.over) return Conclude(turn, orders);
  for (const HealthOrders::Group& group : orders.groups) SendGroup(turn, orders.order, group);
}

// So many of the nodes that are checked are needed, however slow they are. What makes a world under an elastic config
// is not known here: slow nodes are named alone then.
size_t Keep(const JobState& job, size_t checked, bool newcomers) {
  if (job.sizes) return checked;
  const size_t members = newcomers && job.round ? job.round->slots.size() : 0;
  return job.spec->min_nodes() - std::min<size_t>(members, job.spec->min_nodes());
}

// Of the nodes that wait: where none trains all of them, else those that have not been checked.
void Begin(Turn& turn, bool newcomers) {
  JobState& job = turn.job;
  std::vector<HealthMember> members;
  for (const auto& [session, node] : job.nodes) {
    if (node.leaving || !node.left_out.empty() || node.group_rank >= 0) continue;
    // While others train it is asked for when it says that it is ready.
    if (newcomers && (!node.unchecked || node.warming)) continue;
    members.push_back({session, NodeName(job, node.hello), node.hello.hostname(), node.hello.address()});
  }
  if (members.empty()) return;
  const size_t count = members.size();
  turn.Note("check-started", "", fmt::format("{} node{} checked", count, count == 1 ? " is" : "s are"));
  const std::string text =
      fmt::format("checking {} before {}", Plural(count, "node"), count == 1 ? "it trains" : "they train");
  const auto notice = std::make_shared<const v1::MasterMessage>(NoticeOf(text));
  for (const HealthMember& member : members) turn.Send(member.session, notice, text);
  const size_t keep = Keep(job, count, newcomers);
  Apply(turn, BeginCheck(job.health, job.spec->check(), std::move(members), keep, newcomers, turn.now));
}

// A node checks when its ranks of the round before have gone. They may have been granted more time than the check has.
void WaitForOldRanks(Turn& turn) {
  HealthState& health = turn.job.health;
  if (!health.run || turn.now < health.run->due) return;
  for (const HealthMember& member : health.run->nodes) {
    const auto node = turn.job.nodes.find(member.session);
    if (node != turn.job.nodes.end() && node->second.ranks_of != 0) WaitAnew(health, member.session, turn.now);
  }
}

// Whose time is over may be asked again.
void LetBack(Turn& turn) {
  JobState& job = turn.job;
  job.left_out_due = kNever;
  const bool checks = job.spec && job.spec->check().level() > 0;  // the platform may come before the first node
  const std::set<uint64_t> left_out = job.left_out;
  for (const uint64_t session : left_out) {
    Node& node = job.nodes.at(session);
    const LeftOutMachine* const entry = WhyLeftOut(job.health, MachineOf(node), turn.now);
    if (entry != nullptr) {
      job.left_out_due = std::min(job.left_out_due, entry->until);
      continue;
    }
    if (DepartureOf(job, node) != nullptr) continue;  // until the platform says that it stays
    job.left_out.erase(session);
    const bool stays = std::exchange(node.departs, false);
    const bool passed = stays && node.group_rank >= 0;  // it trains still, and nobody has doubted it
    job.ChangeNode(node, [=](Node& n) {
      n.left_out.clear();
      n.unchecked = checks && !passed;
    });
    job.check_due = true;
    job.checked = false;
    turn.remember = true;
    turn.SendNotice(session, fmt::format("{}: {}", stays ? "this node stays" : "this node is left out no longer",
                                         checks ? "it is checked again" : "it may train again"));
    if (!checks && job.phase == Phase::kRunning) PlanGrowth(turn);
  }
}

}  // namespace

bool AnyUnchecked(const JobState& job, const std::vector<uint64_t>& members) {
  if (job.unchecked == 0) return false;
  return std::any_of(members.begin(), members.end(),
                     [&job](uint64_t session) { return job.nodes.at(session).unchecked; });
}

void AdmitToCheck(Turn& turn, uint64_t session, const v1::Hello& hello) {
  JobState& job = turn.job;
  Node& node = job.nodes.at(session);
  if (job.phase == Phase::kFinished) return;
  const LeftOutMachine* const entry = WhyLeftOut(job.health, MachineOf(node), turn.now);
  // Of several agents of a machine that is left out one may train: that its stream has broken is no reason to doubt it.
  const bool trains = IsMember(job, hello) && job.round->rescale_by == kNever;
  if (entry != nullptr && !trains) {
    const std::string why = entry->reason;
    job.ChangeNode(node, [&why](Node& n) { n.left_out = why; });
    return NoteLeftOut(turn, session, node, why);
  }
  if (job.spec->check().level() == 0) return;
  job.ChangeNode(node, [](Node& n) { n.unchecked = true; });
  job.check_due = true;
}

void LeaveOutMember(Turn& turn, const Slot& slot, const std::string& why) {
  JobState& job = turn.job;
  const uint64_t session = slot.session;
  Node& node = job.nodes.at(session);
  LeaveOut(job.health, {session, slot.node, node.hello.hostname(), node.hello.address()}, why, /*needs_others=*/true,
           job.spec->check().left_out_ms(), turn.now);
  job.ChangeNode(node, [&why](Node& n) { n.left_out = why; });
  NoteLeftOut(turn, session, node, why);
  job.round->any_left_out = true;
  turn.remember = true;
}

std::vector<std::string> MembersLeftOut(const JobState& job) {
  std::vector<std::string> members;
  if (!job.round || !job.round->any_left_out) return members;  // asked with every message
  for (const uint64_t session : job.left_out) {
    const Node& node = job.nodes.at(session);
    if (node.group_rank < 0) continue;
    members.push_back(fmt::format("node {} is left out ({})", NodeName(job, node.hello), node.left_out));
  }
  return members;
}

void OldRanksGone(Turn& turn, uint64_t session) { WaitAnew(turn.job.health, session, turn.now); }

void On(Turn& turn, uint64_t session, const v1::CheckReport& report) {
  Apply(turn, OnCheckReport(turn.job.health, session, report, turn.now));
}

void On(Turn& turn, const LetIn& event) {
  for (const Machine& machine : LeftOutMachines(turn.job.health, event.node, turn.now)) {
    LeftOutMachine& entry = turn.job.health.left_out.at(machine);
    entry.until = turn.now;
    entry.needs_others = false;  // who says so knows more than a check
    turn.Note("node-let-in", entry.node,
              fmt::format("somebody lets node {} in again, before its time is over", entry.node));
    turn.job.left_out_due = turn.now;
    turn.remember = true;
  }
}

void On(Turn& turn, uint64_t session, const v1::NodeFact& fact) {
  Node& node = turn.job.nodes.at(session);
  if (node.facts_from == kNever || turn.now - node.facts_from >= kFactsOfMs) {
    node.facts_from = turn.now;
    node.facts = 0;
  }
  if (++node.facts > kMostFacts) return;
  const bool last = node.facts == kMostFacts;
  turn.Note("node-fact", NodeName(turn.job, node.hello),
            fact.sentence() + (last ? "; others of this minute are not kept" : ""), -1,
            {{"kind", fact.kind()},
             {"device", fact.device()},
             {"source", fact.source()},
             {"unix_ms", fact.unix_ms()},
             {"grave", int64_t{fact.grave()}}});
}

void DoubtNode(Turn& turn, const Round& round, Node& node) {
  JobState& job = turn.job;
  if (job.spec->check().level() == 0 || job.phase == Phase::kFinished || node.unchecked) return;
  const bool is_live = turn.IsCurrent(round.epoch);
  if (!is_live && node.rechecked) return;
  job.ChangeNode(node, [](Node& n) { n.unchecked = n.doubted = true; });
  job.check_due = true;
  if (is_live || job.phase != Phase::kRunning || node.group_rank < 0) return;
  job.round->broken.push_back(fmt::format("node {} is to blame for the failure before", NodeName(job, node.hello)));
}

void LoseChecked(Turn& turn, uint64_t session) {
  turn.job.left_out.erase(session);
  Apply(turn, OnCheckSessionLost(turn.job.health, session, turn.now));
}

void SettleChecks(Turn& turn) {
  JobState& job = turn.job;
  if (job.phase == Phase::kFinished) return AbandonCheck(job.health);
  WaitForOldRanks(turn);
  Apply(turn, OnHealthTick(job.health, turn.now));
  if (turn.now >= job.left_out_due) LetBack(turn);
  const bool idle = job.check_due && !job.health.run && job.phase == Phase::kRunning;
  if (!idle || job.round->rescale_by != kNever) return;
  job.check_due = false;
  if (job.unchecked > 0) Begin(turn, true);
}

bool WaitsForCheck(Turn& turn) {
  JobState& job = turn.job;
  if (!AnyUnchecked(job, NextMembers(job))) return false;
  job.check_due = false;
  Begin(turn, false);
  return job.health.run.has_value();
}

Instant ChecksDue(const JobState& job) {
  if (job.phase == Phase::kFinished) return kNever;
  return std::min(NextHealthDeadline(job.health), job.left_out_due);
}

}  // namespace phalanx::master

#include "master/core/platform.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "base/utf8.h"
#include "master/core/admit.h"
#include "master/core/arrivals.h"
#include "master/core/door.h"
#include "master/core/members.h"
#include "master/core/texts.h"
#include "master/topics/health.h"

namespace phalanx::master {
namespace {

constexpr size_t kMaxReasonBytes = 512;

void CutText(std::string& text, size_t bytes_max) {
  if (text.size() > bytes_max) text.resize(CutUtf8(text, bytes_max).size());
}

void AdmitView(v1::PlatformView& view) {
  v1::PlatformView admitted;
  admitted.set_generation(view.generation());
  admitted.set_wanted_nodes(std::min(view.wanted_nodes(), kMaxNodes));
  if (view.has_master_epoch()) admitted.set_master_epoch(view.master_epoch());
  for (v1::Departure& departure : *view.mutable_departures()) {
    if (!IsIpAddress(departure.address()) || admitted.departures_size() == static_cast<int>(kMaxDepartures)) continue;
    CutText(*departure.mutable_name(), kMaxNameBytes);
    CutText(*departure.mutable_reason(), kMaxReasonBytes);
    departure.set_left_ms(std::clamp<int64_t>(departure.left_ms(), 0, kMaxSpanMs));
    admitted.add_departures()->Swap(&departure);
  }
  for (const v1::NodePlace& place : view.places()) {
    if (!IsIpAddress(place.address()) || admitted.places_size() == static_cast<int>(kMaxPlaces)) continue;
    *admitted.add_places() = place;
  }
  view.Swap(&admitted);
}

// What `known` has of the node, by any of its addresses; null: nothing.
template <typename Value>
const std::pair<const std::string, Value>* FindByAddress(const std::map<std::string, Value>& known, const Node& node) {
  if (known.empty()) return nullptr;
  const auto at = [&known](const std::string& address) {
    const auto found = known.find(address);
    return found == known.end() ? nullptr : &*found;
  };
  if (const auto* const found = at(node.hello.address())) return found;
  if (const auto* const found = at(node.peer_address)) return found;
  for (const std::string& address : node.hello.interface_addresses()) {
    if (const auto* const found = at(address)) return found;
  }
  return nullptr;
}

// Whether all nodes that train are known: a master that has just begun has not met them yet.
bool KnowsWhoTrains(const JobState& job) {
  if (job.phase == Phase::kFinished) return true;
  return job.back_by == kNever && (job.round ? job.round->away == 0 : job.last_round.has_value());
}

std::string WhyItGoes(const Departing& departing) {
  return departing.reason.empty() ? "the platform takes it away" : departing.reason;
}

void TryWithout(Turn& turn, uint64_t session, Node& node, const Departing& departing) {
  JobState& job = turn.job;
  const std::string why = WhyItGoes(departing);
  job.ChangeNode(node, [&why](Node& n) { n.left_out = why; });
  if (!CanGoOn(job)) return job.ChangeNode(node, [](Node& n) { n.left_out.clear(); });
  node.departs = true;
  job.left_out.insert(session);
  job.platform.training.erase(session);
  if (node.group_rank >= 0 && job.round) job.round->any_left_out = true;
  turn.remember = true;
  const std::string name = NodeName(job, node.hello);
  turn.Note("node-departs", name,
            fmt::format("node {} goes ({}{}): the others train without it", name, why,
                        departing.name.empty() ? "" : ", " + departing.name));
  turn.SendNotice(session, fmt::format("this node goes ({}): the others train without it", why));
}

// As many nodes at most; of the minimum that was asked for, so many.
void Resize(Turn& turn, uint32_t max_nodes, const std::string& why) {
  JobState& job = turn.job;
  v1::JobSpec spec = *job.spec;
  if (spec.asked_max_nodes() == 0) spec.set_asked_max_nodes(spec.max_nodes());
  spec.set_asked_min_nodes(AskedMinNodes(spec));
  spec.set_max_nodes(max_nodes);
  spec.set_min_nodes(std::min(spec.asked_min_nodes(), max_nodes));
  if (spec.max_nodes() == job.spec->max_nodes()) return;
  const std::string instead = fmt::format("--nnodes={} in place of {}", NodesText(spec), NodesText(*job.spec));
  if (const std::optional<std::string> fault = SpecFault(spec)) {
    return turn.Note("job-not-resized", "", fmt::format("{}, and {} cannot be: {}", why, instead, *fault));
  }
  const bool grows = spec.max_nodes() > job.spec->max_nodes();
  turn.Note("job-resized", "", fmt::format("{}: {}", why, instead));
  job.SetSpec(spec);
  turn.remember = true;
  if (grows && job.phase == Phase::kRunning && CanGrow(job)) PlanGrowth(turn);
}

// Ranks that were told of a change before may have waited for it all that time: what is left of theirs begins anew.
void EndWait(Turn& turn) {
  JobState& job = turn.job;
  if (std::exchange(job.platform.await_until, kNever) == kNever || !job.round || !job.spec) return;
  Instant& by = job.round->rescale_by;
  if (by != kNever) by = std::max(by, turn.now + job.spec->rescale_grace_ms());
}

void Heard(Turn& turn, const v1::PlatformView& view) {
  JobState& job = turn.job;
  Platform& platform = job.platform;
  platform.generation = view.generation();
  if (job.epoch && view.has_master_epoch() && view.master_epoch() > *job.epoch) {
    platform.has_another = true;
    return turn.Note("master-replaced", "",
                     fmt::format("the platform has another master for this job, of epoch {}; this one's is {}: its "
                                 "nodes go there",
                                 view.master_epoch(), *job.epoch));
  }
  std::map<std::string, Departing> departing;
  for (const v1::Departure& d : view.departures()) {
    departing[d.address()] = {d.name(), d.reason(), turn.now + d.left_ms()};
  }
  const bool any_stays = std::ranges::any_of(
      platform.departing, [&departing](const auto& before) { return !departing.contains(before.first); });
  platform.departing = std::move(departing);
  if (any_stays) job.left_out_due = turn.now;
  platform.training.clear();
  platform.tried_with = kNotTried;
  if (!platform.departing.empty()) {
    for (const auto& [session, node] : job.nodes) AdmitDeparting(turn, session, node);
  }
  platform.switches.clear();
  for (const v1::NodePlace& place : view.places()) {
    platform.switches[place.address()] = {place.pod_switch(), place.access_switch()};
  }
  platform.wanted_nodes = view.wanted_nodes();
  EndWait(turn);
  TakeWantedNodes(turn);
}

void Heard(Turn& turn, const v1::PlatformHello& hello) {
  Platform& platform = turn.job.platform;
  platform.attached = true;
  platform.forget_at = kNever;
  platform.generation = 0;  // another stream counts anew
  if (platform.instance != hello.instance()) platform.facts = 0;
  platform.instance = hello.instance();
  platform.lease = hello.lease();
  platform.epoch = hello.epoch();
  turn.Note("platform-attached", "",
            fmt::format("{} {} runs this job's nodes", hello.platform(), hello.software_version()));
}

// One that comes again was on its way when the stream before broke, and had come.
void Heard(Turn& turn, const v1::PlatformFact& fact) {
  Platform& platform = turn.job.platform;
  if (fact.number() > 0 && fact.number() <= platform.facts) return;
  platform.facts = std::max(platform.facts, fact.number());
  turn.Note("platform-fact", fact.name(), fact.sentence(), -1, {{"kind", fact.kind()}, {"address", fact.address()}});
}

}  // namespace

PlatformSaid SaidByPlatform(v1::PlatformMessage message) {
  if (message.has_view()) AdmitView(*message.mutable_view());
  if (message.has_hello()) {
    CutText(*message.mutable_hello()->mutable_platform(), kMaxNameBytes);
    CutText(*message.mutable_hello()->mutable_software_version(), kMaxNameBytes);
    CutText(*message.mutable_hello()->mutable_instance(), kMaxNameBytes);
    CutText(*message.mutable_hello()->mutable_lease(), kMaxNameBytes);
    message.mutable_hello()->clear_job_id();  // the door has compared it
  }
  if (message.has_fact()) {
    v1::PlatformFact& fact = *message.mutable_fact();
    for (std::string* text : {fact.mutable_name(), fact.mutable_address(), fact.mutable_kind()}) {
      CutText(*text, kMaxNameBytes);
    }
    CutText(*fact.mutable_sentence(), kMaxReasonBytes);
  }
  return {std::move(message)};
}

std::string PlatformRefusal(const JobState& job, const v1::PlatformHello& hello) {
  const Platform& platform = job.platform;
  if (hello.lease().empty() || hello.lease() != platform.lease || hello.epoch() >= platform.epoch) return "";
  return fmt::format("a later platform runs this job's nodes: its epoch is {}, and this one's {}", platform.epoch,
                     hello.epoch());
}

bool AwaitsPlatform(const JobState& job, Instant now) {
  return job.platform.await_until != kNever && now < job.platform.await_until;
}

void On(Turn& turn, const PlatformSaid& event) {
  if (event.message.has_hello()) return Heard(turn, event.message.hello());
  if (event.message.has_view()) return Heard(turn, event.message.view());
  if (event.message.has_fact()) return Heard(turn, event.message.fact());
}

void On(Turn& turn, const PlatformGone& /*event*/) {
  Platform& platform = turn.job.platform;
  platform.attached = false;
  platform.generation = 0;  // the next one counts anew
  Instant last = turn.now;
  for (const auto& [address, departing] : platform.departing) last = std::max(last, departing.goes_at);
  if (!platform.departing.empty()) platform.forget_at = last + kDepartureKeptMs;
  JobState& job = turn.job;
  if (job.join_deadline != kNever) {  // while it was there nothing was up
    job.join_deadline = std::max(job.join_deadline, turn.now + job.spec->join_timeout_ms());
  }
  turn.Note("platform-gone", "", "the platform's stream is over: what it has said holds for a while");
}

void AdmitDeparting(Turn& turn, uint64_t session, const Node& node) {
  if (DepartureOf(turn.job, node) == nullptr) return;
  turn.job.platform.training.insert(session);
  turn.job.platform.tried_with = kNotTried;
}

void TakeWantedNodes(Turn& turn) {
  JobState& job = turn.job;
  const uint32_t wanted = job.platform.wanted_nodes;
  if (wanted == 0 || !job.spec || !job.spec->sized_by_platform() || job.phase == Phase::kFinished) return;
  const uint32_t unit = job.spec->node_unit();
  Resize(turn, std::max(unit, wanted / unit * unit), fmt::format("the platform wants {} nodes", wanted));
}

void TakeRecalledNodes(Turn& turn, uint32_t nodes) {
  const v1::JobSpec& spec = *turn.job.spec;
  if (!spec.sized_by_platform() || nodes <= spec.max_nodes()) return;
  Resize(turn, nodes, fmt::format("an earlier master had {} nodes", nodes));
}

void KeepAskedNodes(Turn& turn) {
  JobState& job = turn.job;
  if (job.phase == Phase::kFinished) return;
  const uint32_t asked = job.spec->asked_max_nodes();
  if (asked > 0) Resize(turn, asked, "a node's command has numbers of its own");
  v1::JobSpec spec = *job.spec;
  spec.set_sized_by_platform(false);
  job.SetSpec(spec);
  turn.remember = true;
}

uint32_t AskedMinNodes(const v1::JobSpec& spec) {
  return spec.asked_min_nodes() > 0 ? spec.asked_min_nodes() : spec.min_nodes();
}

void SettleDepartures(Turn& turn) {
  JobState& job = turn.job;
  Platform& platform = job.platform;
  if (turn.now >= platform.forget_at) {
    platform.forget_at = kNever;
    platform.departing.clear();
    platform.training.clear();
    job.left_out_due = turn.now;
  }
  if (turn.now >= platform.await_until) {
    EndWait(turn);
    turn.Note("platform-not-heard", "", "the platform has said nothing yet: the job goes on without it");
  }
  if (platform.training.empty() || job.phase == Phase::kFinished || !job.spec) return;
  if (std::exchange(platform.tried_with, job.census.ready()) == job.census.ready()) return;
  const std::set<uint64_t> training = platform.training;
  for (const uint64_t session : training) {
    const auto found = job.nodes.find(session);
    const Departing* const departing = found == job.nodes.end() ? nullptr : DepartureOf(job, found->second);
    if (departing == nullptr || found->second.leaving || !found->second.left_out.empty()) {
      platform.training.erase(session);
      continue;
    }
    TryWithout(turn, session, found->second, *departing);
  }
  platform.tried_with = job.census.ready();
}

Instant DeparturesDue(const JobState& job) {
  if (job.phase == Phase::kFinished) return kNever;  // nobody settles a job that has ended
  return std::min(job.platform.forget_at, job.platform.await_until);
}

const Departing* DepartureOf(const JobState& job, const Node& node) {
  const auto* const found = FindByAddress(job.platform.departing, node);
  return found == nullptr ? nullptr : &found->second;
}

Switches SwitchesOf(const JobState& job, const Node& node) {
  const auto* const found = FindByAddress(job.platform.switches, node);
  return found == nullptr ? Switches{} : found->second;
}

v1::JobView ViewOf(const JobState& job, Instant now) {
  v1::JobView view;
  view.set_generation(job.platform.generation);
  view.set_facts(job.platform.facts);
  view.set_phase(PhaseText(job.phase));
  const Round* const round = job.round ? &*job.round : job.last_round ? &*job.last_round : nullptr;
  if (job.round && job.phase != Phase::kFinished) {
    view.set_nodes(static_cast<uint32_t>(job.round->slots.size()));
    view.set_world_size(job.round->world_size);
  }
  if (round != nullptr) view.set_restart_count(round->restart_count);
  const std::optional<int64_t> step = job.round && job.round->step ? job.round->step : job.highest_step;
  if (step) view.set_step(*step);
  view.set_reason(job.reason);
  if (job.outcome) view.set_exit_code(job.outcome->exit_code);
  if (!job.platform.departing.empty() && KnowsWhoTrains(job)) {
    std::set<std::string> training;
    for (const auto& [session, node] : job.nodes) {
      const auto* const going = node.group_rank < 0 ? nullptr : FindByAddress(job.platform.departing, node);
      if (going != nullptr) training.insert(going->first);
    }
    for (const auto& [address, departing] : job.platform.departing) {
      if (!training.contains(address)) view.add_released(address);
    }
  }
  for (const v1::LeftOut& left_out : LeftOutNow(job.health, now)) {
    if (left_out.rest_ms() == 0) continue;
    v1::UnfitNode& unfit = *view.add_unfit();
    unfit.set_address(left_out.address());
    unfit.set_hostname(left_out.hostname());
    unfit.set_reason(left_out.reason());
    unfit.set_left_ms(left_out.rest_ms());
  }
  return view;
}

}  // namespace phalanx::master

// More than 500 lines: a network, machines and two shells that know each other, and nobody else.
#include "simulation/succession_world.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "base/check.h"
#include "base/net.h"
#include "master/core/admit.h"
#include "master/core/core.h"
#include "master/core/succession.h"
#include "master/journal/snapshot.h"
#include "master/serve/shell_decisions.h"
#include "simulation/random.h"
#include "wire/limits.h"
#include "wire/protocol.h"

namespace phalanx::simulation {
namespace {

constexpr uint16_t kPort = 29'400;
constexpr Micros kStart = 20 * kMs;  // of a process
constexpr Micros kHeraldAgain = 200 * kMs;
constexpr int64_t kHeraldDialMs = 400;
constexpr Micros kPing = wire::kPingMs * kMs;
constexpr Micros kFaultsUntil = 60 * kSecond;
constexpr Micros kSettles = 90 * kSecond;
constexpr uint64_t kMostEvents = 2'000'000;
// After so many the job always trains again.
constexpr uint64_t kFewFaults = 2;

std::string AddressOf(size_t machine) { return fmt::format("10.0.0.{}", machine + 1); }

struct Stream;

// A process of a master.
struct Master {
  size_t machine = 0;
  uint16_t port = 0;
  int parent = -1;  // the agent that started it
  master::JobState state;
  bool alive = true;
  uint64_t next_session = 1;
  std::map<uint64_t, Stream*> streams;
  master::Attendance attendance;
  uint64_t alarm = 0;
};

// One life of an agent.
struct Agent {
  int id = 0;
  size_t machine = 0;
  std::string node_id;
  agent::CoreState core;
  bool alive = true;
  Stream* stream = nullptr;
  uint64_t dial = 0;
  uint64_t sequence = 0;
  Master* child = nullptr;
  bool child_serves = false;
  bool holds_child = false;  // that is to be elected
  uint16_t own_port = kPort;
  std::vector<std::string> heralds;
  std::set<Stream*> herald_streams;
  std::optional<v1::StartRound> last_round;
  uint64_t alarm = 0;
  std::vector<agent::Event> queued;
  bool stepping = false;
};

struct Stream {
  Agent* agent = nullptr;
  Master* master = nullptr;
  uint64_t session = 0;
  bool herald = false;
  bool agent_open = true;
  bool master_open = true;
  bool greeted = false;
  Micros silent_since = -1;
  std::vector<Task> held[2];  // towards the master, from it
  Micros last_arrival[2] = {0, 0};
};

class SuccessionWorld {
 public:
  SuccessionWorld(uint64_t seed, bool told) : told_(told), random_(seed, 1) {
    result_.seed = seed;
    const size_t machines = static_cast<size_t>(random_.OneOf({2, 3, 3, 3, 4, 5, 5, 7}));
    on_.assign(machines, true);
    side_.assign(machines, 0);
    journals_.resize(machines);
    spec_ = master::DefaultSpec();
    spec_.set_min_nodes(1);
    spec_.set_max_nodes(static_cast<uint32_t>(machines));
    spec_.set_max_restarts(1'000);
    spec_.set_rescale_grace_ms(0);
    spec_.set_join_timeout_ms(3'600'000);
    // Drawn apart, so that other worlds are what they would be without it.
    Random of_lease(seed, 6);
    if (of_lease.OneIn(8)) spec_.set_lease_ms(of_lease.OneOf({1'000, 1'500, 9'000}));
  }

  SuccessionResult Run() {
    for (size_t machine = 0; machine < on_.size(); ++machine) {
      queue_.At(static_cast<Micros>(machine) * 50 * kMs, [this, machine] { Arrive(machine); });
    }
    PlanFaults();
    queue_.At(kFaultsUntil + kSettles, [this] { over_ = true; });
    while (!queue_.empty() && !over_ && !result_.violated) {
      queue_.ServeNext();
      result_.digest = (result_.digest ^ static_cast<uint64_t>(queue_.now())) * 0x100000001B3ULL;
      CheckWorlds();
      if (queue_.served() > kMostEvents) Violated("it-ends: so many events that something runs in circles");
    }
    if (!result_.violated) CheckTrains();
    result_.events = queue_.served();
    return std::move(result_);
  }

 private:
  // --- what is told ---
  template <typename... Args>
  void Say(const std::string& who, fmt::format_string<Args...> text, Args&&... args) {
    if (!told_) return;
    result_.story.push_back(fmt::format("{:>10.3f} s  {:<18} {}", static_cast<double>(queue_.now()) / 1e6, who,
                                        fmt::format(text, std::forward<Args>(args)...)));
  }
  void Violated(const std::string& what) {
    if (!result_.violated) result_.violated = what;
    Say("VIOLATED", "{}", what);
  }
  static std::string Name(const Master& m) { return fmt::format("master@{}:{}", m.machine, m.port); }

  Instant Now() const { return queue_.now() / kMs; }

  // --- the network ---
  // What is sent there arrives.
  bool Carries(size_t from, size_t to) const {
    if (!on_[from] || !on_[to]) return false;
    return from == to || side_[from] == side_[to] || (one_way_ && side_[from] < side_[to]);
  }
  // And is answered.
  bool Reaches(size_t from, size_t to) const { return Carries(from, to) && Carries(to, from); }
  Micros Delay() { return random_.Between(200, 2'000); }

  bool Carries(const Stream* s, bool up) const {
    const size_t agent = s->agent->machine, master = s->master->machine;
    return up ? Carries(agent, master) : Carries(master, agent);
  }

  // In order, as TCP; what does not get through waits.
  void Carry(Stream* s, bool up, Task&& task) {
    const size_t way = up ? 0 : 1;
    if (!Carries(s, up) || !s->held[way].empty()) return s->held[way].push_back(std::move(task));
    const Micros at = std::max(s->last_arrival[way], queue_.now() + Delay());
    s->last_arrival[way] = at;
    queue_.At(at, [this, s, up, way, task = std::make_shared<Task>(std::move(task))]() {
      if (Carries(s, up)) return (*task)();
      s->held[way].push_back(std::move(*task));
    });
  }

  void Flush() {
    for (const auto& stream : streams_) {
      Stream* s = stream.get();
      for (const bool up : {true, false}) {
        if (!Carries(s, up)) continue;
        for (Task& task : std::exchange(s->held[up ? 0 : 1], {})) Carry(s, up, std::move(task));
      }
    }
  }

  Master* Listener(const std::string& address) {
    for (const auto& m : masters_) {
      if (m->alive && JoinHostPort(AddressOf(m->machine), m->port) == address) return m.get();
    }
    return nullptr;
  }
  static size_t MachineOf(const std::string& address) {
    return static_cast<size_t>(std::stoul(address.substr(address.rfind('.') + 1))) - 1;
  }

  // `done(stream, silent)`: null where there is none.
  void Connect(Agent* a, const std::string& address, bool herald, int64_t timeout_ms,
               std::function<void(Stream*, bool silent)> done) {
    const size_t to = MachineOf(address);
    if (!Reaches(a->machine, to)) {
      queue_.After(timeout_ms * kMs, [done = std::move(done)] { done(nullptr, true); });
      return;
    }
    queue_.After(2 * Delay(), [this, a, address, herald, done = std::move(done)] {
      Master* m = Listener(address);
      if (!a->alive || m == nullptr || !Reaches(a->machine, m->machine)) return done(nullptr, false);
      streams_.push_back(std::make_unique<Stream>());
      Stream* s = streams_.back().get();
      s->agent = a;
      s->master = m;
      s->herald = herald;
      s->session = m->next_session++;
      m->streams[s->session] = s;
      ++m->attendance.open_streams;
      WatchSilence(s);
      done(s, false);
    });
  }

  // gRPC's keepalive.
  void WatchSilence(Stream* s) {
    queue_.After(100 * kMs, [this, s] {
      if (!s->agent_open || !s->agent->alive) return;
      const bool reaches = Reaches(s->agent->machine, s->master->machine);
      if (reaches) s->silent_since = -1;
      if (!reaches && s->silent_since < 0) s->silent_since = queue_.now() + random_.Between(0, kPing) - kPing;
      if (!reaches && queue_.now() - s->silent_since >= 2 * kPing) {
        CloseByAgent(s);
        return Down(s, true);
      }
      WatchSilence(s);
    });
  }

  // The agent's end is closed, by itself or by its kernel: the master reads that behind all else.
  void CloseByAgent(Stream* s) {
    if (!std::exchange(s->agent_open, false)) return;
    Carry(s, true, [this, s] { EndAtMaster(s); });
  }
  void EndAtMaster(Stream* s) {
    if (!std::exchange(s->master_open, false)) return;
    Master* m = s->master;
    m->streams.erase(s->session);
    if (--m->attendance.open_streams == 0) m->attendance.empty_since = Now();
    if (m->alive) FeedMaster(m, master::AgentDetached{s->session, "its stream broke"});
  }
  void CloseByMaster(Stream* s) {
    if (!s->master_open) return;
    EndAtMaster(s);
    Carry(s, false, [this, s] {
      if (std::exchange(s->agent_open, false)) Down(s, false);
    });
  }
  // The agent's end learns that it is over.
  void Down(Stream* s, bool silent) {
    Agent* a = s->agent;
    if (!a->alive) return;
    if (s->herald) {
      a->herald_streams.erase(s);
      const std::string address = JoinHostPort(AddressOf(s->master->machine), s->master->port);
      queue_.After(kHeraldAgain, [this, a, address] { Herald(a, address); });
      return;
    }
    if (a->stream != s) return;
    a->stream = nullptr;
    FeedAgent(a, agent::LinkDown{silent ? "silent" : "reset", false, silent});
  }

  // --- masters ---
  Master* StartMaster(Agent* parent, uint16_t port, bool resume, uint64_t term, uint64_t candidate_term,
                      bool before_broke = false) {
    masters_.push_back(std::make_unique<Master>());
    Master* m = masters_.back().get();
    m->machine = parent->machine;
    m->port = port;
    m->parent = parent->id;
    m->state.job_id = "job";
    std::optional<std::string>& journal = journals_[m->machine];
    if (candidate_term == 0 && journal) {
      StatusOr<master::JobState> past = master::RestoreState(*journal, "job", Now());
      PHX_CHECK(past.ok(), "a journal of the master's own that it does not read");
      if (resume) {
        m->state = *std::move(past);
      } else {
        master::BewareOf(m->state, *past, Now());
      }
    }
    if (candidate_term == 0 && !resume) journal.reset();
    m->state.master_id = fmt::format("m{}", masters_.size());
    m->state.port = port;
    m->state.succession = true;
    m->state.at_endpoint = candidate_term == 0 && port == kPort && m->machine == 0;
    if (m->state.at_endpoint) m->state.voters.CountEnded();
    m->state.term = std::max(m->state.term, term);
    if (candidate_term > 0) m->state.candidacy = master::CandidacyOf(candidate_term, before_broke);
    m->attendance.empty_since = Now();
    Say(Name(*m), "starts{}{}", resume ? " from its journal" : "",
        candidate_term > 0 ? fmt::format(", to be elected for term {}", candidate_term) : "");
    if (resume && m->state.arrivals > 0) CarryOut(m, master::Resume(m->state, Now()));
    ArmMaster(m);
    return m;
  }

  void FeedMaster(Master* m, const master::Event& event) {
    if (!m->alive) return;
    const bool stood = m->state.candidacy.has_value();
    const std::vector<master::Decision> decisions = master::Step(m->state, event, Now());
    if (stood && !m->state.candidacy) {
      ++result_.elections;
      Say(Name(*m), "is elected for term {}", m->state.term);
    }
    CarryOut(m, decisions);
    ArmMaster(m);
  }

  void CarryOut(Master* m, const std::vector<master::Decision>& decisions) {
    for (const master::Decision& decision : decisions) {
      if (const auto* send = std::get_if<master::Send>(&decision.action)) SendDown(m, *send);
      if (const auto* drop = std::get_if<master::Drop>(&decision.action)) {
        if (m->streams.contains(drop->session)) {
          Stream* s = m->streams[drop->session];
          queue_.After(0, [this, s] { CloseByMaster(s); });
        }
      }
      if (std::holds_alternative<master::Remember>(decision.action)) {
        journals_[m->machine] = master::SaveState(m->state, Now());
      }
      if (const auto* probe = std::get_if<master::Probe>(&decision.action)) Ask(m, *probe);
      if (const auto* row = std::get_if<master::Record>(&decision.action)) {
        Say(Name(*m), "{}: {}", row->kind, decision.reason);
      }
    }
  }

  void SendDown(Master* m, const master::Send& send) {
    const auto found = m->streams.find(send.session);
    if (found == m->streams.end()) return;
    Stream* s = found->second;
    Carry(s, false, [this, s, message = send.message] {
      if (s->herald && message->has_refused() && s->agent_open) {
        CloseByAgent(s);
        return Down(s, false);
      }
      if (!s->agent_open || !s->agent->alive || s->agent->stream != s) return;
      FeedAgent(s->agent, agent::FromMaster{*message});
    });
    // As the session does: the agent ends the stream; one that does not is cancelled.
    if (send.message->has_refused() || send.message->has_finish()) {
      queue_.After(master::kHandshakeMs * kMs, [this, s] { CloseByMaster(s); });
    }
  }

  void Ask(Master* m, const master::Probe& probe) {
    const auto answer = [this, m](master::Probed said) {
      queue_.After(0, [this, m, said = std::move(said)] { FeedMaster(m, said); });
    };
    const size_t to = MachineOf(probe.address);
    const Micros takes = Reaches(m->machine, to) ? 2 * Delay() : 500 * kMs;
    queue_.After(takes, [this, m, probe, to, answer] {
      master::Probed said{probe.node_id, Reach::kSilent, Reach::kSilent};
      if (Reaches(m->machine, to)) {
        const std::string at = JoinHostPort(probe.address, static_cast<uint16_t>(probe.master_port));
        said.master = Listener(at) != nullptr ? Reach::kAnswered : Reach::kRefused;
        said.agent = Presence(probe.presence_port) ? Reach::kAnswered : Reach::kRefused;
      }
      answer(said);
    });
  }
  bool Presence(uint32_t port) const {
    return std::any_of(agents_.begin(), agents_.end(),
                       [port](const auto& a) { return a->alive && static_cast<uint32_t>(a->id) + 1'000 == port; });
  }

  void ArmMaster(Master* m) {
    const Instant ends = master::EndsAt(m->attendance, m->state, agent::joining::MasterLingerMs(spec_.max_nodes()));
    if (Now() >= ends) return EndMaster(m, "it is over");
    const Instant next = std::min(master::NextDeadline(m->state), ends);
    const uint64_t alarm = ++m->alarm;
    if (next == kNever) return;
    queue_.At(std::max<Micros>(next * kMs, queue_.now() + 1), [this, m, alarm] {
      if (!m->alive || m->alarm != alarm) return;
      if (master::NextDeadline(m->state) <= Now()) return FeedMaster(m, master::Tick{});
      ArmMaster(m);
    });
  }

  void EndMaster(Master* m, const std::string& why) {
    if (!std::exchange(m->alive, false)) return;
    Say(Name(*m), "ends: {}", why);
    for (const auto& [session, s] : std::map(m->streams)) CloseByMaster(s);
    Agent* parent = agents_[static_cast<size_t>(m->parent)].get();
    if (!parent->alive || parent->child != m) return;
    parent->child = nullptr;
    parent->child_serves = false;
    queue_.After(kMs, [this, parent, why] { FeedAgent(parent, agent::MasterChildDied{why}); });
  }

  // --- agents ---
  void Arrive(size_t machine) {
    if (!on_[machine] || AgentOn(machine) != nullptr) return;
    agents_.push_back(std::make_unique<Agent>());
    Agent* a = agents_.back().get();
    a->id = static_cast<int>(agents_.size()) - 1;
    a->machine = machine;
    a->node_id = fmt::format("node{}-{}", machine, a->id);
    if (machine == 0) a->own_port = kPort + 1;  // the endpoint's is another master's there
    a->core.options.max_nodes = spec_.max_nodes();
    a->core.options.node_id = a->node_id;
    a->core.options.succession = true;
    a->core.options.restart_grace_ms = 10;
    a->core.options.join_timeout_ms = spec_.join_timeout_ms();
    Say(a->node_id, "comes");
    const std::string endpoint = JoinHostPort(AddressOf(0), kPort);
    FeedAgent(a, agent::Prepared{1, 1});
    if (machine != 0 || Listener(endpoint) != nullptr) {
      FeedAgent(a, agent::Begin{endpoint, 0, false});
    } else {
      a->child = StartMaster(a, kPort, false, 0, 0);
      a->child_serves = true;
      FeedAgent(a, agent::Begin{endpoint, 0, true});
    }
    FeedAgent(a, agent::Warm{});
  }
  Agent* AgentOn(size_t machine) {
    for (const auto& a : agents_) {
      if (a->alive && a->machine == machine) return a.get();
    }
    return nullptr;
  }

  void FeedAgent(Agent* a, agent::Event event) {
    if (!a->alive) return;
    a->queued.push_back(std::move(event));
    if (a->stepping) return;
    a->stepping = true;
    while (!a->queued.empty() && a->alive) {
      const agent::Event next = std::move(a->queued.front());
      a->queued.erase(a->queued.begin());
      for (const agent::Decision& decision : agent::Step(a->core, next, Now())) {
        std::visit([this, a](const auto& action) { Do(a, action); }, decision.action);
      }
    }
    a->stepping = false;
    ArmAgent(a);
  }
  void ArmAgent(Agent* a) {
    const Instant next = agent::NextDeadline(a->core);
    const uint64_t alarm = ++a->alarm;
    if (!a->alive || next == kNever) return;
    queue_.At(std::max<Micros>(next * kMs, queue_.now() + 1), [this, a, alarm] {
      if (a->alive && a->alarm == alarm) FeedAgent(a, agent::Tick{});
    });
  }

  void Do(Agent* a, const agent::Dial& action) {
    if (a->stream != nullptr) CloseByAgent(std::exchange(a->stream, nullptr));
    const uint64_t dial = ++a->dial;
    Connect(a, action.address, false, action.timeout_ms, [this, a, dial](Stream* s, bool silent) {
      if (!a->alive || a->dial != dial) {
        if (s != nullptr) CloseByAgent(s);
        return;
      }
      if (s == nullptr) return FeedAgent(a, agent::LinkDown{silent ? "silent" : "refused", false, silent});
      a->stream = s;
      a->sequence = 0;
      FeedAgent(a, agent::LinkUp{AddressOf(s->master->machine)});
    });
  }
  void Do(Agent* a, const agent::HangUp&) {
    Stream* s = a->stream;
    if (s == nullptr) return;
    CloseByAgent(s);
    queue_.After(0, [this, s] { Down(s, false); });
  }
  v1::AgentMessage HelloOf(Agent* a) {
    v1::AgentMessage message;
    v1::Hello& hello = *message.mutable_hello();
    hello.set_protocol_version(wire::kProtocolVersion);
    hello.set_job_id("job");
    hello.set_node_id(a->node_id);
    hello.set_hostname(fmt::format("host{}", a->machine));
    hello.set_address(AddressOf(a->machine));
    hello.set_node_rank_wanted(-1);
    hello.set_local_world_size(1);
    *hello.mutable_spec() = spec_;
    hello.set_warming(a->core.warming);
    hello.set_seen_epoch(a->core.seen_epoch);
    if (const v1::StartRound* live = agent::LiveRound(a->core)) {
      *hello.mutable_live_round() = *live;
    } else if (a->last_round) {
      *hello.mutable_last_round() = *a->last_round;
    }
    agent::FillSuccession(a->core, hello);
    hello.set_master_port(a->own_port);
    hello.set_presence_port(static_cast<uint32_t>(a->id) + 1'000);
    hello.set_hosts_master(agent::HostsMaster(a->core, a->child_serves));
    return message;
  }
  void SendUp(Agent* a, v1::AgentMessage message) {
    if (a->stream != nullptr) SendOn(a, a->stream, std::move(message));
  }
  void SendOn(Agent* a, Stream* s, v1::AgentMessage message) {
    message.set_next_store_port(20'000 + static_cast<uint32_t>(a->id));
    Carry(s, true, [this, s, told = std::make_shared<v1::AgentMessage>(std::move(message))] {
      if (!s->master_open || !s->master->alive) return;
      if (std::exchange(s->greeted, true)) return FeedMaster(s->master, master::EventOf(s->session, *told));
      s->master->attendance.any_agent = true;
      FeedMaster(s->master, master::AttachedOf(s->session, *told, told->hello().address()));
    });
  }
  void Do(Agent* a, const agent::SendHello&) { SendUp(a, HelloOf(a)); }
  void Do(Agent* a, const agent::SendBeat& action) {
    v1::AgentMessage message;
    message.mutable_beat()->set_epoch(action.epoch);
    SendUp(a, std::move(message));
  }
  void Do(Agent* a, const agent::Send& action) { SendUp(a, action.message); }
  void Do(Agent* a, const agent::StartWorker& action) {
    a->last_round = action.round;
    const uint64_t epoch = action.round.epoch();
    Say(a->node_id, "runs ranks of term {}, epoch {}, {} nodes", action.round.term(), epoch,
        action.round.group_world_size());
    queue_.After(kMs, [this, a, epoch] { FeedAgent(a, agent::WorkerStarted{0, epoch, 7}); });
  }
  void Do(Agent* a, const agent::EndGroup& action) {
    queue_.After(kMs, [this, a, epoch = action.epoch] { FeedAgent(a, agent::GroupGone{0, epoch}); });
  }
  void Do(Agent* a, const agent::KillGroup&) {
    const uint64_t epoch = a->core.round ? a->core.round->epoch() : 0;
    queue_.After(kMs, [this, a, epoch] { FeedAgent(a, agent::GroupGone{0, epoch}); });
  }
  void Do(Agent* a, const agent::RestartMaster& action) {
    const uint16_t port = a->core.moved_on || a->core.search.own.empty() ? kPort : a->own_port;
    queue_.After(kStart, [this, a, port, term = action.term] {
      if (!a->alive) return;
      if (Listener(JoinHostPort(AddressOf(a->machine), port)) != nullptr) {
        return FeedAgent(a, agent::MasterChildDied{"the port is taken"});
      }
      a->child = StartMaster(a, port, true, term, 0);
      a->child_serves = true;
    });
  }
  void Do(Agent* a, const agent::TakeOver& action) {
    a->holds_child = true;
    queue_.After(kStart, [this, a, term = action.term, broke = action.before_broke] {
      if (!a->alive) return;
      const std::string address = JoinHostPort(AddressOf(a->machine), a->own_port);
      if (Listener(address) != nullptr) return FeedAgent(a, agent::MasterChildDied{"the port is taken"});
      a->child = StartMaster(a, a->own_port, false, 0, term, broke);
      a->child_serves = true;
      if (!a->holds_child) LetGo(a->child);
      FeedAgent(a, agent::CandidateReady{address});
    });
  }
  void Do(Agent* a, const agent::LetGo&) {
    a->holds_child = false;
    if (a->child != nullptr) LetGo(a->child);
  }
  void LetGo(Master* m) {
    queue_.After(kMs, [this, m] {
      if (m->state.candidacy) EndMaster(m, "its node does not want it");
    });
  }
  void Do(Agent* a, const agent::Herald& action) {
    a->heralds = action.addresses;
    for (const std::string& address : action.addresses) Herald(a, address);
  }
  void Do(Agent*, const agent::GiveUpAnswers&) {}  // its ranks ask the master nothing
  void Do(Agent* a, const agent::StopHerald&) {
    a->heralds.clear();
    for (Stream* s : std::exchange(a->herald_streams, {})) CloseByAgent(s);
  }
  void Herald(Agent* a, const std::string& address) {
    const auto wanted = [a, address] {
      return a->alive && std::find(a->heralds.begin(), a->heralds.end(), address) != a->heralds.end();
    };
    if (!wanted()) return;
    Connect(a, address, true, kHeraldDialMs, [this, a, address, wanted](Stream* s, bool) {
      if (s != nullptr && (!wanted() || !a->core.attached)) CloseByAgent(std::exchange(s, nullptr));
      if (s == nullptr) {
        queue_.After(kHeraldAgain, [this, a, address] { Herald(a, address); });
        return;
      }
      a->herald_streams.insert(s);
      v1::AgentMessage message = HelloOf(a);
      message.mutable_hello()->set_only_tells(true);
      SendOn(a, s, std::move(message));
    });
  }
  void Do(Agent* a, const agent::Say& action) { Say(a->node_id, "{}", action.text); }
  void Do(Agent* a, const agent::Exit& action) {
    Say(a->node_id, "exits with {}", action.code);
    KillAgent(a);
  }
  template <typename Other>
  void Do(Agent*, const Other&) {}  // stores, boards, spares

  // Its guard ends its ranks; its child lives on, where it is the job's master.
  void KillAgent(Agent* a) {
    if (!std::exchange(a->alive, false)) return;
    if (a->stream != nullptr) CloseByAgent(std::exchange(a->stream, nullptr));
    for (Stream* s : std::exchange(a->herald_streams, {})) CloseByAgent(s);
    if (a->child != nullptr) LetGo(a->child);
    FailPeers(*a);
  }
  // Ranks see that a peer is gone, some of them.
  void FailPeers(const Agent& dead) {
    if (!dead.core.round) return;
    const std::string key = KeyOf(*dead.core.round);
    for (const auto& peer : agents_) {
      Agent* a = peer.get();
      if (!a->alive || !a->core.round || KeyOf(*a->core.round) != key || random_.OneIn(2)) continue;
      if (!Reaches(a->machine, dead.machine)) continue;
      agent::WorkerEnded ended;
      ended.exited.set_epoch(a->core.round->epoch());
      ended.exited.set_exit_code(1);
      ended.exited.set_script_started(true);
      ended.exited.set_last_words("RuntimeError: Connection closed by peer");
      queue_.After(random_.Between(1, 50) * kMs, [this, a, ended] { FeedAgent(a, ended); });
    }
  }

  // --- faults ---
  void PlanFaults() {
    const int64_t faults = random_.Between(1, 6);
    for (int64_t i = 0; i < faults; ++i) {
      // Often close behind each other: two deaths in a row.
      const Micros at = random_.OneIn(2) ? random_.Between(2 * kSecond, kFaultsUntil - 30 * kSecond)
                                         : 5 * kSecond + random_.Between(0, 4'000) * kMs;
      queue_.At(at, [this] { Strike(); });
    }
  }
  void Strike() {
    ++faults_;
    const size_t machine = random_.OneIn(2) ? Hosting() : random_.Below(on_.size());
    const Micros lasts = random_.Between(200, 25'000) * kMs;
    switch (random_.Below(6)) {
      case 0:
        Say("FAULT", "the master on machine {} is killed", machine);
        for (const auto& m : std::vector<Master*>(Living(machine))) EndMaster(m, "SIGKILL");
        return;
      case 1:
        Say("FAULT", "the agent on machine {} is killed", machine);
        if (Agent* a = AgentOn(machine)) KillAgent(a);
        queue_.After(lasts, [this, machine] { Arrive(machine); });
        return;
      case 2:
        Say("FAULT", "all of the job on machine {} is killed", machine);
        if (Agent* a = AgentOn(machine)) KillAgent(a);
        for (const auto& m : std::vector<Master*>(Living(machine))) EndMaster(m, "SIGKILL");
        queue_.After(lasts, [this, machine] { Arrive(machine); });
        return;
      case 3:
        return PowerOff(machine, lasts);
      default:
        return Cut(lasts);
    }
  }
  std::vector<Master*> Living(size_t machine) {
    std::vector<Master*> living;
    for (const auto& m : masters_) {
      if (m->alive && m->machine == machine) living.push_back(m.get());
    }
    return living;
  }
  // Where most agents have their master.
  size_t Hosting() {
    for (const auto& a : agents_) {
      if (a->alive && a->core.attached && a->stream != nullptr) return a->stream->master->machine;
    }
    return 0;
  }
  void PowerOff(size_t machine, Micros lasts) {
    if (!on_[machine]) return;
    Say("FAULT", "machine {} loses power for {} s", machine, lasts / kSecond);
    on_[machine] = false;
    for (const auto& a : agents_) {
      if (a->machine == machine) a->alive = false;
    }
    for (Master* m : Living(machine)) m->alive = false;
    queue_.After(lasts, [this, machine] {
      Say("world", "machine {} is on again", machine);
      on_[machine] = true;
      for (const auto& stream : streams_) {  // its kernel knows nothing of them
        Stream* s = stream.get();
        if (s->agent->machine == machine && !s->agent->alive && s->agent_open) CloseByAgent(s);
        if (s->master->machine == machine && !s->master->alive && s->master_open) CloseByMaster(s);
      }
      Flush();
      queue_.After(random_.Between(0, 3'000) * kMs, [this, machine] { Arrive(machine); });
    });
  }
  void Cut(Micros lasts) {
    for (int& side : side_) side = static_cast<int>(random_.Below(random_.OneIn(4) ? 3 : 2));
    one_way_ = random_.OneIn(3);
    Say("FAULT", "the network falls apart: {}{}", fmt::join(side_, " "),
        one_way_ ? ", and what a lower side sends arrives" : "");
    Flush();
    const uint64_t cut = ++cuts_;
    queue_.After(lasts, [this, cut] {
      if (cut != cuts_) return;
      Say("world", "the network is whole again");
      std::fill(side_.begin(), side_.end(), 0);
      one_way_ = false;
      Flush();
    });
  }

  // --- rules ---
  static std::string KeyOf(const v1::StartRound& round) {
    return fmt::format("term {} epoch {} at {}:{}", round.term(), round.epoch(), round.store_address(),
                       round.store_port());
  }
  // Rounds whose nodes all run their ranks.
  std::map<std::string, size_t> Worlds() const {
    std::map<std::string, size_t> running;
    std::map<std::string, size_t> worlds;
    for (const auto& a : agents_) {
      const agent::CoreState& core = a->core;
      if (!a->alive || core.phase != agent::Phase::kRunning || !core.round || core.next || core.workers.empty())
        continue;
      const agent::WorkerState& worker = core.workers.begin()->second;
      if (worker.ended || worker.doomed) continue;
      const std::string key = KeyOf(*core.round);
      if (++running[key] == core.round->group_world_size()) worlds[key] = running[key];
    }
    return worlds;
  }
  void CheckWorlds() {
    const std::map<std::string, size_t> worlds = Worlds();
    if (worlds.size() == 1 && worlds.begin()->first != last_world_) {
      last_world_ = worlds.begin()->first;
      ++result_.worlds;
      last_members_.clear();
      for (const auto& a : agents_) {
        if (!a->alive || !a->core.round || KeyOf(*a->core.round) != last_world_) continue;
        last_members_.insert(a->id);
        last_rank_ = {a->core.round->term(), a->core.round->epoch()};
      }
    }
    if (worlds.size() < 2) return;
    Violated(fmt::format("one-world: {} and {} train at the same time", worlds.begin()->first, worlds.rbegin()->first));
  }
  void CheckTrains() {
    size_t there = 0;
    size_t survivors = 0;
    for (const auto& a : agents_) {
      // Who comes late finds the job where somebody answers at its endpoint.
      const bool lost = !a->core.was_attached && Listener(JoinHostPort(AddressOf(0), kPort)) == nullptr;
      there += a->alive && !lost ? 1 : 0;
      survivors += a->alive && last_members_.contains(a->id) ? 1 : 0;
    }
    const std::map<std::string, size_t> worlds = Worlds();
    if (worlds.size() == 1 && worlds.begin()->second == there) return;
    // Most of those that trained last have ended, or of a round that somebody was told of and that never trained:
    // nobody can know that they do not train on somewhere.
    const bool told_later = std::any_of(agents_.begin(), agents_.end(), [this](const auto& a) {
      const auto& world = a->core.search.world;
      return a->alive && world && std::pair(world->term(), world->epoch()) > last_rank_;
    });
    // So many faults at once may leave masters that know too little of each other: they wait, and never both train.
    if (2 * survivors <= last_members_.size() || told_later || faults_ > kFewFaults) {
      ++result_.held;
      return;
    }
    std::string who;
    for (const auto& a : agents_) {
      if (a->alive) who += fmt::format(" {} ({})", a->node_id, a->core.attached ? "attached" : "no master");
    }
    Violated(fmt::format("it-trains: {} nodes are there, and not in one round:{}", there, who));
  }

  const bool told_;
  Random random_;
  EventQueue queue_;
  SuccessionResult result_;
  v1::JobSpec spec_;
  std::vector<bool> on_;
  std::vector<int> side_;
  bool one_way_ = false;  // what is sent from a lower side to a higher one arrives, and no answer
  uint64_t cuts_ = 0;
  uint64_t faults_ = 0;
  std::vector<std::optional<std::string>> journals_;
  std::vector<std::unique_ptr<Master>> masters_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<std::unique_ptr<Stream>> streams_;
  std::string last_world_;
  std::set<int> last_members_;
  std::pair<uint64_t, uint64_t> last_rank_;
  bool over_ = false;
};

}  // namespace

SuccessionResult RunSuccession(uint64_t seed, bool told) { return SuccessionWorld(seed, told).Run(); }

}  // namespace phalanx::simulation

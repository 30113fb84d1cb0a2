// How a simulated agent comes into its job: it finds the master or starts it. The rest of SimAgent is in sim_agent.cc.
#include <fmt/format.h>
#include <signal.h>

#include <utility>

#include "simulation/sim_agent.h"
#include "simulation/story.h"

namespace phalanx::simulation {

void SimAgent::Start() {
  alive_ = true;
  parts_.machine.changed_at = parts_.queue.now();
  parts_.story.Say(parts_.queue.now(), parts_.machine.name, "phalanx-run starts ({})", node_id_);
  const auto workers = static_cast<int>(arrival().local_world_size);
  Feed(agent::Prepared{workers, workers});
  workers_.Start();
  Feed(agent::joining::Begun{Now()});
}

// The endpoint is the first machine's.
void SimAgent::Do(const agent::joining::Resolve&) {
  if (parts_.queue.now() < arrival().named_at) return Feed(agent::joining::NotResolved{"Name or service not known"});
  const std::string& address = parts_.machine.address;
  if (parts_.machine.index != 0) return Feed(agent::joining::Resolved{});
  Feed(agent::joining::Resolved{{true, address, address}});
}

void SimAgent::Do(const agent::joining::StartMaster&) { StartMaster(false); }

void SimAgent::Do(const agent::joining::Join& action) {
  joined_ = true;
  // What is in memory is older than any round to come.
  Feed(agent::Begin{fmt::format("{}:{}", action.host, action.port), keeper_.TakeUp()});
}

void SimAgent::Do(const agent::joining::Fail& action) { Feed(agent::MasterChildFailed{action.why}); }

void SimAgent::Do(const agent::joining::TellMasterDied& action) { Feed(agent::MasterChildDied{action.why}); }

// --- the master as its child --------------------------------------------------------------------------------------

void SimAgent::StartMaster(bool resume) {
  has_master_ = master_runs_ = true;
  master_was_killed_ = false;
  parts_.start_master(*this, resume);
}

void SimAgent::OnMasterReady() {
  Feed(agent::leaving::MasterAnswered{});
  Feed(agent::joining::MasterReady{kMasterPort});
}

void SimAgent::OnMasterInUse() {
  master_runs_ = false;
  Feed(agent::leaving::MasterAnswered{});
  Feed(agent::joining::MasterNotReady{true, fmt::format("port {} is taken", kMasterPort)});
}

void SimAgent::OnMasterEnded(bool killed) {
  master_runs_ = false;
  master_was_killed_ = killed;
  if (std::exchange(awaits_master_, false)) return Feed(agent::leaving::MasterEnded{killed});
  Feed(agent::MasterChildDied{agent::DescribeEnd(0, killed ? SIGKILL : 0)});
}

}  // namespace phalanx::simulation

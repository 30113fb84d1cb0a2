// One node of a job, alive: the core's hands and eyes. It opens the stream to the master, holds the store when this
// node has group rank 0, starts and ends workers through the supervisor, and carries out what agent/core/core.h
// and its neighbours joining.h and leaving.h decide, in order. It decides nothing itself. One thread: the event loop's.
// Its steps into the job are in joining.cc, those out of it in leaving.cc, checks of it in checking.cc, what it tells
// of its hardware in watching.cc, all between in shell.cc.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "agent/checkpoint/keeper.h"
#include "agent/checkpoint/saving.h"
#include "agent/checks/helper.h"
#include "agent/core/checking.h"
#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "agent/core/leaving.h"
#include "agent/flags/config.h"
#include "agent/machine/cpu_binding.h"
#include "agent/machine/device_count.h"
#include "agent/machine/topology.h"
#include "agent/node/embedded_master.h"
#include "agent/node/event_writer.h"
#include "agent/node/herald.h"
#include "agent/node/presence.h"
#include "agent/node/progress.h"
#include "agent/report/job_report.h"
#include "agent/report/say.h"
#include "agent/watch/watcher.h"
#include "agent/workers/board.h"
#include "agent/workers/guard.h"
#include "agent/workers/supervisor.h"
#include "base/env.h"
#include "base/event_loop.h"
#include "base/process/process.h"
#include "base/process/signals.h"
#include "base/reserved_port.h"
#include "replay/recorder.h"
#include "store/relay.h"
#include "store/server.h"
#include "wire/agent_link.h"

namespace phalanx::agent {

class NodeAgent {
 public:
  // `node_key`: wire::kNodeKeyBytes random ones, of this life. `guard` must outlive the agent.
  NodeAgent(EventLoop& loop, Reaper& reaper, LaunchConfig config, Environment env, std::string node_key, Guard& guard);
  NodeAgent(const NodeAgent&) = delete;
  NodeAgent& operator=(const NodeAgent&) = delete;
  ~NodeAgent();

  // Serves the node until it is over; returns the exit code of phalanx-run.
  int Run();

 private:
  // Joining (joining.cc), each step begun by the end of the one before.
  void CountDevices();
  void Prepare();
  Status CheckLogDir();
  Status CheckPlaces();
  void LocateDevices();
  Status BindCpus(const std::string& probe_output);
  void MakeMaster();
  Status PrepareAddress(const std::string& master_host, uint16_t master_port);
  void StartSupervisor();
  void ReserveMastersPlace();
  void KeepCheckpoints();
  void OnMessage(v1::MasterMessage message);

  // A log of all steps, where one is wanted.
  Status OpenReplayLog();

  // Events into the cores, decisions out, in order. Those of checkpoints come from their keeper, which carries them
  // out.
  using FedEvent = std::variant<Event, joining::Event, leaving::Event, checking::Event>;
  void Feed(FedEvent event);
  saving::Decided StepCheckpoints(NodeCheckpoints& checkpoints, const saving::Event& event);
  template <typename State, typename OneEvent>
  void StepOn(State& state, const OneEvent& event);
  void StepOnCheck(const checking::Event& event);
  // An order waits until the last round's workers are gone, with their devices' memory.
  void GiveOrder();
  void ForgetOrder();
  void ArmTimer();
  void OnTimer(Instant armed);
  void OnSignal(int signal);
  bool HearsRescale(int local_rank);
  bool AnyHearsRescale();
  void StandStill();
  void OnWorkerExited(const WorkerEnd& end);

  void Do(const Dial&);
  void Do(const HangUp&);
  void Do(const SendHello&);
  void Do(const SendBeat&);
  void Do(const TellSteps&);
  void Do(const Send&);
  void Do(const OpenStore&);
  void Do(const CloseStore&);
  void Do(const OpenBoard&);
  void Do(const StartWorker&);
  void Do(const EndGroup&);
  void Do(const KillGroup&);
  void Do(const SignalWorker&);
  void Do(const AskForSafePoint&);
  void Do(const WantSpares&);
  void Do(const KillStrays&);
  void Do(const RestartMaster&);
  void Do(const TakeOver&);
  void Do(const LetGo&);
  void Do(const Herald&);
  void Do(const StopHerald&);
  void Do(const GiveUpAnswers&);
  void Do(const Say&);
  void Do(const ReportFailure&);
  void Do(const Exit&);

  void Do(const joining::Resolve&);
  void Do(const joining::StartMaster&);
  void Do(const joining::Join&);
  void Do(const joining::Say&);
  void Do(const joining::Fail&);
  void Do(const joining::TellMasterDied&);

  void Do(const leaving::SettleStorage&);
  void Do(const leaving::Say&);
  void Do(const leaving::Warn&);
  void Do(const leaving::Beat&);
  void Do(const leaving::Depart&);
  void Do(const leaving::CloseStream&);
  void Do(const leaving::AwaitMaster&);
  void Do(const leaving::StartMaster&);
  void Do(const leaving::EndProgram&);

  // Checks of this node (checking.cc).
  void Do(const checking::StartHelper&);
  void Do(const checking::HurryHelper&);
  void Do(const checking::EndHelper&);
  void Do(const checking::OpenStore&);
  void Do(const checking::CloseStore&);
  void Do(const checking::Give&);
  void Do(const checking::Report&);

  // What this node's hardware tells (watching.cc).
  void BeginWatching();
  void TellFact(const v1::NodeFact& fact);
  // What is only for the record: it waits for a master where there is none.
  void TellRecord(v1::AgentMessage message);
  void TellUntold();
  void BlameHardware(int64_t noticed_ns, v1::WorkerExited& exited);

  void Tell(const std::string& line);
  std::vector<std::string> PlacesOf(const std::string& address) const;
  void Warn(const std::string& text);
  void TellOfConsole(const std::string& text);
  void TellOfRound(const v1::StartRound& round);

  void SendMessage(v1::AgentMessage message);
  v1::AgentMessage HelloNow();
  // What the board says now; empty where there is none.
  std::vector<RankProgress> ReadRanks();
  std::string HangText(const v1::Finish& finish);
  void FillRanks(const std::vector<RankProgress>& ranks, int64_t now_ns, v1::Beat& beat);
  // A store on that port, which this node has told its master; the next one is reserved then.
  StatusOr<std::unique_ptr<store::StoreServer>> OpenStoreOn(uint32_t port, store::StoreOptions options);
  // Before the first worker of a round, where its ranks come to the store by a relay of this node's.
  void OpenRelay(const v1::StartRound& round);
  StatusOr<std::unique_ptr<store::StoreRelay>> OpenRelayTo(const v1::StartRound& round);
  Status ReserveStore();
  void ReserveNextStore();
  // Raises the limit of open files for what this node has anyway and `more`; says once that `who` may find too few.
  void MakeRoomForFiles(const std::string& who, uint64_t more);
  bool told_of_file_limit_ = false;

  // Of what the zygote has forked, or by itself.
  void BeginHelper(StatusOr<Spare> spare);

  // Leaving (leaving.cc), which Do(Exit) begins.
  void WriteReport();
  void FillReports(const std::string& text);

  EventLoop& loop_;
  Reaper& reaper_;
  LaunchConfig config_;
  const Environment env_;
  const std::string node_key_, node_id_;
  Guard& guard_;
  const Speaker speaker_;
  CoreState core_;
  joining::State joining_;
  leaving::State leaving_;
  checking::State checking_;
  std::unique_ptr<replay::Recorder> recorder_;  // null: nobody wants a replay log
  EventLoop::TimerId timer_{};
  std::deque<FedEvent> queued_;  // events that came while decisions were being carried out
  bool stepping_ = false;
  int exit_code_ = 1;
  const Instant begun_at_ = MonotonicMs();

  Topology topology_;             // --numa-binding, else empty
  std::vector<WorkerCpus> cpus_;  // by local rank; empty without --numa-binding
  Instant prepared_at_ = 0;       // the time to find the master began
  std::string address_;           // where others reach this node (textual IP)
  std::set<std::string> master_addresses_;
  std::unique_ptr<SignalSource> signals_;
  std::unique_ptr<DeviceProbe> probe_;
  std::unique_ptr<EmbeddedMaster> master_;
  MasterPlace master_place_;
  MasterPlace endpoint_place_;  // of the first master, where this node has started that
  std::unique_ptr<wire::MasterLink> link_;
  ReservedPort successor_place_;            // port 0: this node hosts no master in another's place
  std::unique_ptr<PresencePort> presence_;  // null: as well
  std::vector<std::unique_ptr<OldPlaceHerald>> heralds_;
  std::unique_ptr<Supervisor> supervisor_;
  std::optional<store::ListenSocket> reserved_;
  uint16_t last_store_port_ = 0;  // of the last reservation; 0: there was none
  std::unique_ptr<store::StoreServer> store_;
  std::unique_ptr<store::StoreRelay> relay_;         // to the round's store; null: this node's ranks need none
  uint16_t last_relay_port_ = 0;                     // 0: there was none
  std::unique_ptr<store::StoreServer> check_store_;  // where two nodes meet that are checked together
  std::unique_ptr<checks::CheckHelper> helper_;      // null: none runs
  Instant paces_due_ = 0;                            // what of each step is the ranks' own goes with a beat then
  std::optional<v1::CheckOrder> held_order_;         // it waits
  pid_t last_helper_ = 0;                            // it may be on its way out; 0: there was none
  std::unique_ptr<watch::Watcher> watcher_;          // null: nothing trains yet, or --watch=off
  std::vector<v1::AgentMessage> untold_;             // they wait for a master
  std::unique_ptr<Board> board_;
  std::unique_ptr<CheckpointKeeper> checkpoints_;  // from the moment the address is known
  std::unique_ptr<EventWriter> event_writer_;      // null: nobody wants events
  const Instant began_ms_;
  uint64_t board_epoch_ = 0;
  std::vector<int64_t> ended_ns_;  // of the board's ranks; 0: it has not ended
  int64_t told_step_ = -1;         // the largest that a rank of earlier rounds here told itself; -1: none
  bool counts_on_ = false;         // ... and counted on with the optimizer's steps, in the last life with any
  std::optional<v1::StartRound> last_round_;  // that workers were started for
  std::map<int, LocalWorker> last_workers_;   // of it, by local rank
};

}  // namespace phalanx::agent

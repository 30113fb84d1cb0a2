// Keeps a node's checkpoints: the sockets of its ranks, its memory, its work for storage. The hands of
// agent/checkpoint/checkpoints.h, which decides, step by step (saving.h). On the agent's loop; memory is filled and
// checked, storage written, and storage and other nodes read for who restores, on a thread each, so that none of these
// holds up the agent or another.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "agent/checkpoint/exchange.h"
#include "agent/checkpoint/saving.h"
#include "agent/checkpoint/selection.h"
#include "agent/checkpoint/shards.h"
#include "agent/checkpoint/wire.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/task_thread.h"
#include "checkpoint/memory/memory.h"
#include "checkpoint/storage/storage.h"
#include "checkpoint/storage/tiered.h"

namespace phalanx::agent {

class CheckpointKeeper {
 public:
  struct Links {
    std::function<void(v1::CheckpointReport)> tell;  // the master
    std::function<void(const std::string&)> say;     // people
    // The master, of its ranks. What it cannot be told now it is told when it has welcomed this node.
    std::function<void(v1::ShardRequest)> ask_shards = [](const v1::ShardRequest&) {};
    // Each step of the core goes through it, in order, before any of its actions is carried out.
    std::function<saving::Decided(NodeCheckpoints&, const saving::Event&)> step = saving::Step;
  };
  struct Options {
    int local_world_size = 1;
    std::string job_id;
    std::string address;                         // this node's; with the job's id it names the memory
    std::string run_again = "the same command";  // what goes on from memory that stays; for people
    bool at_breakpoint = false;                  // for every directory, whatever its ranks say
    bool lends = false;                          // nodes that join may read this one's memory
    checkpoint::LendingPorts lending_ports = {};
    std::function<StatusOr<std::shared_ptr<checkpoint::Storage>>(const std::string&)> open_storage =
        checkpoint::OpenStorage;
  };

  CheckpointKeeper(EventLoop& loop, Options options, Links links);
  CheckpointKeeper(const CheckpointKeeper&) = delete;
  CheckpointKeeper& operator=(const CheckpointKeeper&) = delete;
  // Does not wait for storage.
  ~CheckpointKeeper();

  // The highest epoch that memory of an earlier agent knows.
  uint64_t TakeUp();

  // The rank's end of a new checkpoint socket; the one before is closed.
  StatusOr<Fd> NewRank(int local_rank);
  // The rank has ended: what it had said by then is heard now.
  void OnRankEnded(int local_rank);

  void OnRound(const v1::StartRound& round);
  void OnAttached();
  void OnMasterSilent(const std::string& why);
  void OnOrder(const v1::CheckpointOrder& order);
  void OnShardReply(const v1::ShardReply& reply);
  void OnJobEnded();

  // This node is to go: what is only in memory is on its way to storage.
  void OnLeaving();
  // The job has ended well: files that are kept on storage to be written over go, when nothing is on its way there.
  void Tidy();
  bool Storing() const { return core_.Storing(); }
  // What storage is to take; empty where it only tidies.
  std::string StoringText() const { return core_.StoringText(); }
  // Other nodes may need what this one's memory holds.
  bool Lending() const { return core_.Lending(); }
  // Called when nothing is on its way to storage any more, and nobody needs this node's memory.
  void WhenUnneeded(std::function<void()> callback) { when_unneeded_ = std::move(callback); }

  // The job is over. Memory goes, unless it holds a later step than storage, also one of an earlier agent that no round
  // has looked at, and the job has `failed`, or storage has not taken what it was to: then people are told how to get
  // it.
  void End(bool failed);

 private:
  // Storage of one directory, and who waits for it: so that who restores waits behind no write, and nobody behind the
  // storage of another directory. It is there while something is waited for.
  struct Lane {
    std::shared_ptr<checkpoint::Storage> storage;
    size_t waiting = 0;  // tasks
    TaskThread writes{"phx-storage"};
    TaskThread reads{"phx-lookup"};
    TaskThread copies{"phx-archive"};
  };
  // Of a directory with an archive. It stays, and what it knows of that.
  struct Tiers {
    std::string archive;
    int64_t every = 0;
    std::shared_ptr<checkpoint::TieredStorage> storage;
  };
  struct LookedAt {
    std::vector<ReadImage> images;  // those of `read_` first
    std::set<std::string> unread;
    checkpoint::LentImages lent;
  };

  void Serve(int local_rank);
  void Hear(int local_rank, const std::string& text);
  void On(int local_rank, const OpenPacket& packet);
  void On(int local_rank, const PreparePacket& packet);
  void On(int local_rank, const SealedPacket& packet);
  void On(int local_rank, const SkippedPacket& packet);
  void On(int local_rank, const WaitPacket& packet);
  void On(int local_rank, const RestorePacket& packet);
  void On(int local_rank, const ImagesPacket& packet);
  void On(int local_rank, const RestoredPacket& packet);
  void On(int local_rank, const AbsentPacket& packet);
  void On(int local_rank, const ShardsPacket& packet);
  void AskForShardsAgain();
  void GiveUpShards(const std::string& why);
  void Answer(int local_rank, const std::string& json);
  void AnswerError(int local_rank, int64_t id, const std::string& sentence);
  void CloseRank(int local_rank);

  // Steps the core; what that decides waits for Run. Returns why the event is refused; empty: it is not.
  std::string Feed(const saving::Event& event);
  void Run();
  void FeedAndRun(const saving::Event& event);
  void Do(const TellMaster& action);
  void Do(const ScanMemory& action);
  void Do(const MarkCommitted& action);
  void Do(const MarkDropped& action);
  void Do(const HoldSave& action);
  void Do(const ReleaseSave& action);
  void Do(const AnswerWait& action);
  void Do(const AnswerRestore& action);
  void Do(const AnswerImages& action);
  void Do(const FindSteps& action);
  void Do(const CheckStep& action);
  void Do(const FetchImages& action);
  void Do(const ForgetAhead& action);
  void Do(const MakeStepFolder& action);
  void Do(const WriteImages& action);
  void Do(const CloseStep& action);
  void Do(const ArchiveSteps& action);
  void Do(const TidyUp& action);
  void Do(const RemoveMemory& action);
  void Do(const LeaveMemory& action);
  void Do(const SayCheckpoint& action);

  Status OpenMemory();
  // What is no storage was refused when it was to be opened.
  std::shared_ptr<checkpoint::Storage> OpenStorage(const std::string& location) const;
  // The storage of that directory is this one from now on.
  void UseTiers(const std::string& dir, const std::string& archive, int64_t every);
  // Where this node's ranks have not opened it yet.
  void UseArchive(const std::string& dir, const std::string& archive);
  void TellLeftMemory();
  void TellLeftStep(const std::string& dir);
  // As RunOn, on a thread of that directory's; `work` is given its storage.
  template <typename Work, typename Done>
  void RunOnLane(const std::string& dir, TaskThread Lane::*thread, Work work, Done done);
  void BeginEpoch(uint64_t epoch);
  void LookAtDirectories();
  void OnDirectoryLookedAt(const std::set<std::string>& gone);
  void GoOnBehindLook();
  void Scan();
  void OnScanned(uint64_t epoch, const LookedAt& looked);
  void FetchNext();
  void OnFetched(const FetchImages& action, const FetchedFiles& fetched);
  void PrepareNext();
  void OnPrepared(const Status& made, const checkpoint::SlotPlan& plan);
  bool AllArePrepared(const std::string& dir) const;
  void SayCost(const std::string& dir);
  Status OpenPages(int local_rank, const OpenPacket& packet, std::string* own, std::string* main);
  void ReplaceSlots();
  void Postpone(const checkpoint::SlotPlan& plan, const std::string& why);
  // Runs `work` on the thread, then, if this keeper is still there, `done` with what it returned on the loop, and what
  // has been decided by then.
  template <typename Work, typename Done>
  void RunOn(TaskThread& thread, Work work, Done done);

  EventLoop& loop_;
  const Options options_;
  const Links links_;
  NodeCheckpoints core_;
  std::deque<CheckpointAction> decided_;  // and not carried out yet
  std::unique_ptr<checkpoint::NodeMemory> memory_;
  std::map<int, Fd> ranks_;                       // their sockets, by local rank
  std::map<std::string, CheckedFolder> checked_;  // last, by directory
  std::map<std::pair<std::string, SaveKey>, std::vector<checkpoint::MemoryImage>> held_;  // by HoldSave
  ImageExchange exchange_;
  ShardRelay shards_;
  std::deque<FetchImages> fetches_;  // the first is under way
  uint32_t rank_base_ = 0;
  uint32_t world_size_ = 0;
  uint64_t epoch_ = 0;
  uint64_t scan_epoch_ = 0;                     // whose ranks the last scan is for
  std::set<std::string> read_all_of_;           // directories, for them
  std::vector<checkpoint::MemoryFolder> left_;  // what was there when this agent began
  std::set<std::string> told_left_;             // directories
  std::vector<ReadImage> read_;                 // images, for them
  size_t looking_at_ = 0;                       // directories
  std::set<std::string> gone_;                  // of those that have been looked at
  std::map<std::string, Lane> lanes_;           // by directory
  std::map<std::string, Tiers> tiers_;          // by directory
  // By local rank, -1 where that has gone since.
  std::deque<std::pair<int, PreparePacket>> preparing_;  // the first is being served
  // Of directories whose cost has not been said yet: what was prepared of each page.
  std::map<std::string, std::map<std::string, PreparedPage>> prepared_;
  std::set<std::string> cost_said_;                  // directories
  std::vector<std::pair<int, OpenPacket>> opening_;  // when directories have been looked at
  bool running_ = false;
  std::function<void()> when_unneeded_;
  TaskThread memory_thread_{"phx-memory"};
  TaskThread fetch_thread_{"phx-fetch"};
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace phalanx::agent

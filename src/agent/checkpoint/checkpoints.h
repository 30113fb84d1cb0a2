// What one node decides about its ranks' checkpoints: pure, like agent/core/core.h. It adds up what the ranks say,
// tells the master what the node has done, and turns the master's orders into work on memory and storage.
// src/agent/checkpoint/keeper.h carries it out; docs/life-of-a-save.md tells the story.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "base/save_form.h"
#include "base/save_key.h"
#include "checkpoint/remote/byte_ranges.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// What a rank gave its Checkpointer.
struct CheckpointOptions {
  SaveForm form;
  bool at_breakpoint = false;
  int keep_last = 0;       // 0: not asked
  int64_t keep_every = 0;  // 0: not asked
  std::vector<std::string> trackers;
  std::string archive = "";   // where stored steps are copied to; empty: nowhere
  int64_t archive_every = 0;  // steps that it divides; 0: the newest
  bool operator==(const CheckpointOptions&) const = default;
};

// Which parts of which ranks' images a rank wants from other nodes, by rank. No range: all of it.
using ImageParts = std::map<uint32_t, checkpoint::ByteRanges>;

// An image of this node: the own one of a local rank, or that which all ranks share (kMainPage).
constexpr int kMainPage = -1;

// How long a new agent waits for the file systems of the directories whose memory it has found.
constexpr int64_t kLookMs = 2'000;

// One image as it was found in memory.
struct HeldPage {
  std::string dir;
  SaveForm form;
  int page = 0;
  SaveKey save;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  bool committed = false;
  int64_t sealed_unix_ms = 0;
  bool older_unread = false;  // older images of the directory are here that nobody has read
};

// Local ranks that have not come to a save: of this node's, in the live round.
struct AbsentRanks {
  std::vector<int> unopened;  // they have no Checkpointer for its directory
  std::vector<int> unsaved;   // they have one, and have saved nothing with it
  std::vector<int> behind;    // they have saved, and neither that nor a later one
};

// What a look at the steps of a directory on storage has come to.
struct FoundSteps {
  v1::FoundOnDisk found;
  std::string unreadable;  // why nobody knows whether there is a step; empty: that is known
};

// --- actions ------------------------------------------------------------------------------------------------------

struct TellMaster {
  v1::CheckpointReport report;
};
// Reads the images in memory that the job goes on from unless some node lacks them (NextToRead), every byte; OnScanned
// follows.
struct ScanMemory {
  uint64_t epoch = 0;
  std::string older_of = "";  // a directory of which all are read
  bool to_lend = false;       // the node has no place in the round of that epoch, which has just begun
};
struct MarkCommitted {
  std::string dir;
  SaveKey save;
};
struct MarkDropped {
  std::string dir;
  SaveKey save;
};
// Nobody writes over the images of that save until they are released.
struct HoldSave {
  std::string dir;
  SaveKey save;
};
struct ReleaseSave {
  std::string dir;
  SaveKey save;
};
struct AnswerWait {
  int local_rank = 0;
  int64_t request = 0;
  std::string state;  // "committed", "stored", "dropped" or "failed"; "": nobody knows, and it may still be
  std::string why;
};
struct AnswerRestore {
  int local_rank = 0;
  int64_t request = 0;
  std::string dir;
  v1::CheckpointOrder order;
  std::string refused;  // why the rank is given an error and not what the order says; empty: it is given that
};
// Files of images that were wanted from other nodes' memory are there, or will not be.
struct AnswerImages {
  int local_rank = 0;
  int64_t request = 0;
  std::string dir;
  SaveKey save;
  ImageParts parts;
  std::string refused;  // why they will not be; empty: they are
};
struct FindSteps {
  std::string dir;
  std::set<std::string> but;           // folders that are damaged, or whose save is doubted
  uint64_t epoch = 0;                  // of the round that asks
  std::set<std::string> doubted = {};  // those whose save is
  std::string archive = "";            // of the directory, as some node's ranks have named it
};
struct CheckStep {
  std::string dir;
  std::string name;
  uint64_t epoch = 0;        // of the round that asks
  std::string archive = "";  // as in FindSteps
};
// Reads the images that order.restore().elsewhere names from the nodes that lend them; OnFetched follows, but not where
// they are read `ahead`, before the master has decided that they are restored: then they lie there when it does, and
// what could not be read is asked for once more.
struct FetchImages {
  std::string dir;
  v1::CheckpointOrder order;
  uint64_t epoch = 0;  // of the round that restores
  ImageParts parts;    // of those that were asked for; of all others all of it
  bool ahead = false;
};
// Something else than memory is restored: what was read ahead goes, and what is being read ahead is given up.
struct ForgetAhead {
  std::string dir;
};
struct MakeStepFolder {
  std::string dir;
  SaveKey save;
};
struct WriteImages {
  std::string dir;
  SaveKey save;
  std::string name;
  bool main = false;  // also the shared image
};
struct CloseStep {  // the manifest, then trackers, then what need not be kept goes
  std::string dir;
  v1::CheckpointOrder order;
  CheckpointOptions options;
  std::optional<std::string> goes_on_from = std::nullopt;  // checkpoint::NextPlaceOf
};
struct ArchiveSteps {  // what is due there and not there yet; OnArchived follows
  std::string dir;
  CheckpointOptions options;
};
struct TidyUp {  // files that are kept on storage to be written over go; OnTidied follows
  std::string dir;
};
struct RemoveMemory {};  // nothing in it is of use to anyone any more
struct LeaveMemory {
  std::string unstored;  // which saves are nowhere else; for people
};
struct SayCheckpoint {
  std::string text;
};

using CheckpointAction =
    std::variant<TellMaster, ScanMemory, MarkCommitted, MarkDropped, HoldSave, ReleaseSave, AnswerWait, AnswerRestore,
                 AnswerImages, FindSteps, CheckStep, FetchImages, ForgetAhead, MakeStepFolder, WriteImages, CloseStep,
                 ArchiveSteps, TidyUp, RemoveMemory, LeaveMemory, SayCheckpoint>;

// --- state --------------------------------------------------------------------------------------------------------

class NodeCheckpoints {
 public:
  explicit NodeCheckpoints(int local_world_size) : local_world_size_(local_world_size) {}

  // What has been decided since the last call, in order.
  std::vector<CheckpointAction> Take();

  // A round begins; the old one's ranks are gone.
  void OnRound(uint64_t epoch, uint32_t group_rank);
  // `source`: where other nodes may read these images.
  void OnScanned(uint64_t epoch, const std::vector<HeldPage>& pages,
                 const std::optional<v1::ImageSource>& source = std::nullopt);
  // A new stream to the master, which may be another one.
  void OnAttached();
  // No answer of the master is awaited any more, until OnAttached: ranks that wait for one, or ask for one, are told
  // so. What became of a save may be known later.
  void OnMasterSilent(const std::string& why);
  void OnOrder(const v1::CheckpointOrder& order);

  // What ranks say. An error is a sentence for the rank.
  std::string OnOpen(int local_rank, const std::string& dir, const CheckpointOptions& options);
  // `save` is one of the live round, whatever its epoch says.
  // `values`: CRC by name, of what is to be the same on all ranks.
  void OnSealed(int local_rank, const std::string& dir, bool main, SaveKey save, bool store,
                const std::map<std::string, uint32_t>& values = {});
  void OnSkipped(int local_rank, const std::string& dir, SaveKey save, const std::string& why);
  void OnWait(int local_rank, int64_t request, const std::string& dir, SaveKey save, bool until_stored);
  // `branch`: that which begins with it.
  void OnRestore(int local_rank, int64_t request, const std::string& dir, uint32_t branch);
  // Of a save that was restored from memory as of that branch, and whose images any rank may need.
  void OnImagesAsked(int local_rank, int64_t request, const std::string& dir, uint32_t branch, const ImageParts& parts);
  // It has read all that it needs of what was restored as of that branch.
  void OnRestoreDone(int local_rank, const std::string& dir, uint32_t branch);
  void OnRankGone(int local_rank);

  // The master has told of the job's end, which waits for all that is on its way to storage: nothing is any more.
  void OnJobEnded();
  // The node goes on purpose, and its ranks have ended: the master says of what is only in memory that it is stored, or
  // that it will not be; and when no other node needs what is in this one's.
  void OnLeaving();
  // The job has ended well: when nothing is on its way to storage any more, the directories that steps were stored in
  // since this agent began, and that this node is to tidy up, are.
  void OnTidy();
  // The agent ends. `in_memory` are the images that memory holds now, `failed` says that the job has not ended well.
  void OnEnd(const std::vector<HeldPage>& in_memory, bool failed);

  // What was found for a round to restore: `epoch` is that of the question, and an answer to an older one is none.
  void OnFound(uint64_t epoch, const std::string& dir, const FoundSteps& steps);
  // `unreadable`: the error says that nobody knows whether the step is whole.
  void OnChecked(uint64_t epoch, const std::string& dir, const std::string& name, const std::string& error,
                 bool unreadable);
  // What was to be fetched of another node's memory is here; or why not.
  // `request`: as of the order that was carried out.
  void OnFetched(uint64_t epoch, const std::string& dir, uint32_t branch, uint64_t request, const std::string& error);
  // What storage has done. An error ends the store.
  void OnFolderMade(const std::string& dir, const SaveKey& save, const std::string& name, const std::string& error);
  void OnImagesWritten(const std::string& dir, const SaveKey& save, const std::string& name,
                       const std::vector<v1::Shard>& shards, const std::string& error);
  void OnStepClosed(const std::string& dir, const SaveKey& save, const std::string& error);
  void OnTidied(const std::string& dir, const std::string& error);
  // `steps` were copied, and behind an error others were not, that should have been.
  void OnArchived(const std::string& dir, const std::vector<int64_t>& steps, const std::string& error);

  AbsentRanks AbsentFrom(const std::string& dir, SaveKey save) const;
  // Of the directory as its ranks have opened it.
  SaveForm FormOfDirectory(const std::string& dir) const;
  // The same; nothing where none has.
  CheckpointOptions OptionsOf(const std::string& dir) const;
  // A step is on its way to storage or to an archive, or is to be; or storage is being tidied up.
  bool Storing() const;
  // Other nodes need what this one's memory holds, as far as it knows.
  bool Lending() const { return lends_; }
  // For lines about what is waited for; empty where it is only tidied up.
  std::string StoringText() const;
  // Of each directory the newest save among `in_memory`, the images that memory holds now, that must not be lost with
  // this memory: storage is not known to hold it, or a newer one, and the job has failed, or storage has not taken what
  // it was to. Empty: there is none. Of a save that nobody has committed only the node itself is known to hold its
  // part: the text says so, and names the newest that is sure to be whole beside it.
  std::string UnstoredText(const std::vector<HeldPage>& in_memory, bool failed) const;

 private:
  struct Wait {
    int local_rank = 0;
    int64_t request = 0;
    bool until_stored = false;
  };
  struct Asked {
    int local_rank = 0;
    int64_t request = 0;
    uint32_t branch = 0;
  };
  // Images that a rank has asked for.
  struct Wanted {
    int local_rank = 0;
    int64_t request = 0;
    uint32_t branch = 0;
    ImageParts parts;
    bool fetching = false;
  };
  struct Save {
    std::set<int> pages;  // sealed
    bool store = false;
    bool complete = false;               // all pages are; the master has been told
    std::optional<std::string> skipped;  // why it will not be; the master has been told
    // By name: of the first rank that told, and of the first that has another.
    std::map<std::string, std::vector<v1::SharedValue>> values;
  };
  struct Loss {
    bool dropped = false;  // some rank has no image of it; else all have, and it is not stored
    std::string why;
  };
  // What saves since that round and branch have behind them.
  struct Past {
    uint64_t epoch = 0;
    uint32_t branch = 0;
    // The folder of the newest stored step; "": none is. Nothing where an agent before this one knew it.
    std::optional<std::string> stored;
    bool Holds(const SaveKey& save) const { return std::tie(save.epoch, save.branch) >= std::tie(epoch, branch); }
  };
  struct Dir {
    std::optional<CheckpointOptions> options;
    std::set<int> opened;            // local ranks, in this round
    std::map<int, SaveKey> came_to;  // the newest save that each has sealed or skipped
    std::map<SaveKey, Save> saves;
    std::optional<SaveKey> committed;
    std::optional<SaveKey> stored;  // the newest
    std::set<SaveKey> on_storage;   // what was written there by its own number, the newest few
    Past past;
    std::optional<SaveKey> from_disk;   // the step that was restored from storage last, in the round of that epoch
    std::map<SaveKey, Loss> lost;       // newest few
    std::set<SaveKey> storing;          // asked for, and not over
    std::set<SaveKey> held;             // for storage: nobody writes over their images
    std::optional<SaveKey> not_stored;  // the newest of which a store has failed
    std::optional<SaveKey> folder_of;   // this node was asked last to make a folder for it
    std::set<std::string> folders;      // that it has made then: a store that was cut off begins again with another
    std::map<SaveKey, std::vector<Wait>> waits;
    std::vector<Asked> restores;
    std::map<uint32_t, v1::CheckpointOrder> decided;   // what is restored, of the live round, by branch; the newest few
    std::map<uint32_t, v1::CheckpointOrder> fetching;  // decided, and images of it are on their way from other nodes
    std::map<uint32_t, std::string> not_fetched;       // why they did not come, of what is decided
    std::optional<uint32_t> told;                      // the newest branch of which the console has been told
    std::map<uint64_t, Wanted> wanted;                 // by the number that the master is told
    std::optional<uint32_t> restore_asked;             // the newest branch
    uint32_t done_branch = 0;                          // the newest of which a rank has read what it needs...
    std::set<int> done;                                // ... and the ranks that have
    bool archive_looked_at = false;                    // for what an agent before this one has left undone
    std::string archiving_to;                          // where a copy is under way to; empty: none is
    bool archives_again = false;                       // when that is over: a step was stored meanwhile
    std::string unreadable;  // why this node, asked in the live round, cannot tell whether storage holds a step
  };

  void Do(CheckpointAction action) { actions_.push_back(std::move(action)); }
  void Tell(v1::CheckpointReport report);
  v1::CheckpointReport Report(const std::string& dir) const;
  void BeginEpoch(uint64_t epoch);
  void Lend(uint64_t epoch);
  void TellHeld();
  // The newest save of the live round that this node's ranks have sealed.
  static std::optional<SaveKey> NewestComplete(const Dir& dir);
  void TellOpened(const std::string& name, const CheckpointOptions& options);
  void TellRestoreAsked(const std::string& name, uint32_t branch);
  void TellRestoreDone(const std::string& name, const Dir& dir);
  void TellWanted(const std::string& name, const Dir& dir);
  void TellSealed(const std::string& name, const Dir& dir, const SaveKey& save, bool store);
  void TellSkipped(const std::string& name, const SaveKey& save, const std::string& why);
  bool Complete(const Dir& dir, const Save& save) const;
  static bool IsMilestone(const Dir& dir, const SaveKey& save);
  void HoldForStorage(const std::string& name, Dir& dir, const SaveKey& save);
  // Of all up to `save`.
  void ReleaseHeld(const std::string& name, Dir& dir, const SaveKey& save);
  void Committed(const std::string& name, Dir& dir, const SaveKey& save);
  void Dropped(const std::string& name, Dir& dir, const SaveKey& save, const std::string& why);
  void StoreEnded(const std::string& name, Dir& dir, const v1::CheckpointOrder& order);
  std::optional<std::string> GoesOnFrom(Dir& dir, const SaveKey& save) const;
  void Lose(Dir& dir, const SaveKey& save, const Loss& loss);
  void Restored(const std::string& name, Dir& dir, const v1::CheckpointOrder& order);
  void ImagesFound(const std::string& name, Dir& dir, const v1::CheckpointOrder& order);
  void ReadAhead(const Dir& dir, const v1::CheckpointOrder& order);
  void ImagesFetched(const std::string& name, Dir& dir, uint64_t request, const std::string& error,
                     bool nobody_lends = false);
  bool AnswerAsked(const std::string& name, Dir& dir, const Asked& asked);
  void RefuseAsked(const std::string& name, const Asked& asked);
  // Once for each branch of a round, on the node of rank 0, when rank 0 is given it.
  void SayRestored(const std::string& name, Dir& dir, const v1::CheckpointOrder& order);
  bool IsOnlyInMemory(const HeldPage& page) const;
  // A new phalanx-run can go on from it, whatever other nodes hold.
  bool IsWhole(const HeldPage& page) const;
  // A save was asked to be stored, and storage has neither that nor a newer one.
  static bool Owes(const Dir& dir);
  bool StoresSteps() const;
  void Archive(const std::string& name, Dir& dir);
  void TidyWhereIdle();
  void SettleWaits(Dir& dir);
  // True where the wait is over.
  bool SettleWait(const Dir& dir, const SaveKey& save, const Wait& wait);

  const int local_world_size_;
  uint64_t epoch_ = 0;
  uint32_t group_rank_ = 0;
  std::optional<v1::CheckpointsHeld> held_;  // when the live round began
  uint64_t images_asked_ = 0;                // so often, of the master
  std::string not_fetched_;                  // why, of the live round; empty: all was that had to be
  std::string could_not_fetch_;              // the same of the round before
  bool job_ended_ = false;
  std::string silence_;  // why no answer of the master is awaited; empty: it is
  bool leaving_ = false;
  bool lends_ = false;  // to nodes that have a place in a round that this one has none in; or it may be asked to
  bool wants_tidy_ = false;
  std::set<std::string> tidying_;  // directories
  std::map<std::string, Dir> dirs_;
  std::vector<CheckpointAction> actions_;
};

}  // namespace phalanx::agent

// Where the steps of one checkpoint directory are kept (docs/formats/checkpoint-manifest.md): what the agent, and a
// host without one, ask of storage. posix.h is the one that there is; storage_test.cc says what any other has to do.
// Ranks open files by PathOf, `phalanx ckpt` and Checkpointer.steps() and delete() read folders, and a directory that
// was deleted is known by its inode (checkpoint/memory/memory.h): whoever adds an object store has those to do as well.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/steps.h"

namespace phalanx::checkpoint {

// A file of a step, as it lies in memory.
struct FileToPut {
  std::string source;  // path; there may be more in it than these bytes, which must not change meanwhile
  std::string name;    // plain
  int64_t rank = 0;    // or kMainRank
  uint64_t bytes = 0;
  uint32_t crc32 = 0;  // of those bytes
  FileNeed needed_by = FileNeed::kOwner;
  uint64_t offset = 0;  // of the bytes in the source
};

// Every call blocks for as long as storage takes, which may be for ever. Several threads may call; of one step, one at
// a time writes on each node. Errors name the place, the call and the reason. `step` is a step's name, as Begin gives
// it.
class Storage {
 public:
  explicit Storage(std::string location) : location_(std::move(location)) {}
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  virtual ~Storage() = default;

  // The directory, as jobs name it.
  const std::string& location() const { return location_; }

  // Makes the directory, where it does not exist; not those that it lies in: a file system that is not mounted would be
  // taken for an empty one.
  virtual Status Make() = 0;
  // A name for a step under which nobody has put anything yet. Of several that ask at once each gets its own.
  virtual StatusOr<std::string> Begin(int64_t step, uint64_t epoch) = 0;
  // DataLoss where the source is not what its CRC says, FailedPrecondition where the step counts already: then no file
  // of the step has changed.
  virtual StatusOr<Shard> Put(const std::string& step, const FileToPut& file) = 0;
  // Last of all: from here on the step counts. Again with the same manifest it is fine; AlreadyExists where the step
  // has another. With any other error it may count or not: the next List says so.
  virtual Status Publish(const std::string& step, const Manifest& manifest) = 0;
  // For programs that look for the newest step: each tracker (checkpoint/disk/tracker.h) names this one.
  virtual Status PointTo(const std::string& step, int64_t number, const std::vector<std::string>& trackers) = 0;

  // Newest first (OrderNewestFirst); files are there in their sizes, and nobody has read them. NotFound where there is
  // no such directory.
  virtual StatusOr<std::vector<FoundStep>> List() = 0;
  // The same, for who publishes a step: what other tiers have is not asked for where a step of its own counts.
  virtual StatusOr<std::vector<FoundStep>> ListToPublish() { return List(); }
  // As List(), for who cannot use those named in `useless`. `doubted`: those of them that nobody can use wherever they
  // lie; of the others another copy will do.
  virtual StatusOr<std::vector<FoundStep>> ListPast(const std::set<std::string>& useless,
                                                    const std::set<std::string>& doubted);
  // Of steps that lie elsewhere as well, and are no more listed here: a step that is stored next is behind it. 0: none
  // is known. Reads nothing.
  virtual uint64_t HighestSequenceElsewhere() { return 0; }
  // Names, of what List has returned, of steps that are not to be deleted yet, whatever else wants them gone.
  virtual std::set<std::string> StillNeeded(const std::vector<FoundStep>& newest_first);
  // One of them, as List has it; without a manifest where it does not count, with the reason. A step that could not be
  // looked at is kUnreadable: kUncommitted and kDamaged ones may be deleted (checkpoint/disk/retention.h).
  virtual FoundStep LookAt(const std::string& step) = 0;
  // Exactly so many bytes of a file, from `offset` on. DataLoss where the file ends before.
  virtual Status Read(const std::string& step, const std::string& file, uint64_t offset, std::span<uint8_t> to) = 0;
  // Whether the file is what the manifest says, to the last byte: DataLoss where it is not, another error where nobody
  // knows. By Read, unless a storage has a faster way.
  virtual Status Check(const std::string& step, const Shard& file);

  // First of all it counts no more. Fine where it is gone already; what is not ours stays.
  virtual Status Delete(const std::string& step) = 0;
  // What is kept for the next steps goes.
  virtual Status Tidy() = 0;

  // Where a rank opens the file. Without one: where the step lies.
  virtual std::string PathOf(const std::string& step, const std::string& file) const = 0;

 private:
  const std::string location_;
};

// Reads and writes nothing. InvalidArgument where no storage is known for such a location: a URL is no path.
StatusOr<std::shared_ptr<Storage>> OpenStorage(const std::string& location);

}  // namespace phalanx::checkpoint

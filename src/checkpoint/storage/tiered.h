// A directory with an archive behind it: steps are stored in the one and copied to the other from there. What the
// archive has is asked for where the directory has nothing, so that an archive that does not answer holds up nobody who
// can do without it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/storage/storage.h"

namespace phalanx::checkpoint {

// The name of a step of the archive, as List has it: this, and what the archive calls it.
constexpr const char* kArchivedPrefix = "archive:";

// What a call of Archive has come to.
struct ArchivedSteps {
  std::vector<int64_t> steps;  // that it has copied
  std::string error;           // empty: the archive has all that it is to have
};

// All that Storage says; Delete is of steps of the directory alone.
class TieredStorage : public Storage {
 public:
  // `every`: as of StepsToArchive.
  TieredStorage(std::shared_ptr<Storage> directory, std::shared_ptr<Storage> archive, int64_t every);

  Status Make() override;
  StatusOr<std::string> Begin(int64_t step, uint64_t epoch) override;
  StatusOr<Shard> Put(const std::string& step, const FileToPut& file) override;
  Status Publish(const std::string& step, const Manifest& manifest) override;
  Status PointTo(const std::string& step, int64_t number, const std::vector<std::string>& trackers) override;
  StatusOr<std::vector<FoundStep>> List() override;
  StatusOr<std::vector<FoundStep>> ListToPublish() override;
  StatusOr<std::vector<FoundStep>> ListPast(const std::set<std::string>& useless,
                                            const std::set<std::string>& doubted) override;
  uint64_t HighestSequenceElsewhere() override;
  std::set<std::string> StillNeeded(const std::vector<FoundStep>& newest_first) override;
  FoundStep LookAt(const std::string& step) override;
  Status Read(const std::string& step, const std::string& file, uint64_t offset, std::span<uint8_t> to) override;
  Status Check(const std::string& step, const Shard& file) override;
  Status Delete(const std::string& step) override;
  Status Tidy() override;
  std::string PathOf(const std::string& step, const std::string& file) const override;

  // Copies what is to be in the archive and is not, oldest first. Where one step cannot be copied the next are all the
  // same; one whose files are not what its manifest says is never tried again. Then the archive's trackers name the
  // newest that is there. One call at a time.
  ArchivedSteps Archive(const std::vector<std::string>& trackers);
  // Archive returns behind the file that it is copying. By any thread.
  void StopArchiving() { stop_ = true; }

 private:
  Storage& TierOf(const std::string& step) const;
  // As it is; made where it does not exist, which what it lies in has to.
  StatusOr<std::vector<FoundStep>> ListArchive();
  // The copy, as the archive has it; nothing where the step does not count any more.
  StatusOr<std::optional<FoundStep>> Copy(const std::string& step);
  Status PutAll(const std::string& step, const Manifest& manifest, const std::string& name);
  Status PointToNewest(const std::vector<std::string>& trackers);

  const std::shared_ptr<Storage> directory_;
  const std::shared_ptr<Storage> archive_;
  const int64_t every_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;                                // of what follows
  std::optional<std::vector<FoundStep>> archived_;  // as Archive has seen it last
  std::string copied_from_;                         // the step that is being copied
  std::set<std::string> damaged_;                   // steps of the directory that are not what their manifests say
};

}  // namespace phalanx::checkpoint

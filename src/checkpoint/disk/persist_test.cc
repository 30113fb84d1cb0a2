#include "checkpoint/disk/persist.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "base/test_folder.h"
#include "checkpoint/disk/recycled.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

std::string Text(char seed, size_t bytes) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(seed + i / 7 + i * i);
  return text;
}

class Persist : public testing::Test {
 protected:
  static constexpr size_t kBytes = (9 << 20) + 4096;

  WriteJob Job(const std::string& step_name, const std::string& text) {
    folder_.Write("slot", text);
    std::filesystem::create_directories(folder_ / "run");
    return {.source = folder_ / "slot",
            .dir = folder_ / "run",
            .step_name = step_name,
            .file = "rank_3.pt",
            .rank = 3,
            .bytes = text.size(),
            .crc32 = Crc32(0, text.data(), text.size())};
  }
  static Manifest ManifestOf(int64_t step, const Shard& shard) {
    return {.step = step, .world_size = 4, .kind = "full", .layout = "torch-zip", .job_id = "job", .shards = {shard}};
  }
  void Commit(const std::string& step_name, const std::string& text) {
    const StatusOr<Shard> shard = WriteShard(Job(step_name, text));
    ASSERT_TRUE(shard.ok()) << shard.status();
    const Status written =
        WriteManifest(folder_ / "run", step_name, ManifestOf(ParseStepName(step_name)->step, *shard));
    ASSERT_TRUE(written.ok()) << written;
  }
  std::vector<std::string> OnTheWay() { return *ListFolder(folder_ / "run/.writing"); }
  ino_t Inode(const std::string& name) {
    struct stat info {};
    EXPECT_EQ(stat((folder_ / name).c_str(), &info), 0) << name;
    return info.st_ino;
  }

  TestFolder folder_;
};

TEST_F(Persist, WritesAShardAndCommitsTheStep) {
  const std::string text = Text(1, kBytes);
  Commit("120", text);
  EXPECT_TRUE(folder_.Read("run/120/rank_3.pt") == text);
  EXPECT_THAT(OnTheWay(), IsEmpty());
  const auto steps = FindSteps(folder_ / "run");
  ASSERT_THAT(*steps, SizeIs(1));
  EXPECT_EQ(steps->front().state, StepState::kCommitted) << steps->front().why;
  EXPECT_EQ(steps->front().manifest->shards.front().crc32, Crc32(0, text.data(), text.size()));
}

TEST_F(Persist, TakesASourceOfAnySize) {
  const WriteJob job = Job("120", Text(2, 12'345));
  ASSERT_TRUE(WriteShard(job).ok());
  EXPECT_EQ(folder_.Read("run/120/rank_3.pt"), Text(2, 12'345));
}

TEST_F(Persist, WritesOfALongerFileWhatItIsTold) {
  WriteJob job = Job("120", Text(2, 10'000));
  job.bytes = 5'000;
  job.crc32 = Crc32(0, Text(2, 10'000).data(), 5'000);
  ASSERT_TRUE(WriteShard(job).ok());
  EXPECT_EQ(folder_.Read("run/120/rank_3.pt"), Text(2, 10'000).substr(0, 5'000));
}

TEST_F(Persist, RefusesASourceThatIsNotWhatWasSealed) {
  Commit("110", Text(1, kBytes));
  WriteJob job = Job("120", Text(2, kBytes));
  job.crc32 ^= 1;
  const Status changed = WriteShard(job).status();
  EXPECT_TRUE(absl::IsDataLoss(changed));
  EXPECT_THAT(Message(changed), HasSubstr(job.source + ": its CRC is "));
  job.bytes += 1;
  const Status shorter = WriteShard(job).status();
  EXPECT_TRUE(absl::IsDataLoss(shorter));
  EXPECT_FALSE(folder_.Has("run/120/rank_3.pt"));
  EXPECT_THAT(OnTheWay(), IsEmpty());
}

TEST_F(Persist, NeverTouchesACommittedStep) {
  Commit("120", Text(1, kBytes));
  const Status status = WriteShard(Job("120", Text(2, kBytes))).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_THAT(Message(status), HasSubstr("run/120/manifest.json: the step is committed already"));
  EXPECT_TRUE(folder_.Read("run/120/rank_3.pt") == Text(1, kBytes));
}

TEST_F(Persist, ReplacesAShardOfAStepThatIsNotCommitted) {
  ASSERT_TRUE(WriteShard(Job("120", Text(1, kBytes))).ok());
  ASSERT_TRUE(WriteShard(Job("120", Text(2, kBytes))).ok());
  EXPECT_TRUE(folder_.Read("run/120/rank_3.pt") == Text(2, kBytes));
}

TEST_F(Persist, AManifestIsWrittenOnce) {
  Commit("120", Text(1, 4096));
  const Manifest manifest = *ParseManifest(folder_.Read("run/120/manifest.json"));
  EXPECT_TRUE(WriteManifest(folder_ / "run", "120", manifest).ok());
  Manifest other = manifest;
  other.epoch = 9;
  EXPECT_TRUE(absl::IsAlreadyExists(WriteManifest(folder_ / "run", "120", other)));
  EXPECT_EQ(*ParseManifest(folder_.Read("run/120/manifest.json")), manifest);
  EXPECT_TRUE(absl::IsInvalidArgument(WriteManifest(folder_ / "run", "121", manifest)));
  other.step = 121;
  other.shards.clear();
  EXPECT_TRUE(absl::IsInvalidArgument(WriteManifest(folder_ / "run", "121", other)));
}

TEST_F(Persist, RefusesBadNames) {
  WriteJob job = Job("120", Text(1, 4096));
  for (const char* name : {"..", "a/b", "latest", ""}) {
    job.step_name = name;
    EXPECT_TRUE(absl::IsInvalidArgument(WriteShard(job).status())) << name;
  }
  job.step_name = "120";
  for (const char* name : {"..", "a/b", "manifest.json", ""}) {
    job.file = name;
    EXPECT_TRUE(absl::IsInvalidArgument(WriteShard(job).status())) << name;
  }
}

TEST_F(Persist, ErrorsNamePathAndCall) {
  WriteJob job = Job("120", Text(1, 4096));
  job.dir = folder_ / "gone";
  EXPECT_EQ(Message(WriteShard(job).status()), folder_ / "gone/120: mkdir: No such file or directory");
  job.source = folder_ / "no-slot";
  EXPECT_EQ(Message(WriteShard(job).status()), folder_ / "no-slot: open: No such file or directory");
}

TEST_F(Persist, RemovesWhatADeadWriterLeftAndNothingElse) {
  folder_.Write("run/.writing/110-rank_3.pt.0123456789abcdef", "dead");
  folder_.Write("run/.writing/110-rank_33.pt.0123456789abcdef", "of another rank");
  folder_.Write("run/.writing/115-rank_3.pt.0000456789abcdef", "alive");
  const Fd alive(open((folder_ / "run/.writing/115-rank_3.pt.0000456789abcdef").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(alive.get(), LOCK_EX), 0);
  ASSERT_TRUE(WriteShard(Job("120", Text(1, 4096))).ok());
  EXPECT_THAT(OnTheWay(), testing::ElementsAre("110-rank_33.pt.0123456789abcdef", "115-rank_3.pt.0000456789abcdef"));
}

TEST(Recycled, OnlyWhereNoOtherNodeReadsUnseen) {
  for (const uint64_t of_this_machine : {0xef53, 0x58465342, 0x01021994, 0x794c7630}) {
    EXPECT_TRUE(LeasesCountAllReaders(of_this_machine)) << of_this_machine;  // ext4, XFS, tmpfs, overlayfs
  }
  for (const uint64_t other : {0x0bd00bd0, 0x65735546, 0x6969, 0x00c36400}) {
    EXPECT_FALSE(LeasesCountAllReaders(other)) << other;  // Lustre, FUSE, NFS, Ceph
  }
}

TEST_F(Persist, WritesOverARecycledFile) {
  Commit("110", Text(1, kBytes));
  const ino_t before = Inode("run/110/rank_3.pt");
  ASSERT_TRUE(DeleteStep(folder_ / "run", "110").ok());
  Commit("120", Text(2, kBytes));
  EXPECT_EQ(Inode("run/120/rank_3.pt"), before);
  EXPECT_TRUE(folder_.Read("run/120/rank_3.pt") == Text(2, kBytes));
  EXPECT_THAT(*ListFolder(folder_ / "run/.recycled"), IsEmpty());
}

TEST_F(Persist, NeverWritesOverAFileThatSomebodyReads) {
  Commit("110", Text(1, kBytes));
  const Fd reader(open((folder_ / "run/110/rank_3.pt").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(DeleteStep(folder_ / "run", "110").ok());
  Commit("120", Text(2, kBytes));
  std::string read(kBytes, '\0');
  ASSERT_EQ(pread(reader.get(), read.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
  EXPECT_TRUE(read == Text(1, kBytes));
}

TEST_F(Persist, NeverWritesOverAFileThatSomebodyHasMapped) {
  Commit("110", Text(1, kBytes));
  Fd reader(open((folder_ / "run/110/rank_3.pt").c_str(), O_RDONLY | O_CLOEXEC));
  void* mapped = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, reader.get(), 0);
  reader.Reset();
  ASSERT_TRUE(DeleteStep(folder_ / "run", "110").ok());
  Commit("120", Text(2, kBytes));
  EXPECT_TRUE(std::string(static_cast<char*>(mapped), kBytes) == Text(1, kBytes));
  munmap(mapped, kBytes);
}

TEST_F(Persist, RemovesWhatWasRecycledAtTheEnd) {
  Commit("110", Text(1, kBytes));
  ASSERT_TRUE(DeleteStep(folder_ / "run", "110").ok());
  EXPECT_TRUE(folder_.Has("run/.recycled/110-rank_3.pt"));
  EXPECT_TRUE(RemoveRecycled(folder_ / "run").ok());
  EXPECT_FALSE(folder_.Has("run/.recycled"));
  EXPECT_TRUE(RemoveRecycled(folder_ / "run").ok());
}

}  // namespace
}  // namespace phalanx::checkpoint

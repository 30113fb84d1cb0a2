// What every storage has to do. Another one joins the list at the end.
#include "checkpoint/storage/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/storage/posix.h"
#include "checkpoint/storage/tiered.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

// By Read alone, as one would that has no faster way to compare a file.
class ReadingStorage : public PosixStorage {
 public:
  using PosixStorage::PosixStorage;
  Status Check(const std::string& step, const Shard& file) override { return Storage::Check(step, file); }
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Storage>(const std::string& folder)> make;
};

class StorageTest : public testing::TestWithParam<Kind> {
 protected:
  static constexpr size_t kBytes = (5 << 20) + 17;  // more than one part

  void SetUp() override {
    std::filesystem::create_directories(folder_ / "run");
    storage_ = GetParam().make(folder_ / "run");
  }
  FileToPut File(const std::string& name, int64_t rank, const std::string& text) {
    folder_.Write("slot", text);
    return {folder_ / "slot",
            name,
            rank,
            text.size(),
            Crc32(0, text.data(), text.size()),
            rank == kMainRank ? FileNeed::kEveryRank : FileNeed::kOwner};
  }
  static std::string Text(char seed) {
    std::string text(kBytes, '\0');
    for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(seed + i / 7 + i * i);
    return text;
  }
  static Manifest ManifestOf(int64_t step, uint64_t sequence, std::vector<Shard> shards) {
    return {.step = step,
            .sequence = sequence,
            .world_size = 2,
            .kind = "full",
            .layout = "torch-zip",
            .job_id = "job",
            .shards = std::move(shards)};
  }
  // Two ranks' step; the manifest that counts.
  Manifest Store(const std::string& name, int64_t step, uint64_t sequence) {
    std::vector<Shard> shards;
    for (const int64_t rank : {0, 1}) {
      const std::string file = ShardName(kTorchLayout, rank);
      shards.push_back(storage_->Put(name, File(file, rank, Text(static_cast<char>(rank)))).value());
    }
    const Manifest manifest = ManifestOf(step, sequence, shards);
    const Status published = storage_->Publish(name, manifest);
    EXPECT_TRUE(published.ok()) << published;
    return manifest;
  }

  TestFolder folder_;
  std::unique_ptr<Storage> storage_;
};

TEST_P(StorageTest, AStepCountsWhenItsManifestIsThere) {
  const std::string name = storage_->Begin(7, 1).value();
  EXPECT_EQ(storage_->LookAt(name).state, StepState::kUncommitted);
  const Manifest manifest = Store(name, 7, 1);
  const std::vector<FoundStep> steps = storage_->List().value();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].name, name);
  EXPECT_EQ(steps[0].manifest, manifest);
  EXPECT_EQ(storage_->LookAt(name).manifest, manifest);
  EXPECT_TRUE(storage_->Publish(name, manifest).ok()) << "the same again";
  EXPECT_TRUE(absl::IsAlreadyExists(storage_->Publish(name, ManifestOf(7, 2, manifest.shards))));
}

TEST_P(StorageTest, WhoBeginsAStepHasANameOfItsOwn) {
  constexpr size_t kThreads = 8;
  std::vector<std::string> names(kThreads);
  {
    std::vector<std::jthread> threads;
    for (std::string& name : names) threads.emplace_back([&] { name = storage_->Begin(7, 3).value(); });
  }
  std::ranges::sort(names);
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  for (const std::string& name : names) EXPECT_EQ(ParseStepName(name)->step, 7);
}

TEST_P(StorageTest, TheNewestIsThatOfTheHighestSequence) {
  for (const auto& [step, sequence] : {std::pair{30, 1}, {10, 2}, {20, 3}}) {
    Store(storage_->Begin(step, 1).value(), step, static_cast<uint64_t>(sequence));
  }
  const std::vector<FoundStep> found = storage_->List().value();
  std::vector<int64_t> steps;
  for (const FoundStep& each : found) steps.push_back(each.step);
  EXPECT_THAT(steps, testing::ElementsAre(20, 10, 30));
}

TEST_P(StorageTest, WhatIsNotWhatItsChecksumSaysIsNotPut) {
  const std::string name = storage_->Begin(7, 1).value();
  FileToPut file = File("rank_0.pt", 0, Text(1));
  file.crc32 ^= 1;
  EXPECT_TRUE(absl::IsDataLoss(storage_->Put(name, file).status()));
  uint8_t byte = 0;
  EXPECT_FALSE(storage_->Read(name, "rank_0.pt", 0, {&byte, 1}).ok());
}

TEST_P(StorageTest, NobodyPutsAFileIntoAStepThatCounts) {
  const std::string name = storage_->Begin(7, 1).value();
  const Manifest manifest = Store(name, 7, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(storage_->Put(name, File("rank_0.pt", 0, Text(9))).status()));
  for (const Shard& shard : manifest.shards) EXPECT_TRUE(storage_->Check(name, shard).ok());
}

TEST_P(StorageTest, ReadsExactlyWhatIsAskedFor) {
  const std::string name = storage_->Begin(7, 1).value();
  Store(name, 7, 1);
  const std::string text = Text(1);
  for (const auto& [offset, bytes] : {std::pair<size_t, size_t>{0, 10}, {4095, 4097}, {kBytes - 3, 3}, {kBytes, 0}}) {
    std::vector<uint8_t> read(bytes);
    const Status status = storage_->Read(name, "rank_1.pt", offset, read);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(std::string(read.begin(), read.end()), text.substr(offset, bytes));
  }
  std::vector<uint8_t> read(4);
  const Status beyond = storage_->Read(name, "rank_1.pt", kBytes - 3, read);
  EXPECT_TRUE(absl::IsDataLoss(beyond));
  EXPECT_THAT(beyond.message(), HasSubstr(storage_->PathOf(name, "rank_1.pt")));
  EXPECT_FALSE(storage_->Read(name, "rank_2.pt", 0, read).ok());
  EXPECT_FALSE(storage_->Read("8", "rank_1.pt", 0, read).ok());
}

TEST_P(StorageTest, ACheckReadsToTheLastByte) {
  const std::string name = storage_->Begin(7, 1).value();
  const Manifest manifest = Store(name, 7, 1);
  for (Shard shard : manifest.shards) {
    EXPECT_TRUE(storage_->Check(name, shard).ok());
    shard.bytes += 1;
    EXPECT_TRUE(absl::IsDataLoss(storage_->Check(name, shard)));
    shard.bytes -= 2;
    shard.crc32 = Crc32(0, Text(static_cast<char>(shard.rank)).data(), shard.bytes);
    EXPECT_TRUE(absl::IsDataLoss(storage_->Check(name, shard))) << "one byte more than it says";
    shard = manifest.shards[static_cast<size_t>(shard.rank)];
    shard.crc32 ^= 1;
    EXPECT_TRUE(absl::IsDataLoss(storage_->Check(name, shard)));
  }
  Shard missing = manifest.shards[0];
  missing.file = "rank_5.pt";
  EXPECT_FALSE(storage_->Check(name, missing).ok());
}

TEST_P(StorageTest, WhatIsDeletedCountsNoMoreAndItsNameIsNotNeeded) {
  const std::string name = storage_->Begin(7, 1).value();
  Store(name, 7, 1);
  const std::string other = storage_->Begin(8, 1).value();
  Store(other, 8, 2);
  EXPECT_TRUE(storage_->Delete(name).ok());
  EXPECT_TRUE(storage_->Delete(name).ok()) << "gone already";
  const std::vector<FoundStep> steps = storage_->List().value();
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_EQ(steps[0].name, other);
  EXPECT_TRUE(storage_->Tidy().ok() && storage_->Tidy().ok());
  EXPECT_EQ(storage_->LookAt(other).state, StepState::kCommitted);
}

TEST_P(StorageTest, LooksAtAStepAsItListsIt) {
  const std::string name = storage_->Begin(7, 1).value();
  Store(name, 7, 1);
  const std::string begun = storage_->Begin(7, 1).value();
  storage_->Put(begun, File("rank_0.pt", 0, "text")).value();
  const std::vector<FoundStep> steps = storage_->List().value();
  ASSERT_EQ(steps.size(), 2U);
  for (const FoundStep& listed : steps) {
    const FoundStep seen = storage_->LookAt(listed.name);
    EXPECT_EQ(seen.name, listed.name);
    EXPECT_EQ(std::pair(seen.step, seen.number), std::pair(listed.step, listed.number));
    EXPECT_EQ(seen.state, listed.state) << listed.name;
    EXPECT_EQ(seen.manifest, listed.manifest);
  }
  EXPECT_EQ(storage_->LookAt("8").state, StepState::kUncommitted);
  EXPECT_EQ(storage_->LookAt("../run/7").manifest, std::nullopt);
}

TEST_P(StorageTest, OneNodeSeesWhatAnotherHasStored) {
  const std::unique_ptr<Storage> other = GetParam().make(folder_ / "run");
  const std::string name = storage_->Begin(7, 1).value();
  std::vector<Shard> shards = {storage_->Put(name, File("rank_0.pt", 0, Text(1))).value()};
  shards.push_back(other->Put(name, File("rank_1.pt", 1, Text(2))).value());
  ASSERT_TRUE(storage_->Publish(name, ManifestOf(7, 1, shards)).ok());
  EXPECT_EQ(other->LookAt(name).manifest->shards, shards);
  for (const Shard& shard : shards) EXPECT_TRUE(other->Check(name, shard).ok());
}

TEST_P(StorageTest, AFileThatIsMissingOrShortMakesAStepDamaged) {
  for (const bool is_missing : {true, false}) {
    const std::string name = storage_->Begin(7, 1).value();
    Manifest manifest = ManifestOf(7, is_missing ? 1 : 2, {storage_->Put(name, File("rank_0.pt", 0, "text")).value()});
    manifest.shards.push_back(manifest.shards[0]);
    manifest.shards[1].rank = 1;
    manifest.shards[1].file = "rank_1.pt";
    if (!is_missing) {
      storage_->Put(name, File("rank_1.pt", 1, "text")).value();
      manifest.shards[1].bytes += 1;
    }
    ASSERT_TRUE(storage_->Publish(name, manifest).ok());
    EXPECT_EQ(storage_->LookAt(name).state, StepState::kDamaged);
  }
}

TEST_P(StorageTest, WhatItPointsToIsTheStepThatWasNamedLast) {
  for (const int64_t step : {7, 8}) {
    const std::string name = storage_->Begin(step, 1).value();
    ASSERT_TRUE(storage_->PointTo(name, step, {"latest"}).ok());
    EXPECT_EQ(folder_.Read("run/latest"), name);
  }
  EXPECT_FALSE(storage_->PointTo("8", 8, {"../tracker"}).ok());
}

TEST_P(StorageTest, ADirectoryIsMadeAndNotWhatItLiesIn) {
  const std::unique_ptr<Storage> next = GetParam().make(folder_ / "next");
  EXPECT_FALSE(next->Begin(1, 1).ok());
  ASSERT_TRUE(next->Make().ok());
  EXPECT_TRUE(next->Make().ok());
  EXPECT_EQ(next->Begin(1, 1).value(), "1");
  EXPECT_EQ(next->PathOf("1", ""), folder_ / "next/1");
  EXPECT_THAT(Message(GetParam().make(folder_ / "not/mounted")->Make()), HasSubstr("mkdir: No such file"));
}

TEST_P(StorageTest, WhereThereIsNoDirectoryNothingIsListed) {
  const std::unique_ptr<Storage> none = GetParam().make(folder_ / "none");
  EXPECT_TRUE(absl::IsNotFound(none->List().status()));
}

const Kind kKinds[] = {
    {"Posix", [](const std::string& folder) { return std::make_unique<PosixStorage>(folder); }},
    {"Reading", [](const std::string& folder) { return std::make_unique<ReadingStorage>(folder); }},
    {"Tiered",
     [](const std::string& folder) {
       return std::make_unique<TieredStorage>(std::make_shared<PosixStorage>(folder),
                                              std::make_shared<PosixStorage>(folder + "-archive"), 0);
     }},
};
INSTANTIATE_TEST_SUITE_P(All, StorageTest, testing::ValuesIn(kKinds), [](const auto& each) { return each.param.name; });

TEST(OpenStorage, AUrlIsNoPath) {
  for (const char* const location : {"s3://bucket/run", "gs://bucket", "hdfs://host:8020/run", "file:///data"}) {
    const auto storage = OpenStorage(location);
    EXPECT_TRUE(absl::IsInvalidArgument(storage.status())) << location;
    EXPECT_THAT(storage.status().message(), HasSubstr(location));
  }
  for (const char* const location : {"/data/run", "run", "/data/odd://name", "://x"}) {
    EXPECT_TRUE(OpenStorage(location).ok()) << location;
  }
}

}  // namespace
}  // namespace phalanx::checkpoint

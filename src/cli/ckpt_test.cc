#include "cli/ckpt.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/test_folder.h"
#include "checkpoint/disk/persist.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/image/image.h"
#include "checkpoint/image/test_file_table.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/control.h"
#include "cli/ckpt_discard.h"
#include "cli/ckpt_memory.h"
#include "cli/ckpt_rescue.h"

namespace phalanx::cli {
namespace {

using checkpoint::Control;
using checkpoint::IsMemoryName;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kMemory = "phx-0-00000000000000aa-00000000000000bb";
constexpr const char* kRun = "00000000000000cc";
constexpr int64_t kNow = 1'700'000'000'000;

// What a rank of `world` would have sealed.
std::string ImageText(int64_t step, uint32_t rank, uint32_t world, char filler = 'x', const char* kind = "full",
                      uint32_t branch = 0) {
  const std::array<uint64_t, 2> sizes = {100'000, 4};
  checkpoint::ImageLayout layout;
  EXPECT_EQ(checkpoint::PlanImage(sizes.data(), sizes.size(), 20, 0, &layout), "");
  std::string image(layout.file_bytes, '\0');
  std::array<uint32_t, 2> crcs{};
  for (size_t i = 0; i < sizes.size(); ++i) {
    const std::string data(sizes[i], static_cast<char>(filler + i));
    image.replace(layout.data_at[i], data.size(), data);
    crcs[i] = Crc32(0, data.data(), data.size());
  }
  const std::string info = fmt::format(
      R"({{"version":1,"step":{},"branch":{},"epoch":3,"rank":{},"world_size":{},"kind":"{}","job_id":"job7"}})", step,
      branch, rank, world, kind);
  const std::string id(40, '1');
  const std::string pickle(20, 'p');
  checkpoint::FinishImage(reinterpret_cast<uint8_t*>(image.data()), layout,
                          {.pickle = pickle, .info = info, .serialization_id = id}, crcs.data());
  return image;
}

// The memory of a node as its agent and its ranks leave it.
class Memory {
 public:
  explicit Memory(const TestFolder& root, const std::string& name = kMemory) : root_(root), name_(name) {
    root.Write(name + "/node.json", R"({"version":1,"job_id":"job7","address":"10.0.0.1"})");
    root.Write(fmt::format("{}/{}/info.json", name, kRun), R"({"version":1,"dir":"/data/run7"})");
  }

  struct Sealed {
    std::string image;
    int64_t step;
    bool committed = false;
    bool dropped = false;
    SaveForm form = {};
    uint32_t branch = 0;
  };

  void Rank(uint32_t local_rank, uint32_t rank, uint32_t world, const std::vector<Sealed>& slots) const {
    Page(fmt::format("{}", local_rank), rank, world, slots);
  }

  void Page(const std::string& name, uint32_t rank, uint32_t world, const std::vector<Sealed>& slots) const {
    std::string page(checkpoint::kControlBytes, '\0');
    Control control(reinterpret_cast<uint8_t*>(page.data()));
    control.Format(3);
    const std::vector<uint64_t> numbers(slots.size(), 9);
    const uint64_t bytes = slots.empty() ? 0 : slots.front().image.size();
    control.SetSlots(static_cast<uint32_t>(slots.size()), bytes, numbers.data());
    for (size_t i = 0; i < slots.size(); ++i) {
      const Sealed& sealed = slots[i];
      root_.Write(Path(fmt::format("slot-{}-{}.9", name, i)), sealed.image);
      checkpoint::ControlPage seen;
      EXPECT_EQ(checkpoint::ParseControl(page.data(), page.size(), &seen), "");
      uint64_t generation = 0;
      std::string why;
      EXPECT_TRUE(control.Begin(static_cast<int>(i), seen.slots[i], &generation, &why)) << why;
      const checkpoint::SlotImage image{.step = sealed.step,
                                        .epoch = 3,
                                        .bytes = sealed.image.size(),
                                        .layout_hash = 1,
                                        .rank = rank,
                                        .world_size = world,
                                        .crc32 = Crc32(0, sealed.image.data(), sealed.image.size()),
                                        .records = 2,
                                        .sealed_unix_ms = kNow,
                                        .branch = sealed.branch,
                                        .form = sealed.form};
      EXPECT_TRUE(control.Seal(static_cast<int>(i), generation, image));
      if (sealed.committed) control.SetCommitted(static_cast<int>(i), generation);
      if (sealed.dropped) control.SetDropped(static_cast<int>(i), generation);
    }
    root_.Write(Path("control-" + name), page);
  }

  std::string Path(const std::string& file) const { return fmt::format("{}/{}/{}", name_, kRun, file); }
  std::string folder() const { return root_ / name_; }

 private:
  const TestFolder& root_;
  std::string name_;
};

Memory::Sealed At(int64_t step, uint32_t rank, uint32_t world, bool committed = false) {
  return {ImageText(step, rank, world), step, committed};
}

void WriteStep(const TestFolder& folder, const std::string& name, int64_t step, char filler = 'x',
               uint64_t sequence = 0) {
  checkpoint::Manifest manifest{.step = step,
                                .sequence = sequence,
                                .epoch = 3,
                                .world_size = 2,
                                .kind = "full",
                                .layout = "torch-zip",
                                .job_id = "job7",
                                .written_unix_ms = kNow - 60'000,
                                .shards = {}};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const std::string image = ImageText(step, rank, 2, filler);
    const std::string file = fmt::format("rank_{}.pt", rank);
    folder.Write(fmt::format("{}/{}", name, file), image);
    manifest.shards.push_back({rank, file, image.size(), Crc32(0, image.data(), image.size())});
  }
  folder.Write(name + "/manifest.json", checkpoint::ManifestText(manifest));
}

void Flip(const TestFolder& folder, const std::string& name, size_t at) {
  std::string text = folder.Read(name);
  text[at] = static_cast<char>(text[at] ^ 1);
  folder.Write(name, text);
}

json ParsedList(const std::string& path) {
  const StatusOr<CkptAnswer> answer = CkptList(path, true, kNow);
  EXPECT_TRUE(answer.ok()) << answer.status();
  return json::parse(answer->text);
}

TEST(CkptList, TellsOfStepsAndWhyOneDoesNotCount) {
  const TestFolder folder;
  WriteStep(folder, "100", 100);
  WriteStep(folder, "200", 200);
  folder.Write("200/rank_1.pt", "short");
  folder.Write("300/rank_0.pt", "alone");
  const json steps = ParsedList(folder.path() + "/")["steps"];
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0]["state"], "uncommitted");
  EXPECT_EQ(steps[1]["state"], "damaged");
  EXPECT_THAT(steps[1]["why"].get<std::string>(), HasSubstr("rank_1.pt has 5 bytes instead of"));
  EXPECT_EQ(steps[2]["state"], "committed");
  EXPECT_EQ(steps[2]["world_size"], 2);
  const std::string text = CkptList(folder.path(), false, kNow)->text;
  EXPECT_THAT(text, AllOf(HasSubstr("100   committed    0         2      full"), HasSubstr("0:01:00")));
  const TestFolder empty;
  EXPECT_EQ(CkptList(empty.path(), false, kNow)->text, fmt::format("no steps in {}\n", empty.path()));
}

TEST(CkptList, TellsOfMemory) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 4, 8, {At(10, 4, 8, true), At(20, 4, 8)});
  memory.Rank(1, 5, 8, {});
  root.Write(memory.Path("control-2"), "garbage");
  const json all = ParsedList(root.path())["memories"];
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0]["job_id"], "job7");
  EXPECT_EQ(all[0]["agent_lives"], false);
  const json& directory = all[0]["directories"][0];
  EXPECT_EQ(directory["dir"], "/data/run7");
  EXPECT_EQ(directory["pages"], (json{"0", "1"}));
  EXPECT_EQ(directory["problems"].size(), 1u);
  ASSERT_EQ(directory["slots"].size(), 2u);
  EXPECT_EQ(directory["slots"][0]["state"], "committed");
  EXPECT_EQ(directory["slots"][1]["state"], "sealed");
  EXPECT_EQ(directory["slots"][1]["step"], 20);
  EXPECT_EQ(directory["slots"][1]["rank"], 4);
  EXPECT_THAT(CkptList(memory.folder(), false, kNow)->text,
              AllOf(HasSubstr("job 'job7' on 10.0.0.1, its agent is dead"), HasSubstr("for /data/run7:"),
                    HasSubstr("sealed     20    3      4/8")));
}

TEST(CkptList, TellsOfOthersOnlyNameAndSize) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1)});
  if (chown(memory.folder().c_str(), 12'345, 12'345) != 0) GTEST_SKIP() << "only root gives folders away";
  const json all = ParsedList(root.path())["memories"];
  EXPECT_EQ(all[0]["own"], false);
  EXPECT_GT(all[0]["bytes"], 100'000);
  EXPECT_FALSE(all[0].contains("job_id"));
  EXPECT_TRUE(absl::IsNotFound(CkptRescue({root.path()}, {.to = root / "out"}, kNow).status()));
}

TEST(CkptDiscard, RemovesWhatDeadJobsHaveLeft) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1)});
  const Memory living(root, "phx-0-00000000000000aa-00000000000000dd");
  living.Rank(0, 0, 1, {At(10, 0, 1)});
  root.Write("other/rank_0.pt", "of nobody's memory");
  Fd agent(open((living.folder() + "/node.json").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(agent.get(), LOCK_EX), 0);
  const Status named = CkptDiscard(living.folder(), false).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(named));
  EXPECT_THAT(Message(named), HasSubstr("the agent of job 'job7' lives"));
  const StatusOr<CkptAnswer> answer = CkptDiscard(root.path(), false);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->text, AllOf(HasSubstr(memory.folder() + ": removed, "), HasSubstr("of job 'job7' on 10.0.0.1")));
  EXPECT_THAT(answer->text, testing::Not(HasSubstr(living.folder())));
  EXPECT_FALSE(root.Has(memory.folder().substr(root.path().size() + 1)));
  EXPECT_TRUE(absl::IsNotFound(CkptDiscard(root.path(), false).status()));
  agent = Fd();
  EXPECT_EQ(json::parse(CkptDiscard(living.folder() + "/", true)->text)["removed"][0]["path"], living.folder());
  EXPECT_TRUE(root.Has("other/rank_0.pt"));
  EXPECT_TRUE(absl::IsNotFound(CkptDiscard(root / "other", false).status()));
}

// Whoever makes it may be about to say whose it is.
TEST(CkptDiscard, LeavesWhatIsBeingMade) {
  const TestFolder root;
  const Memory memory(root);
  root.Write("phx-0-00000000000000aa-00000000000000dd/new", "x");
  const StatusOr<CkptAnswer> answer = CkptDiscard(root.path(), true);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->exit_code, 1);
  EXPECT_EQ(json::parse(answer->text)["removed"].size(), 1u);
  EXPECT_THAT(json::parse(answer->text)["problems"][0].get<std::string>(), HasSubstr("node.json"));
  EXPECT_TRUE(absl::IsNotFound(CkptDiscard(root.path(), true).status()));
  EXPECT_TRUE(root.Has("phx-0-00000000000000aa-00000000000000dd/new"));
}

TEST(CkptShow, TellsOfAStepAndOfAnImage) {
  const TestFolder folder;
  WriteStep(folder, "100", 100);
  EXPECT_THAT(CkptShow(folder / "100", false)->text,
              AllOf(HasSubstr("job 'job7', epoch 3, world 2, kind full"), HasSubstr("rank_1.pt")));
  const json image = json::parse(CkptShow(folder / "100/rank_1.pt", true)->text);
  EXPECT_EQ(image["rank"], 1);
  EXPECT_EQ(image["records"][0]["name"], "archive/data/0");
  EXPECT_EQ(image["records"][0]["bytes"], 100'000);
  EXPECT_TRUE(absl::IsDataLoss(CkptShow(folder / "100/manifest.json", false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(CkptShow(folder.path(), false).status()));
  EXPECT_TRUE(absl::IsNotFound(CkptShow(folder / "gone", false).status()));
}

TEST(CkptVerify, FindsAChangedByteOfAShard) {
  const TestFolder folder;
  WriteStep(folder, "100", 100);
  EXPECT_EQ(CkptVerify(folder.path(), false)->exit_code, 0);
  EXPECT_THAT(CkptVerify(folder / "100", false)->text, HasSubstr("2 intact, 0 damaged"));
  Flip(folder, "100/rank_1.pt", 50'000);
  for (const std::string& path : {folder.path(), folder / "100"}) {
    const StatusOr<CkptAnswer> answer = CkptVerify(path, false);
    EXPECT_EQ(answer->exit_code, 1);
    EXPECT_THAT(answer->text, AllOf(HasSubstr("DAMAGED"), HasSubstr("its CRC is"), HasSubstr("1 intact, 1 damaged")));
  }
  EXPECT_THAT(CkptVerify(folder / "100/rank_1.pt", false)->text, HasSubstr("archive/data/0"));
  EXPECT_EQ(CkptVerify(folder / "100/rank_0.pt", false)->exit_code, 0);
}

TEST(CkptVerify, FindsAChangedByteInMemory) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1), At(20, 0, 1)});
  EXPECT_EQ(CkptVerify(root.path(), false)->exit_code, 0);
  Flip(root, memory.Path("slot-0-1.9"), 50'000);
  const json found = json::parse(CkptVerify(memory.folder(), true)->text);
  EXPECT_EQ(found["damaged"], 1);
  EXPECT_EQ(found["files"][0]["intact"], true);
  EXPECT_EQ(found["files"][1]["intact"], false);
}

TEST(CkptDiff, NamesTheRecordsThatDiffer) {
  const TestFolder folder;
  WriteStep(folder, "100", 100);
  WriteStep(folder, "200", 200, 'y');
  WriteStep(folder, "300", 100);
  EXPECT_EQ(CkptDiff(folder / "100/rank_0.pt", folder / "100/rank_0.pt", false)->text, "no record differs\n");
  EXPECT_EQ(CkptDiff(folder / "100", folder / "300", false)->exit_code, 0);
  const StatusOr<CkptAnswer> images = CkptDiff(folder / "100/rank_0.pt", folder / "200/rank_0.pt", true);
  EXPECT_EQ(images->exit_code, 1);
  std::vector<std::string> records;
  const json differences = json::parse(images->text)["differences"];
  for (const json& found : differences) records.push_back(found["record"]);
  EXPECT_THAT(records, ElementsAre("archive/data/0", "archive/data/1", "archive/.phalanx/info"));
  EXPECT_THAT(CkptDiff(folder / "100", folder / "200", false)->text,
              HasSubstr("rank_1.pt: archive/data/1         CRC "));
  EXPECT_TRUE(absl::IsInvalidArgument(CkptDiff(folder / "100", folder / "100/rank_0.pt", false).status()));
}

TEST(CkptExport, CopiesWhatIsWholeToANewFile) {
  const TestFolder folder;
  WriteStep(folder, "100", 100);
  ASSERT_TRUE(CkptExport(folder / "100/rank_0.pt", folder / "out.pt", false).ok());
  EXPECT_TRUE(folder.Read("out.pt") == folder.Read("100/rank_0.pt"));
  EXPECT_TRUE(absl::IsAlreadyExists(CkptExport(folder / "100/rank_0.pt", folder / "out.pt", false).status()));
  Flip(folder, "100/rank_0.pt", 50'000);
  EXPECT_TRUE(absl::IsDataLoss(CkptExport(folder / "100/rank_0.pt", folder / "two.pt", false).status()));
  EXPECT_FALSE(folder.Has("two.pt"));
}

TEST(CkptRescue, WritesTheNewestStepThatAllHaveSealed) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(10, 0, 2, true), At(20, 0, 2), At(30, 0, 2)});
  memory.Rank(1, 1, 2, {At(10, 1, 2, true), At(20, 1, 2)});
  const StatusOr<CkptAnswer> answer = CkptRescue({root.path()}, {.to = root / "out"}, kNow);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->exit_code, 0) << answer->text;
  const auto steps = checkpoint::FindSteps(root / "out");
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_EQ(steps->front().name, "20");
  EXPECT_EQ(steps->front().manifest->job_id, "job7");
  EXPECT_EQ(CkptVerify(root / "out", false)->exit_code, 0);
  EXPECT_TRUE(root.Read("out/20/rank_1.pt") == ImageText(20, 1, 2));
}

// `phalanx status` names it.
TEST(LeftSteps, AreWhatARescueWouldWrite) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(10, 0, 2, true), At(20, 0, 2), At(30, 0, 2)});
  memory.Rank(1, 1, 2, {At(10, 1, 2, true), At(20, 1, 2)});
  std::vector<checkpoint::MemoryFolder> memories = *checkpoint::ReadMemories(root.path());
  ASSERT_EQ(memories.size(), 1u);
  const std::vector<LeftStep> left = LeftSteps(memories, "job7");
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(left[0].step, 20);
  EXPECT_EQ(left[0].folder, memories[0].path);
  EXPECT_TRUE(LeftSteps(memories, "another").empty());
  memories[0].agent_lives = true;
  EXPECT_TRUE(LeftSteps(memories, "job7").empty());
}

// A later one may be on this node alone: of two nodes each would write another step.
TEST(CkptRescue, WritesTheNewestStepThatIsCommitted) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 3, {At(10, 0, 3, true), At(20, 0, 3), At(30, 0, 3)});
  memory.Rank(1, 1, 3, {At(10, 1, 3), At(20, 1, 3), At(30, 1, 3)});
  const json told = json::parse(CkptRescue({root.path()}, {.to = root / "out", .json = true}, kNow)->text);
  EXPECT_EQ(told["step"], 10);
  EXPECT_EQ(told["committed"], true);
  EXPECT_EQ(told["newer"], json({30, 20}));
  EXPECT_THAT(CkptRescue({root.path()}, {.to = root / "out"}, kNow)->text,
              HasSubstr("step 30 is in this memory, too, and newer: where other nodes have it, use --step 30"));
  const StatusOr<CkptAnswer> named = CkptRescue({root.path()}, {.to = root / "out", .step = 20}, kNow);
  EXPECT_EQ(named->exit_code, 1);
  EXPECT_THAT(named->text, AllOf(HasSubstr("step 20"), HasSubstr("does not say that all ranks of the job had this")));
  EXPECT_THAT(named->text, HasSubstr("1 more are missing, the first is rank_2.pt"));
  EXPECT_THAT(Message(CkptRescue({root.path()}, {.to = root / "out", .step = 15}, kNow).status()),
              HasSubstr("no save of step 15 is sealed by all 2 writers"));
}

TEST(CkptRescue, GivesTheMemoryBackWhereTheStepCounts) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(10, 0, 2)});
  const StatusOr<CkptAnswer> half = CkptRescue({root.path()}, {.to = root / "out", .free = true}, kNow);
  ASSERT_TRUE(half.ok()) << half.status();
  EXPECT_THAT(half->text, HasSubstr("the memory stays until the step counts"));
  EXPECT_TRUE(root.Has(memory.folder().substr(root.path().size() + 1)));
  memory.Rank(1, 1, 2, {At(10, 1, 2)});
  const StatusOr<CkptAnswer> whole = CkptRescue({root.path()}, {.to = root / "out", .free = true}, kNow);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_THAT(whole->text, HasSubstr("of memory are free again"));
  EXPECT_FALSE(root.Has(memory.folder().substr(root.path().size() + 1)));
  EXPECT_EQ(CkptVerify(root / "out", false)->exit_code, 0);
}

TEST(CkptRemove, RemovesAStepAndNothingElse) {
  const TestFolder folder;
  WriteStep(folder, "100", 100);
  WriteStep(folder, "200", 200);
  folder.Write("notes.txt", "mine");
  const StatusOr<CkptAnswer> gone = CkptRemove(folder / "100/", false);
  ASSERT_TRUE(gone.ok()) << gone.status();
  EXPECT_THAT(gone->text, HasSubstr("/100: removed, "));
  EXPECT_FALSE(folder.Has("100"));
  EXPECT_EQ(checkpoint::FindSteps(folder.path())->size(), 1u);
  EXPECT_THAT(Message(CkptRemove(folder.path(), false).status()),
              HasSubstr("nothing is removed: expected the folder of"));
  EXPECT_FALSE(CkptRemove(folder / "notes.txt", false).ok());
  EXPECT_FALSE(CkptRemove(folder / "300", false).ok());
  folder.Write("200/more.txt", "mine");
  EXPECT_THAT(Message(CkptRemove(folder / "200", false).status()), HasSubstr("holds files that are not the step's"));
  EXPECT_TRUE(folder.Has("200/more.txt"));
  EXPECT_TRUE(folder.Has("notes.txt"));
}

TEST(CkptRemove, RemovesMemoryOfTheDead) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1)});
  EXPECT_EQ(json::parse(CkptRemove(memory.folder(), true)->text)["removed"][0]["path"], memory.folder());
}

TEST(CkptRescue, WritesNothingThatWasDropped) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1), {ImageText(20, 0, 1), 20, false, true}});
  EXPECT_EQ(json::parse(CkptRescue({root.path()}, {.to = root / "out", .json = true}, kNow)->text)["step"], 10);
  EXPECT_TRUE(absl::IsNotFound(CkptRescue({root.path()}, {.to = root / "out", .step = 20}, kNow).status()));
}

TEST(CkptRescue, IsRefusedWhileTheAgentLives) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1)});
  const Fd agent(open((memory.folder() + "/node.json").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(agent.get(), LOCK_EX), 0);
  const Status named = CkptRescue({memory.folder()}, {.to = root / "out"}, kNow).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(named));
  EXPECT_THAT(Message(named), HasSubstr("nothing is rescued"));
  EXPECT_TRUE(absl::IsNotFound(CkptRescue({root.path()}, {.to = root / "out"}, kNow).status()));
  EXPECT_FALSE(root.Has("out"));
  EXPECT_EQ(ParsedList(root.path())["memories"][0]["agent_lives"], true);
}

// As it is done on one node after the other, to a directory that both see.
TEST(CkptRescue, CountsWhenTheLastNodesRanksAreThere) {
  const TestFolder first;
  const TestFolder second;
  const Memory one(first);
  one.Rank(0, 0, 2, {At(10, 0, 2), At(20, 0, 2)});
  const Memory two(second);
  two.Rank(0, 1, 2, {At(20, 1, 2)});
  const StatusOr<CkptAnswer> begun = CkptRescue({one.folder()}, {.to = first / "out"}, kNow);
  ASSERT_TRUE(begun.ok()) << begun.status();
  EXPECT_EQ(begun->exit_code, 1);
  EXPECT_THAT(begun->text, HasSubstr("1 more are missing, the first is rank_1.pt"));
  EXPECT_EQ(checkpoint::NewestCommitted(*checkpoint::FindSteps(first / "out")), nullptr);
  EXPECT_EQ(CkptRescue({two.folder()}, {.to = first / "out"}, kNow)->exit_code, 0);
  EXPECT_EQ(CkptVerify(first / "out", false)->exit_code, 0);
  EXPECT_EQ(checkpoint::NewestCommitted(*checkpoint::FindSteps(first / "out"))->name, "20");
}

// Each node has a copy of what is the same on all ranks.
TEST(CkptRescue, WritesTheSharedStateOnce) {
  const TestFolder root;
  const auto image = [](uint32_t rank, const char* kind) {
    return Memory::Sealed{ImageText(20, rank, 2, 'x', kind), 20, false, false, kDdpForm};
  };
  const Memory one(root);
  one.Rank(0, 0, 2, {image(0, "ddp-rank")});
  one.Page("main", 0, 2, {image(0, "ddp")});
  const Memory two(root, "phx-0-00000000000000aa-00000000000000dd-1");
  two.Rank(0, 1, 2, {image(1, "ddp-rank")});
  EXPECT_EQ(CkptRescue({two.folder()}, {.to = root / "half"}, kNow)->exit_code, 1);  // without the shared state
  two.Page("main", 1, 2, {image(1, "ddp")});
  ASSERT_EQ(CkptRescue({root.path()}, {.to = root / "out"}, kNow)->exit_code, 0);
  const auto steps = checkpoint::FindSteps(root / "out");
  const checkpoint::Manifest& manifest = *steps->front().manifest;
  EXPECT_EQ(manifest.kind, "ddp");
  ASSERT_EQ(manifest.shards.size(), 3u);
  EXPECT_EQ(manifest.shards[0].file, "main.pt");
  EXPECT_EQ(manifest.shards[0].rank, checkpoint::kMainRank);
  EXPECT_EQ(CkptVerify(root / "out", false)->exit_code, 0);
}

// The state that all share is there: what the lost ranks had of their own is not needed to go on.
TEST(CkptRescue, LetsAStepOfDdpCountWithoutLostNodes) {
  const TestFolder root;
  const auto image = [](uint32_t rank, const char* kind) {
    return Memory::Sealed{ImageText(20, rank, 2, 'x', kind), 20, true, false, kDdpForm};
  };
  const Memory one(root);
  one.Rank(0, 0, 2, {image(0, "ddp-rank")});
  EXPECT_EQ(CkptRescue({one.folder()}, {.to = root / "own", .without_lost = true}, kNow)->exit_code, 1);
  EXPECT_FALSE(root.Has("own/20/manifest.json"));
  one.Page("main", 0, 2, {image(0, "ddp")});
  const StatusOr<CkptAnswer> half = CkptRescue({one.folder()}, {.to = root / "out"}, kNow);
  EXPECT_EQ(half->exit_code, 1);
  EXPECT_THAT(half->text, HasSubstr("--without-lost"));
  EXPECT_FALSE(root.Has("out/20/manifest.json"));
  const StatusOr<CkptAnswer> without = CkptRescue({one.folder()}, {.to = root / "out", .without_lost = true}, kNow);
  EXPECT_EQ(without->exit_code, 0);
  EXPECT_THAT(without->text, HasSubstr("the first is rank_1.pt: the step counts without them"));
  const auto steps = checkpoint::FindSteps(root / "out");
  EXPECT_EQ(checkpoint::NewestCommitted(*steps)->manifest->shards.size(), 2u);
  EXPECT_EQ(CkptVerify(root / "out", false)->exit_code, 0);
}

// As files under their own names: that of which two ranks have a copy comes from the first.
TEST(CkptRescue, WritesNamedFiles) {
  const TestFolder root;
  const auto image = [](const std::vector<checkpoint::FileOfImage>& files) {
    return Memory::Sealed{checkpoint::ImageOfFiles(files, 12'288), 20, true, false, kFilesForm};
  };
  const std::string zeros(4'096, '\0');
  const uint32_t crc = Crc32(0, zeros.data(), zeros.size());
  const Memory memory(root);
  memory.Rank(0, 0, 2, {image({{"model.pt", 4'096, 4'096, crc}})});
  memory.Page("main", 0, 2, {image({})});
  const Status half = CkptRescue({root.path()}, {.to = root / "half"}, kNow).status();
  EXPECT_THAT(Message(half), HasSubstr("of 2 this memory has 1"));
  memory.Rank(1, 1, 2, {image({{"model.pt", 4'096, 4'096, crc, true}, {"optimizer_1.pt", 8'192, 4'096, crc}})});
  const auto shown = CkptShow(root / memory.Path("slot-1-0.9"), false);
  ASSERT_TRUE(shown.ok()) << shown.status();
  EXPECT_THAT(shown->text, AllOf(HasSubstr("2 files in"), HasSubstr("optimizer_1.pt"), HasSubstr("from another rank")));
  const StatusOr<CkptAnswer> answer = CkptRescue({root.path()}, {.to = root / "out"}, kNow);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->exit_code, 0) << answer->text;
  const auto steps = checkpoint::FindSteps(root / "out");
  const checkpoint::Manifest& manifest = *steps->front().manifest;
  EXPECT_EQ(manifest.kind, "files");
  ASSERT_EQ(manifest.shards.size(), 2u);
  EXPECT_EQ(manifest.shards[0].file, "model.pt");
  EXPECT_EQ(manifest.shards[0].needed_by, FileNeed::kAnyRank);
  EXPECT_EQ(manifest.shards[1].file, "optimizer_1.pt");
  EXPECT_EQ(manifest.shards[1].rank, 1);
  EXPECT_EQ(CkptVerify(root / "out", false)->exit_code, 0);
}

// Copies of two nodes' folders: what any rank may need is there only where all of it is.
TEST(CkptRescue, TakesFoldersOfSeveralNodes) {
  const TestFolder root;
  const std::string zeros(4'096, '\0');
  const uint32_t crc = Crc32(0, zeros.data(), zeros.size());
  const auto image = [&](const std::string& name) {
    return Memory::Sealed{checkpoint::ImageOfFiles({{name, 4'096, 4'096, crc}}, 8'192), 20, true, false, kFilesForm};
  };
  const Memory one(root, std::string("one/") + kMemory);
  one.Rank(0, 0, 2, {image("model.pt")});
  const Memory two(root, std::string("two/") + kMemory);
  two.Rank(0, 1, 2, {image("optimizer_1.pt")});
  const Status half = CkptRescue({one.folder()}, {.to = root / "out"}, kNow).status();
  EXPECT_THAT(Message(half), HasSubstr("of 2 this memory has 1; name the folders of all nodes"));
  const StatusOr<CkptAnswer> answer =
      CkptRescue({one.folder(), root / "two", one.folder() + "/"}, {.to = root / "out"}, kNow);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->exit_code, 0) << answer->text;
  EXPECT_EQ(checkpoint::FindSteps(root / "out")->front().manifest->shards.size(), 2u);
}

// What was trained last is the newest, whatever steps lie there.
TEST(CkptRescue, StoresBehindWhatIsThere) {
  const TestFolder root;
  for (const int64_t n : {1, 2, 3}) WriteStep(root, fmt::format("out/{}00", n), 100 * n, 'x', static_cast<uint64_t>(n));
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(250, 0, 1, true)});
  ASSERT_EQ(CkptRescue({root.path()}, {.to = root / "out"}, kNow)->exit_code, 0);
  const auto steps = checkpoint::FindSteps(root / "out");
  EXPECT_EQ(checkpoint::NewestCommitted(*steps)->name, "250");
  EXPECT_EQ(steps->front().manifest->sequence, 4u);
  EXPECT_EQ(steps->front().timeline, 1u) << "of those that are there it goes on from none";
  EXPECT_THAT(CkptList(root / "out", false, kNow)->text, HasSubstr("250   committed  1         1"));
  EXPECT_THAT(CkptShow(root / "out/250", false)->text, HasSubstr("timeline 1, stored as number 4 there"));
}

// Two nodes at one step, of which one has gone back before it.
TEST(CkptRescue, TakesNoShardOfAnotherBranch) {
  const TestFolder root;
  const Memory memory(root);
  const auto sealed = [](uint32_t rank, uint32_t branch) {
    return Memory::Sealed{ImageText(20, rank, 2, 'x', "full", branch), 20, false, false, {}, branch};
  };
  memory.Rank(0, 0, 2, {sealed(0, 1)});
  root.Write("out/20/rank_1.pt", ImageText(20, 1, 2));
  const Status status = CkptRescue({memory.folder()}, {.to = root / "out"}, kNow).status();
  EXPECT_THAT(Message(status), HasSubstr("epoch 3, branch 0, of job 'job7': it belongs to another state"));
  const Memory other(root, "phx-0-00000000000000aa-00000000000000dd-1");
  other.Rank(0, 1, 2, {sealed(1, 0)});
  EXPECT_THAT(Message(CkptRescue({root.path()}, {.to = root / "both"}, kNow).status()),
              HasSubstr("no step is sealed by all 2 writers"));
  other.Rank(0, 1, 2, {sealed(1, 1)});
  EXPECT_EQ(CkptRescue({root.path()}, {.to = root / "both"}, kNow)->exit_code, 0);
  EXPECT_EQ(checkpoint::FindSteps(root / "both")->front().manifest->branch, 1u);
}

TEST(CkptMemory, TellsWhatIsNeededAndWhatIsUsed) {
  const TestFolder root;
  EXPECT_THAT(CkptMemory(root.path(), false)->text, HasSubstr("no checkpoint memory here"));
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(10, 0, 2), At(20, 0, 2), At(30, 0, 2)});
  memory.Rank(1, 1, 2, {At(10, 1, 2), At(20, 1, 2)});
  const uint64_t image = ImageText(10, 0, 2).size();
  const json told = json::parse(CkptMemory(root.path() + "/", true)->text);
  EXPECT_GT(told["bytes"].get<uint64_t>(), 0u);
  const json& directory = told["memories"][0]["directories"][0];
  EXPECT_EQ(directory["dir"], "/data/run7");
  EXPECT_EQ(directory["writers"], 2);
  EXPECT_EQ(directory["slots_min"], 2);
  EXPECT_EQ(directory["slots_max"], 3);
  EXPECT_EQ(directory["save_bytes"], 2 * image);
  EXPECT_EQ(directory["two_slots_need_bytes"], 4 * image);
  EXPECT_EQ(directory["three_slots_need_bytes"], 6 * image);
  EXPECT_GE(directory["used_bytes"].get<uint64_t>(), 5 * image);
  EXPECT_LT(directory["used_bytes"].get<uint64_t>(), 6 * image);
  const std::string text = CkptMemory(memory.folder(), false)->text;
  EXPECT_THAT(text, AllOf(HasSubstr("job 'job7' on 10.0.0.1, its agent is dead"), HasSubstr("2 to 3"),
                          HasSubstr("/data/run7"), HasSubstr(" free of ")));
}

TEST(CkptRescue, NeedsEachRankOfWhatIsNoDdp) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(20, 0, 2, true)});
  const Status status = CkptRescue({root.path()}, {.to = root / "out", .without_lost = true}, kNow).status();
  EXPECT_THAT(Message(status), HasSubstr("--without-lost is for DDP: step 20 is of kind 'full'"));
  EXPECT_FALSE(root.Has("out"));
}

// Else an agent that begins at that moment would leave its memory alone.
TEST(CkptList, TakesNoLock) {
  const TestFolder root;
  const Memory memory(root);
  const Fd agent(open((memory.folder() + "/node.json").c_str(), O_RDWR | O_CLOEXEC));
  std::atomic<bool> over = false;
  std::thread lists([&] {
    while (!over) ParsedList(root.path());
  });
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    refused += flock(agent.get(), LOCK_EX | LOCK_NB) != 0 ? 1 : 0;
    flock(agent.get(), LOCK_UN);
  }
  over = true;
  lists.join();
  EXPECT_EQ(refused, 0);
}

TEST(CkptRescue, TakesNoShardOfAnotherState) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(20, 0, 2)});
  root.Write("out/20/rank_1.pt", ImageText(19, 1, 2));
  const Status status = CkptRescue({memory.folder()}, {.to = root / "out"}, kNow).status();
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(Message(status), HasSubstr("it belongs to another state"));
  EXPECT_FALSE(root.Has("out/20/manifest.json"));
}

TEST(CkptRescue, WritesNothingThatIsNotWhatWasSealed) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(20, 0, 1)});
  Flip(root, memory.Path("slot-0-0.9"), 50'000);
  EXPECT_TRUE(absl::IsDataLoss(CkptRescue({memory.folder()}, {.to = root / "out"}, kNow).status()));
  EXPECT_FALSE(root.Has("out/20/rank_0.pt"));
}

TEST(CkptRescue, SaysThatNoStepIsSealedByAll) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 2, {At(10, 0, 2)});
  memory.Rank(1, 1, 2, {At(20, 1, 2)});
  const Status status = CkptRescue({memory.folder()}, {.to = root / "out"}, kNow).status();
  EXPECT_THAT(Message(status), HasSubstr("no step is sealed by all 2 writers"));
  EXPECT_FALSE(root.Has("out"));
}

TEST(CkptRescue, AsksWhichOfSeveralJobsIsMeant) {
  const TestFolder root;
  const Memory memory(root);
  memory.Rank(0, 0, 1, {At(10, 0, 1)});
  const Memory other(root, "phx-0-00000000000000dd-00000000000000bb");
  other.Rank(0, 0, 1, {At(10, 0, 1)});
  root.Write("phx-0-00000000000000dd-00000000000000bb/node.json", R"({"version":1,"job_id":"job8","address":"a"})");
  EXPECT_THAT(Message(CkptRescue({root.path()}, {.to = root / "out"}, kNow).status()),
              HasSubstr("memory of several jobs"));
  EXPECT_EQ(CkptRescue({other.folder()}, {.to = root / "out"}, kNow)->exit_code, 0);
}

TEST(MemoryName, IsOfAUserAJobAndANode) {
  EXPECT_TRUE(IsMemoryName(kMemory));
  EXPECT_TRUE(IsMemoryName("phx-0-00000000000000aa-00000000000000bb-2"));
  for (const char* name : {"phx-", "phx-0-aa-bb", "phx-x-00000000000000aa-00000000000000bb",
                           "phx-0-00000000000000AA-00000000000000bb", "phx-0-00000000000000aa-00000000000000bbb"}) {
    EXPECT_FALSE(IsMemoryName(name)) << name;
  }
}

}  // namespace
}  // namespace phalanx::cli

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "base/test_folder.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/host/memory_host.h"
#include "checkpoint/host/serve.h"
#include "checkpoint/host/storage_host.h"

namespace phalanx::checkpoint {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

constexpr uint64_t kBytes = 8192;

class HostTest : public testing::Test {
 protected:
  HostTest() {
    std::filesystem::create_directory(folder_ / "shm");
    std::filesystem::create_directory(dir_);
    Open(4711);
  }

  void Open(int64_t owner) {
    StatusOr<MemoryHost> memory = MemoryHost::Open(folder_ / "shm", owner);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = std::make_unique<MemoryHost>(*std::move(memory));
  }

  Json AskMemory(Json fields) {
    fields["dir"] = dir_;
    Request request(fields.dump());
    return Json::parse(memory_->Answer(request));
  }

  Json AskStorage(Json fields) {
    fields["dir"] = dir_;
    Request request(fields.dump());
    return Json::parse(storage_.Answer(request));
  }

  // As a rank does it: a slot of the page has this image, sealed.
  void Save(const std::string& control_path, int64_t step, std::string image) {
    image.resize(kControlBytes, '.');  // a whole number of pages
    const Fd file(open(control_path.c_str(), O_RDWR));
    void* const page = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(page, MAP_FAILED);
    Control control(static_cast<uint8_t*>(page));
    ControlPage now;
    ASSERT_EQ(ParseControl(page, kControlBytes, &now), "");
    const SlotChoice choice = ChooseSlots(now);
    ASSERT_FALSE(choice.slots.empty()) << choice.why_not;
    const int slot = choice.slots.front();
    uint64_t generation = 0;
    std::string why;
    ASSERT_TRUE(control.Begin(slot, now.slots[static_cast<size_t>(slot)], &generation, &why)) << why;
    const std::string name = control_path.substr(control_path.find("control-") + 8);
    std::ofstream(control_path.substr(0, control_path.rfind('/')) +
                      fmt::format("/slot-{}-{}.{}", name, slot, control.file_number(slot)),
                  std::ios::in | std::ios::out | std::ios::binary)
        << image;
    SlotImage sealed;
    sealed.step = step;
    sealed.epoch = now.live_epoch;
    sealed.bytes = image.size();
    sealed.rank = 3;
    sealed.world_size = 4;
    sealed.records = 1;
    sealed.form = kDdpForm;
    sealed.crc32 = Crc32(0, image.data(), image.size());
    ASSERT_TRUE(control.Seal(slot, generation, sealed));
    munmap(page, kControlBytes);
  }

  Json Save10(const std::string& shared = "main") {
    const Json opened = AskMemory({{"type", "open"}, {"shared", shared}});
    const Json prepared =
        AskMemory({{"type", "prepare"}, {"page", "own"}, {"bytes", kBytes}, {"slots", 2}, {"memory_budget", 0}});
    EXPECT_EQ(prepared["slots"], 2) << prepared;
    Save(opened["control"], 10, "the image");
    return opened;
  }

  const TestFolder folder_;
  const std::string dir_ = folder_ / "run";
  std::unique_ptr<MemoryHost> memory_;
  StorageHost storage_;
};

TEST_F(HostTest, TakesASaveFromMemoryToDisk) {
  const Json opened = Save10();
  EXPECT_TRUE(std::filesystem::exists(std::string(opened["main"])));
  const Json save = {{"step", 10}, {"branch", 0}};
  Json request = save;
  request.update({{"type", "hold"}, {"page", "own"}});
  const Json held = AskMemory(request);
  EXPECT_EQ(held["bytes"], kControlBytes) << held;
  EXPECT_EQ(held["rank"], 3);
  EXPECT_EQ(held["form"], NumberOf(kDdpForm));

  const Json claimed = AskStorage({{"type", "claim"}, {"step", 10}, {"epoch", 1}});
  EXPECT_EQ(claimed["name"], "10");
  Json write = held;
  write.update({{"type", "write"}, {"name", "10"}});
  const Json written = AskStorage(write);
  EXPECT_EQ(written["layout"], "torch-zip") << written;
  EXPECT_EQ(written["more"], false);
  EXPECT_EQ(written["shards"][0]["file"], "rank_3.pt");
  EXPECT_EQ(written["shards"][0]["needed_by"], "nobody");
  Json others = written["shards"];
  for (const int rank : {0, 1, -1}) {
    write["rank"] = rank;
    others.push_back(AskStorage(write)["shards"][0]);
  }
  request["type"] = "release";
  EXPECT_EQ(AskMemory(request), Json::object());

  // In two packets, as those of many ranks come.
  EXPECT_EQ(AskStorage({{"type", "shards"}, {"shards", {others[0]}}}), Json::object());
  EXPECT_EQ(AskStorage({{"type", "shards"}, {"shards", {others[1], others[2], others[3]}}}), Json::object());
  Json close = {{"type", "close"},
                {"goes_on_from", {"5"}},
                {"name", "10"},
                {"step", 10},
                {"branch", 0},
                {"epoch", 1},
                {"world_size", 4},
                {"kind", "ddp"},
                {"job_id", "job"},
                {"layout", "torch-zip"},
                {"trackers", {"latest"}},
                {"written_unix_ms", 5},
                {"keep_last", 0},
                {"keep_every", 0},
                {"archive", ""},
                {"archive_every", 0}};
  EXPECT_EQ(AskStorage(close)["warnings"], Json::array());
  const FoundStep step = LookAtStep(dir_ + "/10");
  ASSERT_EQ(step.state, StepState::kCommitted) << step.why;
  EXPECT_EQ(step.manifest->shards.size(), 4u);
  EXPECT_EQ(step.manifest->sequence, 1u);
  EXPECT_EQ(folder_.Read("run/10/rank_3.pt").substr(0, 10), "the image.");
  EXPECT_EQ(folder_.Read("run/latest"), "10");
  // Shards that were told are those of one step alone.
  close["name"] = AskStorage({{"type", "claim"}, {"step", 20}, {"epoch", 1}})["name"];
  close["step"] = 20;
  EXPECT_THAT(AskStorage(close)["error"].get<std::string>(), HasSubstr("shard"));
}

TEST_F(HostTest, WhatIsHeldOrCommittedIsNotWrittenOver) {
  const Json opened = Save10("");
  EXPECT_EQ(opened["main"], nullptr);
  AskMemory({{"type", "commit"}, {"step", 10}, {"branch", 0}});
  Save(opened["control"], 20, "another");
  const Json held = AskMemory({{"type", "hold"}, {"page", "own"}, {"step", 20}, {"branch", 0}});
  const std::string path = held["path"];
  AskMemory({{"type", "drop"}, {"step", 20}, {"branch", 0}});
  ControlPage now;
  const std::string page = folder_.Read(std::string(opened["control"]).substr(folder_.path().size() + 1));
  ASSERT_EQ(ParseControl(page.data(), page.size(), &now), "");
  EXPECT_THAT(ChooseSlots(now).why_not, HasSubstr("slot"));
  EXPECT_TRUE(ChooseSlots(now).slots.empty());
  EXPECT_EQ(folder_.Read(path.substr(folder_.path().size() + 1)).substr(0, 7), "another");
}

TEST_F(HostTest, SaysWhatIsNotThere) {
  Save10();
  EXPECT_THAT(AskMemory({{"type", "hold"}, {"page", "own"}, {"step", 11}, {"branch", 0}})["error"].get<std::string>(),
              HasSubstr("no image of step 11"));
  EXPECT_THAT(AskMemory({{"type", "hold"}, {"page", "main"}, {"step", 10}, {"branch", 0}})["error"].get<std::string>(),
              HasSubstr("page 'main'"));
  EXPECT_THAT(AskMemory({{"type", "write"}})["error"].get<std::string>(), HasSubstr("no request 'write'"));
  EXPECT_THAT(AskStorage({{"type", "open"}})["error"].get<std::string>(), HasSubstr("no request 'open'"));
  EXPECT_THAT(
      AskMemory({{"type", "prepare"}, {"page", "../0"}, {"bytes", 1}, {"slots", 2}, {"memory_budget", 0}})["error"]
          .get<std::string>(),
      HasSubstr("page is '../0'"));
  EXPECT_THAT(AskStorage({{"type", "claim"}, {"step", -1}, {"epoch", 1}})["error"].get<std::string>(),
              HasSubstr("step of claim"));
}

// Its size is another one when the optimizer has got its state: no slot is lost to that.
TEST_F(HostTest, AStateThatGrowsFindsSlots) {
  const Json opened = AskMemory({{"type", "open"}, {"shared", ""}});
  uint64_t bytes = kBytes;
  for (int64_t step = 1; step <= 8; ++step, bytes += kBytes) {
    const Json prepared =
        AskMemory({{"type", "prepare"}, {"page", "own"}, {"bytes", bytes}, {"slots", 2}, {"memory_budget", 0}});
    ASSERT_EQ(prepared["slots"], 2) << prepared;
    Save(opened["control"], step, "x");
    AskMemory({{"type", "commit"}, {"step", step}, {"branch", 0}});
  }
}

// What one takes is not free for the next.
TEST_F(HostTest, OneHostReservesMemoryAtATime) {
  AskMemory({{"type", "open"}, {"shared", ""}});
  const std::string path = fmt::format("{}/phx-{}.turn", std::string(folder_ / "shm"), geteuid());
  Fd other(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  std::future<Json> prepared = std::async(std::launch::async, [this] {
    return AskMemory({{"type", "prepare"}, {"page", "own"}, {"bytes", kBytes}, {"slots", 2}, {"memory_budget", 0}});
  });
  EXPECT_EQ(prepared.wait_for(std::chrono::milliseconds(100)), std::future_status::timeout);
  other = Fd();
  EXPECT_EQ(prepared.get()["slots"], 2);
}

// The rank is told why on one socket, and finds the other closed: it never waits for an answer that nobody gives.
TEST(ServeHostTest, AnswersEachRequestWhereThereIsNoMemory) {
  int memory[2];
  int storage[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, memory), 0);
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, storage), 0);
  const pid_t owner = getpid();
  const pid_t child = fork();
  if (child == 0) {
    close(memory[0]);
    close(storage[0]);
    const Status served = ServeHost({Fd(memory[1]), Fd(storage[1])}, "/nowhere", owner);
    _exit(served.ok() ? 0 : 7);
  }
  close(memory[1]);
  close(storage[1]);
  char answer[256];
  for (int i = 0; i < 2; ++i) {
    const std::string open = R"({"type":"open"})";
    ASSERT_EQ(send(memory[0], open.data(), open.size(), 0), static_cast<ssize_t>(open.size()));
    const ssize_t n = recv(memory[0], answer, sizeof answer, 0);
    ASSERT_GT(n, 0);
    EXPECT_THAT(std::string(answer, static_cast<size_t>(n)), HasSubstr("/nowhere"));
  }
  EXPECT_EQ(recv(storage[0], answer, sizeof answer, 0), 0);
  close(memory[0]);
  close(storage[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}

// Nobody can go on from the memory of a process that is gone; that of an agent, or of a process that lives, is theirs.
TEST_F(HostTest, RemovesTheMemoryOfDeadProcessesAlone) {
  const std::string first = memory_->path();
  memory_.reset();  // its files stay, as those of a killed host
  const auto agents = NodeMemory::Open(folder_ / "shm", "process 4711", "10.0.0.1");
  ASSERT_TRUE(agents.ok());
  const std::string of_agent = (*agents)->path();
  StatusOr<MemoryHost> living = MemoryHost::Open(folder_ / "shm", 4712);
  ASSERT_TRUE(living.ok());
  EXPECT_FALSE(std::filesystem::exists(first));
  Open(4713);
  EXPECT_TRUE(std::filesystem::exists(of_agent));
  EXPECT_TRUE(std::filesystem::exists(living->path()));
  living->Remove();
  EXPECT_FALSE(std::filesystem::exists(living->path()));
}

}  // namespace
}  // namespace phalanx::checkpoint

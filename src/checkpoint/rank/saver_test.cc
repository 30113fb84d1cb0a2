#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/image/image.h"
#include "checkpoint/rank/capi.h"
#include "checkpoint/rank/test_memory.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr uint64_t kEpoch = 4;

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A rank with a state of some records, and the memory it saves into.
class SaverTest : public testing::Test {
 protected:
  SaverTest() : memory_(kEpoch) {
    std::mt19937_64 random(3);
    for (const size_t size : {4, 1 << 20, 0, 700001, 8, 65536, 3 << 20, 1}) {
      state_.emplace_back(size, '\0');
      for (char& byte : state_.back()) byte = static_cast<char>(random());
    }
    PlanAnew();
    Open();
  }
  ~SaverTest() override { phx_ckpt_close(ckpt_); }

  // New slots, of the state's size.
  void PlanAnew() {
    bytes_.clear();
    for (const std::string& record : state_) bytes_.push_back(record.size());
    when_.assign(state_.size(), PHX_CKPT_LATER);
    offsets_.resize(state_.size());
    EXPECT_EQ(phx_ckpt_layout(bytes_.data(), bytes_.size(), pickle_.size(), &file_bytes_, offsets_.data(), &hash_), 0);
    memory_.MakeSlots(2, file_bytes_);
  }

  void Open() {
    phx_ckpt_close(ckpt_);
    ckpt_ = phx_ckpt_open(memory_.control_path().c_str(), kEpoch, error_.data(), error_.size());
    ASSERT_NE(ckpt_, nullptr) << error_.data();
  }

  phx_ckpt_save Save(int64_t step, int threads) {
    sources_.clear();
    for (const std::string& record : state_) sources_.push_back(record.data());
    phx_ckpt_save save{};
    save.step = step;
    save.rank = 1;
    save.world_size = 2;
    save.n = bytes_.size();
    save.bytes = bytes_.data();
    save.source = sources_.data();
    save.when = when_.data();
    save.pickle = pickle_.data();
    save.pickle_bytes = pickle_.size();
    save.info = info_.data();
    save.info_bytes = info_.size();
    save.file_bytes = file_bytes_;
    save.threads = threads;
    save.notify_fd = -1;
    return save;
  }
  int Begin(const phx_ckpt_save& save) { return phx_ckpt_begin(ckpt_, &save, error_.data(), error_.size()); }
  phx_ckpt_outcome Wait() {
    phx_ckpt_outcome outcome{};
    EXPECT_EQ(phx_ckpt_wait_copied(ckpt_, &outcome), 0);
    return outcome;
  }
  std::string error() const { return error_.data(); }
  std::atomic_ref<uint64_t> NumberOf(int slot) {
    return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(memory_.page() + 256 + 256 * slot + 128));
  }

  // The slot is sealed, says so of the right image, and holds the state as it is now.
  void ExpectSaved(int slot, int64_t step) {
    const Slot read = memory_.ReadSlot(slot);
    ASSERT_TRUE(read.sealed()) << read.why;
    EXPECT_EQ(read.image.step, step);
    EXPECT_EQ(read.image.epoch, kEpoch);
    EXPECT_EQ(read.image.rank, 1U);
    EXPECT_EQ(read.image.world_size, 2U);
    EXPECT_EQ(read.image.layout_hash, hash_);
    EXPECT_EQ(read.image.records, state_.size());
    EXPECT_GT(read.image.sealed_unix_ms, 0);
    const std::string file = Contents(memory_.SlotPath(slot));
    ASSERT_EQ(file.size(), file_bytes_);
    EXPECT_EQ(Crc32(0, file.data(), file.size()), read.image.crc32);
    EXPECT_EQ(CheckImage(file.data(), file.size()), "");
    for (size_t i = 0; i < state_.size(); ++i) EXPECT_EQ(file.substr(offsets_[i], bytes_[i]), state_[i]) << i;
  }

  TestMemory memory_;
  std::vector<std::string> state_;
  std::vector<uint64_t> bytes_, offsets_;
  std::vector<const void*> sources_;
  std::vector<uint8_t> when_;
  std::string pickle_ = "a pickle", info_ = "{}";
  uint64_t file_bytes_ = 0, hash_ = 0;
  phx_ckpt* ckpt_ = nullptr;
  std::array<char, 500> error_{};
};

TEST_F(SaverTest, SavesWithAnyNumberOfThreads) {
  for (const int threads : {0, 1, 2, 3, 1}) {
    state_[1][5] = static_cast<char>(threads);
    const int slot = Begin(Save(10 + threads, threads));
    ASSERT_GE(slot, 0) << error();
    const phx_ckpt_outcome outcome = Wait();
    EXPECT_EQ(outcome.state, PHX_CKPT_SEALED);
    EXPECT_GT(outcome.copy_ns, 0);
    EXPECT_EQ(outcome.bytes, uint64_t{4} + (1 << 20) + 700001 + 8 + 65536 + (3 << 20) + 1);
    ExpectSaved(slot, 10 + threads);
    memory_.control().SetDropped(slot, memory_.ReadSlot(slot).generation);
  }
}

TEST_F(SaverTest, IsSealedWhenBeginReturnsWithoutThreads) {
  const int slot = Begin(Save(1, 0));
  ASSERT_GE(slot, 0) << error();
  phx_ckpt_outcome outcome{};
  EXPECT_EQ(phx_ckpt_poll(ckpt_, &outcome), 0);
  EXPECT_EQ(outcome.state, PHX_CKPT_SEALED);
  ExpectSaved(slot, 1);
}

TEST_F(SaverTest, CopiesAtOnceWhatItsOwnerMayChange) {
  when_[0] = when_[3] = PHX_CKPT_NOW;
  const std::vector<std::string> before = state_;
  const int slot = Begin(Save(1, 1));
  ASSERT_GE(slot, 0) << error();
  state_[0].assign(state_[0].size(), 'x');
  state_[3].assign(state_[3].size(), 'x');
  EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
  state_ = before;
  ExpectSaved(slot, 1);
}

TEST_F(SaverTest, TakesRecordsThatTheCallerFills) {
  when_[3] = when_[4] = PHX_CKPT_FILLED;
  for (const int threads : {0, 2}) {
    phx_ckpt_save save = Save(threads + 1, threads);
    sources_[3] = sources_[4] = nullptr;
    const int slot = Begin(save);
    ASSERT_GE(slot, 0) << error();
    EXPECT_EQ(Wait().state, PHX_CKPT_COPYING) << "records are missing";
    EXPECT_EQ(memory_.ReadSlot(slot).state, SlotState::kWriting);
    auto* data = static_cast<char*>(phx_ckpt_slot_data(ckpt_, slot));
    for (const int i : {3, 4}) state_[i].copy(data + offsets_[i], bytes_[i]);
    phx_ckpt_filled(ckpt_);
    EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
    ExpectSaved(slot, threads + 1);
  }
}

TEST_F(SaverTest, LooksAtItsSourcesAgainBehindWhatTheCallerFills) {
  when_[3] = PHX_CKPT_FILLED;
  const std::string before = state_[0];
  for (const bool writes : {false, true}) {
    phx_ckpt_save save = Save(writes ? 2 : 1, 2);
    save.verify = 1;
    const int slot = Begin(save);
    ASSERT_GE(slot, 0) << error();
    EXPECT_EQ(Wait().state, PHX_CKPT_COPYING) << "its own part is copied";
    auto* data = static_cast<char*>(phx_ckpt_slot_data(ckpt_, slot));
    state_[3].copy(data + offsets_[3], bytes_[3]);
    if (writes) state_[0][state_[0].size() / 2] ^= 1;
    phx_ckpt_filled(ckpt_);
    const phx_ckpt_outcome outcome = Wait();
    EXPECT_EQ(outcome.state, writes ? PHX_CKPT_CHANGED : PHX_CKPT_SEALED);
    EXPECT_EQ(outcome.differing_record, 0U);
    EXPECT_EQ(memory_.ReadSlot(slot).sealed(), !writes);
    state_[0] = before;
  }
}

TEST(Scatter, BringsEachPieceToItsPlace) {
  const std::string from = "abcdef";
  std::string first(2, '.'), second(4, '.');
  const uint64_t to[] = {reinterpret_cast<uint64_t>(second.data()), reinterpret_cast<uint64_t>(first.data()),
                         reinterpret_cast<uint64_t>(first.data())};
  const uint64_t bytes[] = {4, 0, 2};
  phx_ckpt_scatter(from.data(), to, bytes, 3);
  EXPECT_EQ(second, "abcd");
  EXPECT_EQ(first, "ef");
}

TEST(QueueCopies, EndsWithTheFirstError) {
  const std::string from = "abcdef";
  std::string to(6, '.');
  std::vector<uint64_t> targets, sources, bytes;
  for (size_t i = 0; i < 3; ++i) {
    targets.push_back(reinterpret_cast<uint64_t>(to.data() + 4 - 2 * i));
    sources.push_back(reinterpret_cast<uint64_t>(from.data() + 2 * i));
    bytes.push_back(2);
  }
  int left = 3;  // copies until one fails; the "stream"
  const auto copy = [](void* target, const void* source, size_t length, int kind, void* stream) {
    EXPECT_EQ(kind, 4);
    if (--*static_cast<int*>(stream) < 0) return 700;
    std::memcpy(target, source, length);
    return 0;
  };
  EXPECT_EQ(phx_ckpt_queue_copies(copy, &left, targets.data(), sources.data(), bytes.data(), 3), 0);
  EXPECT_EQ(to, "efcdab");
  to.assign(6, '.');
  left = 1;
  EXPECT_EQ(phx_ckpt_queue_copies(copy, &left, targets.data(), sources.data(), bytes.data(), 3), 700);
  EXPECT_EQ(to, "....ab");
  EXPECT_EQ(left, -1) << "nothing is tried behind an error";
}

TEST_F(SaverTest, WaitsNoLongerThanAsked) {
  when_[3] = PHX_CKPT_FILLED;
  const int slot = Begin(Save(1, 1));
  ASSERT_GE(slot, 0) << error();
  Wait();
  phx_ckpt_outcome outcome{};
  // Records are missing: there is nothing to wait for, however long.
  EXPECT_EQ(phx_ckpt_wait_copied_until(ckpt_, int64_t{1} << 62, &outcome), 0);
  EXPECT_EQ(outcome.state, PHX_CKPT_COPYING);
  phx_ckpt_filled(ckpt_);
  EXPECT_EQ(phx_ckpt_wait_copied_until(ckpt_, int64_t{1} << 62, &outcome), 0);
  EXPECT_EQ(outcome.state, PHX_CKPT_SEALED);
  EXPECT_EQ(phx_ckpt_wait_copied_until(ckpt_, 0, &outcome), 0);
  EXPECT_EQ(outcome.state, PHX_CKPT_SEALED) << "it is over, and that is told late, too";
}

TEST_F(SaverTest, ReturnsFromACopyThatTakesLonger) {
  state_[6].assign(size_t{16} << 20, 'x');
  PlanAnew();
  phx_ckpt_outcome outcome{};
  // Whether the copy is over before it is asked for is the machine's choice, once.
  for (int64_t step = 1; step < 1'000 && outcome.state != PHX_CKPT_COPYING; ++step) {
    const int slot = Begin(Save(step, 1));
    ASSERT_GE(slot, 0) << error();
    EXPECT_EQ(phx_ckpt_wait_copied_until(ckpt_, 1, &outcome), 0);  // that was long ago
    EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
    ExpectSaved(slot, step);
    memory_.control().SetDropped(slot, memory_.ReadSlot(slot).generation);
  }
  EXPECT_EQ(outcome.state, PHX_CKPT_COPYING);
}

// Counts in eight bytes of a record, as fast as it can, until it goes.
class Counting {
 public:
  explicit Counting(char* at)
      : thread_([this, word = std::atomic_ref(*reinterpret_cast<uint64_t*>(at))] {
          while (!stop_) ++word;
        }) {}
  ~Counting() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Uses up some of the time that the machine gives a thread at once, another part of it each time: where both threads
// share a processor, the other one's turn comes somewhere within what follows, and not only where this one sleeps.
void Spin(int64_t step) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(step % 16 * 300);
  while (std::chrono::steady_clock::now() < until) {
  }
}

TEST_F(SaverTest, SealsNothingWhoseSourceChangesMeanwhile) {
  for (const int threads : {0, 1, 3}) {
    phx_ckpt_outcome outcome{};
    {
      const Counting counting(state_[6].data() + (2 << 20));
      // Whether the other thread counts between the two looks is the machine's choice, once.
      for (int64_t step = 1; step < 10'000 && outcome.state != PHX_CKPT_CHANGED; ++step) {
        phx_ckpt_save save = Save(step, threads);
        save.verify = 1;
        Spin(step);
        const int slot = Begin(save);
        ASSERT_GE(slot, 0) << error();
        outcome = Wait();
        if (outcome.state == PHX_CKPT_SEALED) {
          memory_.control().SetDropped(slot, memory_.ReadSlot(slot).generation);
        } else {
          EXPECT_EQ(memory_.ReadSlot(slot).state, SlotState::kEmpty);
        }
      }
    }
    EXPECT_EQ(outcome.state, PHX_CKPT_CHANGED) << threads << " threads";
    EXPECT_EQ(outcome.differing_record, 6U);
    phx_ckpt_save save = Save(10'000, threads);
    save.verify = 1;
    const int slot = Begin(save);
    EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
    ExpectSaved(slot, 10'000);
    memory_.control().SetDropped(slot, memory_.ReadSlot(slot).generation);
  }
}

TEST_F(SaverTest, SealsNothingThatWasWrittenBeforeItsCopyCameToIt) {
  std::string& last = state_[6];
  for (int64_t step = 1; step <= 50; ++step) {
    last.assign(last.size(), 'a');
    phx_ckpt_save save = Save(step, 1);
    save.verify = 1;
    const int slot = Begin(save);
    ASSERT_GE(slot, 0) << error();
    std::memset(last.data(), 'b', last.size());
    if (Wait().state != PHX_CKPT_SEALED) continue;
    last.assign(last.size(), 'a');  // it was copied, and looked at again, before
    ExpectSaved(slot, step);
    memory_.control().SetDropped(slot, memory_.ReadSlot(slot).generation);
  }
}

TEST_F(SaverTest, SealsNothingThatTheCallerGivesUp) {
  when_[0] = PHX_CKPT_FILLED;
  for (const bool filled_first : {false, true}) {
    const int slot = Begin(Save(1, 0));
    ASSERT_GE(slot, 0) << error();
    EXPECT_EQ(Wait().state, PHX_CKPT_COPYING);
    if (!filled_first) phx_ckpt_give_up(ckpt_, 3);
    phx_ckpt_filled(ckpt_);
    if (filled_first) phx_ckpt_give_up(ckpt_, 3);  // too late
    const phx_ckpt_outcome outcome = Wait();
    EXPECT_EQ(outcome.state, filled_first ? PHX_CKPT_SEALED : PHX_CKPT_CHANGED);
    EXPECT_EQ(memory_.ReadSlot(slot).sealed(), filled_first);
    EXPECT_EQ(outcome.differing_record, filled_first ? 0U : 3U);
  }
}

TEST_F(SaverTest, SealsNothingWithoutConsentWhereThatIsAskedFor) {
  for (const int threads : {0, 3}) {
    phx_ckpt_save save = Save(7 + threads, threads);
    save.consent = 1;
    save.verify = 1;
    ASSERT_GE(Begin(save), 0) << error_.data();
    EXPECT_EQ(Wait().state, PHX_CKPT_COPYING);
    phx_ckpt_give_up(ckpt_, 3);
    phx_ckpt_filled(ckpt_);
    const phx_ckpt_outcome outcome = Wait();
    EXPECT_EQ(outcome.state, PHX_CKPT_CHANGED);
    EXPECT_EQ(outcome.differing_record, 3);
    const int slot = Begin(save);
    ASSERT_GE(slot, 0) << error_.data();
    EXPECT_EQ(Wait().state, PHX_CKPT_COPYING);
    phx_ckpt_filled(ckpt_);
    EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
    ExpectSaved(slot, save.step);
  }
}

TEST_F(SaverTest, IsBusyUntilTheLastSaveIsOver) {
  when_[0] = PHX_CKPT_FILLED;
  EXPECT_GE(Begin(Save(1, 1)), 0) << error();
  EXPECT_EQ(Begin(Save(2, 1)), PHX_CKPT_BUSY);
  EXPECT_THAT(error(), HasSubstr("step 1 is not over"));
  phx_ckpt_filled(ckpt_);
  EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
  EXPECT_GE(Begin(Save(2, 1)), 0) << error();
}

TEST_F(SaverTest, SkipsWhenNoSlotIsFree) {
  ASSERT_EQ(Begin(Save(1, 0)), 0);
  ASSERT_EQ(Begin(Save(2, 0)), 1);
  EXPECT_EQ(Begin(Save(3, 0)), PHX_CKPT_NO_SLOT);
  EXPECT_THAT(error(), HasSubstr("slot 0 holds step 1, which is not committed yet"));
  memory_.Commit(1);
  EXPECT_EQ(Begin(Save(3, 0)), 0) << error();
  ExpectSaved(1, 2);
}

TEST_F(SaverTest, RefusesAnotherEpochAtBothEnds) {
  when_[0] = PHX_CKPT_FILLED;
  const int slot = Begin(Save(1, 1));
  ASSERT_GE(slot, 0) << error();
  memory_.control().SetLiveEpoch(kEpoch + 1);
  phx_ckpt_filled(ckpt_);
  EXPECT_EQ(Wait().state, PHX_CKPT_LATE);
  EXPECT_EQ(memory_.ReadSlot(slot).state, SlotState::kWriting);
  EXPECT_EQ(Begin(Save(2, 1)), PHX_CKPT_STALE);
  EXPECT_THAT(error(), HasSubstr("epoch 5 lives"));
}

TEST_F(SaverTest, RefusesSlotsOfAnotherSize) {
  phx_ckpt_save save = Save(1, 0);
  save.file_bytes += 4096;
  EXPECT_EQ(Begin(save), PHX_CKPT_NO_ROOM);
  EXPECT_THAT(error(), HasSubstr("a slot has"));
  pickle_.assign(1 << 20, 'p');
  EXPECT_EQ(Begin(Save(1, 0)), PHX_CKPT_NO_ROOM);
  EXPECT_THAT(error(), HasSubstr("the image takes"));
}

TEST_F(SaverTest, FollowsNewFiles) {
  EXPECT_EQ(phx_ckpt_map(ckpt_, error_.data(), error_.size()), 2) << error();
  const int first = Begin(Save(1, 1));
  EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
  ExpectSaved(first, 1);
  bytes_[1] = 4 << 20;
  state_[1].assign(bytes_[1], 'z');
  EXPECT_EQ(phx_ckpt_layout(bytes_.data(), bytes_.size(), pickle_.size(), &file_bytes_, offsets_.data(), &hash_), 0);
  EXPECT_EQ(Begin(Save(2, 1)), PHX_CKPT_NO_ROOM);
  memory_.MakeSlots(3, file_bytes_);
  EXPECT_EQ(phx_ckpt_map(ckpt_, error_.data(), error_.size()), 3) << error();
  const int slot = Begin(Save(2, 1));
  ASSERT_GE(slot, 0) << error();
  EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
  ExpectSaved(slot, 2);
}

TEST_F(SaverTest, SealsNothingInAFileThatIsNoLongerTheSlots) {
  ASSERT_GE(Begin(Save(1, 0)), 0) << error();
  // The agent is about to replace both files: their numbers are there, and the count of changes is not yet.
  std::array<std::atomic_ref<uint64_t>, 2> numbers = {NumberOf(0), NumberOf(1)};
  for (auto& number : numbers) number += 100;
  EXPECT_EQ(Begin(Save(2, 0)), PHX_CKPT_NO_SLOT);
  EXPECT_THAT(error(), HasSubstr("slot 1 is being replaced"));
  EXPECT_EQ(memory_.ReadSlot(1).state, SlotState::kEmpty);
  for (auto& number : numbers) number -= 100;
  const int slot = Begin(Save(3, 0));
  ASSERT_GE(slot, 0) << error();
  ExpectSaved(slot, 3);
}

TEST_F(SaverTest, SavesWhileFilesAreReplaced) {
  for (std::string& record : state_)
    record.resize(std::min<size_t>(record.size(), 100));  // the race is not in the copy
  PlanAnew();
  for (int64_t step = 1; step <= 300; ++step) {
    std::thread agent([&] { memory_.MakeSlots(2, file_bytes_); });
    const bool races = step % 2 == 0;
    if (!races) agent.join();
    const int slot = Begin(Save(step, 0));
    if (races) agent.join();
    const bool sealed = slot >= 0 && memory_.ReadSlot(slot).sealed();
    EXPECT_TRUE(sealed || races) << step << ": " << error();
    if (!sealed) continue;  // replaced since
    const std::string file = Contents(memory_.SlotPath(slot));
    EXPECT_EQ(Crc32(0, file.data(), file.size()), memory_.ReadSlot(slot).image.crc32) << step;
  }
}

TEST_F(SaverTest, DoesNotTouchAFileThatIsTooShort) {
  std::filesystem::resize_file(memory_.SlotPath(0), file_bytes_ - 4096);
  EXPECT_EQ(Begin(Save(1, 0)), 1) << error();
  EXPECT_EQ(Begin(Save(2, 0)), PHX_CKPT_NO_SLOT);
  EXPECT_THAT(error(), HasSubstr("bytes long and not"));
}

TEST_F(SaverTest, TellsAboutTheSeal) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const std::string said = R"({"sealed":1})";
  for (const int threads : {0, 1}) {
    phx_ckpt_save save = Save(1 + threads, threads);
    save.notify_fd = ends[0];
    save.notify = said.data();
    save.notify_bytes = said.size();
    EXPECT_GE(Begin(save), 0) << error();
    std::array<char, 100> heard;
    ASSERT_EQ(recv(ends[1], heard.data(), heard.size(), 0), static_cast<ssize_t>(said.size()));
    EXPECT_EQ(std::string(heard.data(), said.size()), said);
    EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
    EXPECT_EQ(phx_ckpt_notify_error(ckpt_), 0);
    memory_.Commit(threads);
  }
  close(ends[1]);
  phx_ckpt_save save = Save(3, 0);
  save.notify_fd = ends[0];
  save.notify = said.data();
  save.notify_bytes = said.size();
  EXPECT_GE(Begin(save), 0) << "a dead agent stops no save: " << error();
  EXPECT_EQ(phx_ckpt_notify_error(ckpt_), EPIPE);
  close(ends[0]);
}

TEST_F(SaverTest, CloseWaitsForTheCopy) {
  const int slot = Begin(Save(1, 1));
  ASSERT_GE(slot, 0) << error();
  phx_ckpt_close(ckpt_);
  ckpt_ = nullptr;
  ExpectSaved(slot, 1);
}

TEST_F(SaverTest, CloseGivesUpWhatIsNotFilled) {
  when_[0] = PHX_CKPT_FILLED;
  const int slot = Begin(Save(1, 1));
  ASSERT_GE(slot, 0) << error();
  phx_ckpt_close(ckpt_);
  ckpt_ = nullptr;
  EXPECT_EQ(memory_.ReadSlot(slot).state, SlotState::kEmpty);
}

TEST_F(SaverTest, AForkedChildNeitherWritesNorWaits) {
  when_[0] = PHX_CKPT_FILLED;
  const int slot = Begin(Save(1, 2));
  ASSERT_GE(slot, 0) << error();
  const pid_t child = fork();
  if (child == 0) {
    phx_ckpt_filled(ckpt_);
    phx_ckpt_outcome outcome{};
    const phx_ckpt_save save = Save(2, 0);
    const bool dead = phx_ckpt_wait_copied(ckpt_, &outcome) == PHX_CKPT_BROKEN && Begin(save) == PHX_CKPT_BROKEN &&
                      error().find("fork") != std::string::npos && phx_ckpt_slot_data(ckpt_, slot) == nullptr &&
                      phx_ckpt_map(ckpt_, nullptr, 0) == PHX_CKPT_BROKEN;
    phx_ckpt_close(ckpt_);
    _exit(dead ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(memory_.ReadSlot(slot).state, SlotState::kWriting);
  state_[0].copy(static_cast<char*>(phx_ckpt_slot_data(ckpt_, slot)) + offsets_[0], bytes_[0]);
  phx_ckpt_filled(ckpt_);
  EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
  ExpectSaved(slot, 1);
}

TEST_F(SaverTest, ItsThreadsHandleNoSignals) {
  std::set<std::string> before;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) before.insert(task.path());
  EXPECT_GE(Begin(Save(1, 2)), 0) << error();
  EXPECT_EQ(Wait().state, PHX_CKPT_SEALED);
  int ours = 0;
  int named = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (before.count(task.path()) != 0) continue;
    ++ours;
    if (Contents(task.path() / "comm") == "phx-ckpt\n") ++named;  // one that has run, at least
    const std::string status = Contents(task.path() / "status");
    const std::string blocked = status.substr(status.find("SigBlk:") + 8, 16);
    const uint64_t mask = std::stoull(blocked, nullptr, 16);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGALRM, SIGCHLD, SIGPROF}) {
      EXPECT_NE(mask & (uint64_t{1} << (signal - 1)), 0U) << signal;
    }
  }
  EXPECT_EQ(ours, 2);
  EXPECT_GE(named, 1);
}

TEST_F(SaverTest, RefusesWhatItCannotOpen) {
  const auto why = [this](const std::string& path) {
    EXPECT_EQ(phx_ckpt_open(path.c_str(), kEpoch, error_.data(), error_.size()), nullptr);
    return error();
  };
  EXPECT_THAT(why(memory_.dir() + "/control-9"), HasSubstr("No such file"));
  EXPECT_THAT(why(memory_.SlotPath(0)), HasSubstr("not named control-"));
  std::ofstream(memory_.dir() + "/control-1") << "short";
  EXPECT_THAT(why(memory_.dir() + "/control-1"), HasSubstr("5 bytes long"));
  std::ofstream(memory_.dir() + "/control-2") << std::string(4096, 'x');
  EXPECT_THAT(why(memory_.dir() + "/control-2"), HasSubstr("not a control page"));
}

TEST_F(SaverTest, NamesWhatTheCallerGotWrong) {
  phx_ckpt_save save = Save(-1, 0);
  EXPECT_EQ(Begin(save), PHX_CKPT_BROKEN);
  EXPECT_THAT(error(), HasSubstr("below 0"));
  save = Save(1, 0);
  save.rank = 2;
  EXPECT_EQ(Begin(save), PHX_CKPT_BROKEN);
  EXPECT_THAT(error(), HasSubstr("rank 2 of a world of 2"));
  save = Save(1, 0);
  sources_[1] = nullptr;
  EXPECT_EQ(Begin(save), PHX_CKPT_BROKEN);
  EXPECT_THAT(error(), HasSubstr("record 1 has no source"));
  EXPECT_EQ(memory_.ReadSlot(0).state, SlotState::kEmpty);
}

TEST_F(SaverTest, ChecksFiles) {
  ASSERT_EQ(Begin(Save(1, 0)), 0) << error();
  const std::string path = memory_.SlotPath(0);
  EXPECT_EQ(phx_ckpt_check_file(path.c_str(), error_.data(), error_.size()), 0) << error();
  auto* data = static_cast<char*>(phx_ckpt_slot_data(ckpt_, 0));
  data[offsets_[3] + 7] ^= 2;
  EXPECT_EQ(phx_ckpt_check_file(path.c_str(), error_.data(), error_.size()), PHX_CKPT_BROKEN);
  EXPECT_THAT(error(), HasSubstr("archive/data/3"));
  EXPECT_EQ(phx_ckpt_check_file("/nowhere", error_.data(), error_.size()), PHX_CKPT_BROKEN);
}

}  // namespace
}  // namespace phalanx::checkpoint

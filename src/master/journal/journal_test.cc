#include "master/journal/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "base/test_threads.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;

class Journal : public ::testing::Test {
 protected:
  Journal() { std::filesystem::create_directories(folder_); }
  ~Journal() override { std::filesystem::remove_all(folder_); }

  const std::string folder_ = ::testing::TempDir() + "/journal-" + std::to_string(getpid());
  const std::string path_ = folder_ + "/journal";
  std::vector<std::string> warnings_;
};

TEST_F(Journal, SaysOnceThatNoThreadWritesIt) {
  const NoThreads full;
  JournalWriter writer(path_, [this](const std::string& what) { warnings_.push_back(what); });
  for (int i = 0; i < 3; ++i) writer.Put("payload");
  EXPECT_TRUE(writer.Flush(10'000)) << "nobody is to be waited for";
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_.front(), HasSubstr("no thread could be started"));
}

TEST_F(Journal, HoldsTheLastPayload) {
  {
    JournalWriter writer(path_, [](const std::string&) {});
    for (int i = 0; i < 100; ++i) writer.Put(std::to_string(i));
    EXPECT_TRUE(writer.Flush(10'000));
    EXPECT_EQ(*ReadJournal(path_), "99");
    writer.Put("on the disk", /*sync=*/true);
    EXPECT_TRUE(writer.Flush(10'000));
    EXPECT_EQ(*ReadJournal(path_), "on the disk");
    writer.Put(std::string(1 << 20, 'x'));
  }
  EXPECT_EQ(ReadJournal(path_)->size(), size_t{1} << 20);
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
}

TEST_F(Journal, TellsOnceWhatCannotBeWritten) {
  JournalWriter writer("/nonexistent/journal", [this](const std::string& what) { warnings_.push_back(what); });
  for (int i = 0; i < 3; ++i) {
    writer.Put("payload");
    EXPECT_TRUE(writer.Flush(10'000));
  }
  ASSERT_EQ(warnings_.size(), 1U);
  EXPECT_THAT(warnings_[0], HasSubstr("/nonexistent/journal"));
}

TEST_F(Journal, NoneIsNotFound) { EXPECT_TRUE(absl::IsNotFound(ReadJournal(path_).status())); }

TEST_F(Journal, EveryDamageIsFound) {
  const std::string whole = WrapJournal("what a master must know");
  ASSERT_TRUE(UnwrapJournal(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(UnwrapJournal(whole.substr(0, length)).ok()) << "cut after " << length;
  }
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_FALSE(UnwrapJournal(flipped).ok()) << "bit " << bit;
  }
  EXPECT_TRUE(absl::IsDataLoss(UnwrapJournal(whole + "x").status()));
}

TEST_F(Journal, ANewerOneIsRefusedByItsVersion) {
  std::string newer = WrapJournal("");
  newer[8] = 2;
  EXPECT_TRUE(absl::IsFailedPrecondition(UnwrapJournal(newer).status()));
}

}  // namespace
}  // namespace phalanx::master

#include "agent/watch/sysfs_thread.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/test_folder.h"

namespace phalanx::agent::watch {
namespace {

constexpr int64_t kLongUs = 10'000'000;

class SysfsThreadTest : public testing::Test {
 protected:
  SysfsPlace Place() const { return {folder_ / "sys", folder_ / "proc", ""}; }
  // Opening this file hangs till somebody writes to it.
  std::string AddFileThatHangs() {
    folder_.Write("sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count", "0\n");
    folder_.Write("sys/devices/system/cpu/cpu0/topology/core_id", "0\n");
    const std::string path = folder_ / "sys/devices/system/cpu/cpu0/topology/physical_package_id";
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    return path;
  }

  TestFolder folder_;
  EventLoop loop_;
};

TEST_F(SysfsThreadTest, AReadingComesToTheLoop) {
  folder_.Write("sys/class/nvme/nvme0/state", "live\n");
  SysfsThread* self = nullptr;
  std::vector<Batch> taken;
  SysfsThread thread(loop_, Place(), [&] {
    taken = self->Take();
    loop_.Stop();
  });
  self = &thread;
  ASSERT_TRUE(thread.Ask(true));
  loop_.Run();
  ASSERT_EQ(taken.size(), 1u);
  ASSERT_EQ(taken[0].readings.size(), 1u);
  EXPECT_EQ(taken[0].readings[0].value, 1);
  EXPECT_EQ(thread.UnderWay(), "");
}

TEST_F(SysfsThreadTest, AReadingOfAnEndIsWaitedForAndLooksThroughNoFolders) {
  folder_.Write("sys/class/nvme/nvme0/state", "live\n");
  SysfsThread thread(loop_, Place(), [] {});
  ASSERT_TRUE(thread.Ask(false));
  thread.Wait(kLongUs);
  EXPECT_TRUE(thread.Take().empty()) << "no folder has been looked through";
  ASSERT_TRUE(thread.Ask(true));
  thread.Wait(kLongUs);
  EXPECT_EQ(thread.Take().size(), 1u);
}

TEST_F(SysfsThreadTest, AFileThatHangsIsNamedAndHoldsNobodyUp) {
  AddFileThatHangs();
  SysfsThread thread(loop_, Place(), [] { ADD_FAILURE(); });
  ASSERT_TRUE(thread.Ask(true));
  ASSERT_TRUE(thread.Ask(false));
  EXPECT_FALSE(thread.Ask(true)) << "no more readings wait than one";
  // On a machine that does much else the thread begins late; each wait ends all the same.
  for (int i = 0; i < 3'000 && thread.UnderWay().empty(); ++i) thread.Wait(3'000);
  EXPECT_NE(thread.UnderWay(), "");
  EXPECT_TRUE(thread.Take().empty());
}  // and its end waits for nothing

}  // namespace
}  // namespace phalanx::agent::watch

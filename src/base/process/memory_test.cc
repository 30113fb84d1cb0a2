#include "base/process/memory.h"

#include <gtest/gtest.h>

#include <map>

namespace phalanx {
namespace {

int64_t With(const std::map<std::string, std::string>& files) {
  return AvailableMemoryBytes([&](const std::string& path) {
    const auto it = files.find(path);
    return it == files.end() ? std::string() : it->second;
  });
}

const char kMeminfo[] = "MemTotal:       1000 kB\nMemFree:    1 kB\nMemAvailable:    900 kB\n";

TEST(AvailableMemory, IsTheMachinesWithoutAGroup) {
  EXPECT_EQ(With({{"/proc/meminfo", kMeminfo}}), 900 * 1024);
  EXPECT_EQ(With({}), INT64_MAX);
  EXPECT_EQ(With({{"/proc/meminfo", "MemAvailable: x"}, {"/proc/self/cgroup", "x\n:\n::\n0:: \n"}}), INT64_MAX);
}

TEST(AvailableMemory, IsTheTightestGroupsV2) {
  std::map<std::string, std::string> files{{"/proc/meminfo", kMeminfo},
                                           {"/proc/self/cgroup", "0::/a/b\n"},
                                           {"/sys/fs/cgroup/a/b/memory.max", "max\n"},
                                           {"/sys/fs/cgroup/a/b/memory.current", "7\n"},
                                           {"/sys/fs/cgroup/a/memory.max", "1000\n"},
                                           {"/sys/fs/cgroup/a/memory.current", "800\n"},
                                           {"/sys/fs/cgroup/a/memory.stat", "anon 1\nfile 2\ninactive_file 300\n"}};
  EXPECT_EQ(With(files), 500);
  files["/sys/fs/cgroup/a/memory.stat"] = "";
  EXPECT_EQ(With(files), 200);
  files["/sys/fs/cgroup/a/memory.current"] = "1200";
  EXPECT_EQ(With(files), 0);
}

TEST(AvailableMemory, IsThatOfAContainersRootWhereThePathIsTheHosts) {
  EXPECT_EQ(With({{"/proc/self/cgroup", "4:memory:/docker/123\n0::/\n"},
                  {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "5000\n"},
                  {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "4000\n"},
                  {"/sys/fs/cgroup/memory/memory.stat", "total_inactive_file 10\n"}}),
            1010);
}

TEST(AvailableMemory, ReadsThisMachine) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), INT64_MAX);
}

}  // namespace
}  // namespace phalanx

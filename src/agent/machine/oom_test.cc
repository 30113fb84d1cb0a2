#include "agent/machine/oom.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace phalanx::agent {
namespace {

using Files = std::map<std::string, std::string>;

OomCounters Read(const Files& files) {
  const auto list = [&files](const std::string& folder) {
    std::set<std::string> names;
    for (const auto& [path, text] : files) {
      if (!path.starts_with(folder + "/")) continue;
      const std::string rest = path.substr(folder.size() + 1);
      if (rest.find('/') != std::string::npos) names.insert(rest.substr(0, rest.find('/')));
    }
    return std::vector<std::string>(names.begin(), names.end());
  };
  const auto read = [&files](const std::string& path) {
    const auto it = files.find(path);
    return it == files.end() ? std::string() : it->second;
  };
  return ReadOomCounters(read, list);
}

void PutV1(Files& files, const std::string& path, int kills, int64_t peak, const std::string& limit) {
  const std::string folder = "/sys/fs/cgroup/memory" + path;
  files[folder + "/memory.oom_control"] = "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(kills) + "\n";
  files[folder + "/memory.max_usage_in_bytes"] = std::to_string(peak) + "\n";
  files[folder + "/memory.limit_in_bytes"] = limit + "\n";
}

void PutV2(Files& files, const std::string& path, int kills, int shortages, const std::string& limit) {
  const std::string folder = "/sys/fs/cgroup" + path;
  files[folder + "/memory.events"] = "low 0\nhigh 0\nmax 9\noom " + std::to_string(shortages) + "\noom_kill " +
                                     std::to_string(kills) + "\noom_group_kill 0\n";
  files[folder + "/memory.max"] = limit + "\n";
}

constexpr char kNoLimitV1[] = "9223372036854771712";
constexpr int64_t kGib = int64_t{1} << 30;

OomQuestion Killed(int others = 0) { return {true, others, kGib * 318 / 10}; }
OomQuestion Failed(int others = 0) { return {false, others, kGib}; }

struct Round {
  explicit Round(const Files& files) : state{Read(files), 0} {}
  OomAnswer Judge(const Files& files, const OomQuestion& question) { return JudgeEnd(state, Read(files), question); }
  OomRound state;
};

TEST(Oom, OfItsOwnGroupV2) {
  Files files{{"/proc/self/cgroup", "0::/job\n"}};
  PutV2(files, "/job", 7, 4, "34359738368");
  Round round(files);
  EXPECT_EQ(round.Judge(files, Killed()).killed_by, "");
  EXPECT_EQ(round.Judge(files, Killed()).note, "");
  PutV2(files, "/job", 8, 5, "34359738368");
  const OomAnswer answer = round.Judge(files, Killed());
  EXPECT_EQ(answer.killed_by,
            "the out-of-memory killer of its cgroup (peak 31.7 GiB resident, the cgroup's limit is 32 GiB)");
  EXPECT_EQ(answer.note, "");
  // The same rise excuses no second rank.
  EXPECT_EQ(round.Judge(files, Killed()).killed_by, "");
  EXPECT_EQ(round.Judge(files, Failed()).note, "");
}

// A user's service under systemd: the account of memory ends some levels above the process, limits stand higher still.
TEST(Oom, OfTheGroupThatRanOutInADelegatedTreeV2) {
  const std::string service = "/user.slice/user-1000.slice/user@1000.service";
  Files files{{"/proc/self/cgroup", "0::" + service + "/app.slice/run.scope\n"}};
  PutV2(files, "/user.slice", 5, 0, "max");
  PutV2(files, "/user.slice/user-1000.slice", 5, 1, "1073741824");
  PutV2(files, service, 5, 0, "max");
  PutV2(files, service + "/app.slice", 4, 0, "max");
  PutV2(files, service + "/app.slice/run.scope", 2, 0, "max");
  Round round(files);
  // A neighbour's process, for the limit of a group that both are in.
  PutV2(files, "/user.slice/user-1000.slice", 6, 2, "1073741824");
  PutV2(files, service + "/app.slice", 5, 0, "max");
  EXPECT_EQ(round.Judge(files, Killed()).killed_by, "");
  EXPECT_EQ(round.Judge(files, Killed()).note, "");
  PutV2(files, service + "/app.slice/run.scope", 3, 0, "max");
  EXPECT_EQ(
      round.Judge(files, Killed()).killed_by,
      "the out-of-memory killer of a cgroup above its own (peak 31.7 GiB resident, that cgroup's limit is 1 GiB)");
}

// A group without an account of its own shares its parent's with whoever else lives there.
TEST(Oom, OfAGroupAroundItsOwnV2) {
  Files files{{"/proc/self/cgroup", "0::/shared/inner\n"}, {"/sys/fs/cgroup/shared/inner/cgroup.type", "domain\n"}};
  PutV2(files, "/shared", 2, 0, "1073741824");
  PutV2(files, "/shared/neighbour", 2, 0, "max");
  Round round(files);
  EXPECT_EQ(round.Judge(files, Killed()).note, "");
  PutV2(files, "/shared", 3, 1, "1073741824");
  const OomAnswer answer = round.Judge(files, Killed());
  EXPECT_EQ(answer.killed_by, "");
  EXPECT_EQ(answer.note,
            "the out-of-memory killer has ended 1 process of a cgroup above this node's during this round: it may have "
            "been this one");
  EXPECT_EQ(round.Judge(files, Failed()).note,
            "the out-of-memory killer has ended 1 process of a cgroup above this node's during this round");
  ASSERT_EQ(Read(files).groups.size(), 1u);  // the neighbour's is none of ours
}

TEST(Oom, OfAGroupThatTheWorkerWasMovedIntoV2) {
  Files files{{"/proc/self/cgroup", "0::/job\n"}};
  PutV2(files, "/job", 0, 0, "34359738368");
  Round round(files);
  PutV2(files, "/job/rank3", 1, 1, "536870912");
  PutV2(files, "/job", 1, 1, "34359738368");
  EXPECT_EQ(round.Judge(files, Killed()).killed_by,
            "the out-of-memory killer of its cgroup (peak 31.7 GiB resident, the cgroup's limit is 512 MiB)");
}

TEST(Oom, OfTheMachineWhereNoLimitWasReachedV2) {
  Files files{{"/proc/self/cgroup", "0::/job\n"}, {"/proc/vmstat", "nr_free_pages 1\noom_kill 3\n"}};
  PutV2(files, "/job", 0, 1, "1000");
  Round round(files);
  PutV2(files, "/job", 1, 1, "1000");
  files["/proc/vmstat"] = "nr_free_pages 1\noom_kill 4\n";
  EXPECT_EQ(round.Judge(files, Killed()).killed_by, "the out-of-memory killer (peak 31.7 GiB resident)");
}

// In a container with a namespace of its own the group is the root of what is visible.
TEST(Oom, InANamespace) {
  Files v2{{"/proc/self/cgroup", "0::/\n"}};
  PutV2(v2, "", 0, 0, "536870912");
  Round round(v2);
  PutV2(v2, "", 1, 1, "536870912");
  EXPECT_NE(round.Judge(v2, Killed()).killed_by.find("of its cgroup"), std::string::npos);

  // The path is the host's and leads nowhere; groups beside ours are not ours.
  Files v1{{"/proc/self/cgroup", "4:memory:/docker/abc\n0::/\n"}};
  PutV1(v1, "", 0, 0, "536870912");
  PutV1(v1, "/other", 0, 0, kNoLimitV1);
  Round old(v1);
  PutV1(v1, "/other", 1, 0, kNoLimitV1);
  EXPECT_EQ(old.Judge(v1, Killed()).killed_by, "");
  PutV1(v1, "", 1, 536870912, "536870912");
  EXPECT_NE(old.Judge(v1, Killed()).killed_by.find("of its cgroup"), std::string::npos);
}

// Version 1 keeps the account of memory, version 2 is mounted beside it and has none.
TEST(Oom, InAHybridTree) {
  Files files{{"/proc/self/cgroup", "9:name=systemd:/x\n4:memory:/a/b\n1:cpu:/\n0::/x\n"}};
  PutV1(files, "", 3, 0, kNoLimitV1);
  PutV1(files, "/a", 0, 2000000000, "2147483648");
  PutV1(files, "/a/b", 1, 0, kNoLimitV1);
  Round round(files);
  PutV1(files, "", 9, 0, kNoLimitV1);
  EXPECT_EQ(round.Judge(files, Killed()).killed_by, "");
  PutV1(files, "/a", 0, 2147483648 - 4096, "2147483648");
  PutV1(files, "/a/b", 2, 0, kNoLimitV1);
  EXPECT_EQ(
      round.Judge(files, Killed()).killed_by,
      "the out-of-memory killer of a cgroup above its own (peak 31.7 GiB resident, that cgroup's limit is 2 GiB)");
  // Counted where it was: a worker in a group below.
  PutV1(files, "/a/b/rank", 1, 104857600, "104857600");
  EXPECT_EQ(round.Judge(files, Killed()).killed_by,
            "the out-of-memory killer of its cgroup (peak 31.7 GiB resident, the cgroup's limit is 100 MiB)");
}

// Version 1 has a second limit, of memory and swap together.
TEST(Oom, OfTheLimitWithSwapV1) {
  Files files{{"/proc/self/cgroup", "4:memory:/a\n"}};
  PutV1(files, "/a", 0, 0, "1073741824");
  files["/sys/fs/cgroup/memory/a/memory.memsw.limit_in_bytes"] = "536870912\n";
  files["/sys/fs/cgroup/memory/a/memory.memsw.max_usage_in_bytes"] = "500000000\n";
  Round round(files);
  PutV1(files, "/a", 1, 0, "1073741824");
  files["/sys/fs/cgroup/memory/a/memory.memsw.max_usage_in_bytes"] = "536870912\n";
  EXPECT_EQ(round.Judge(files, Killed()).killed_by,
            "the out-of-memory killer of its cgroup (peak 31.7 GiB resident, the cgroup's limit is 512 MiB)");
}

TEST(Oom, TwoEndsAndOneCount) {
  Files files{{"/proc/self/cgroup", "0::/job\n"}};
  PutV2(files, "/job", 0, 0, "1000");
  Round round(files);
  PutV2(files, "/job", 1, 1, "1000");
  const char* const kMay =
      "the out-of-memory killer has ended 1 process of this node's cgroup during this round, and 2 ranks died of "
      "SIGKILL: this may be one of those it ended";
  const OomAnswer first = round.Judge(files, Killed(1));
  EXPECT_EQ(first.killed_by, "");
  EXPECT_EQ(first.note, kMay);
  PutV2(files, "/job", 2, 2, "1000");
  EXPECT_NE(round.Judge(files, Killed(1)).killed_by, "");
  EXPECT_NE(round.Judge(files, Killed()).killed_by, "");
}

TEST(Oom, OfARanksChildren) {
  Files files{{"/proc/self/cgroup", "0::/job\n"}};
  PutV2(files, "/job", 0, 0, "1000");
  Round round(files);
  PutV2(files, "/job", 3, 1, "1000");
  // One of the three is a rank whose end is still to be told.
  EXPECT_EQ(round.Judge(files, Failed(1)).note,
            "the out-of-memory killer has ended 2 processes of this node's cgroup during this round");
  EXPECT_EQ(round.Judge(files, Failed(1)).killed_by, "");
  EXPECT_EQ(round.Judge(files, Failed(3)).note, "");
}

// Without any group the machine's counter is all there is, and it counts strangers as well.
TEST(Oom, OfTheMachineAlone) {
  Files files{{"/proc/self/cgroup", "0::/\n"}, {"/proc/vmstat", "oom_kill 5\n"}};
  Round round(files);
  files["/proc/vmstat"] = "oom_kill 6\n";
  const OomAnswer answer = round.Judge(files, Killed());
  EXPECT_EQ(answer.killed_by, "");
  EXPECT_EQ(
      answer.note,
      "the out-of-memory killer has ended 1 process of this machine during this round: it may have been this one");
  EXPECT_EQ(round.Judge(files, Failed()).note,
            "the out-of-memory killer has ended 1 process of this machine during this round");
}

TEST(Oom, SaysNothingWithoutFiles) {
  Round round({});
  EXPECT_EQ(round.Judge({}, Killed()).killed_by + round.Judge({}, Killed()).note, "");
  Files garbage{{"/proc/self/cgroup", "0::/job\nx\n"}, {"/sys/fs/cgroup/job/memory.events", "oom_kill many\n"}};
  EXPECT_TRUE(Read(garbage).groups.empty());
  // A kernel whose version 1 does not count.
  Files old{{"/proc/self/cgroup", "4:memory:/a\n"},
            {"/sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n"}};
  EXPECT_TRUE(Read(old).groups.empty());
}

TEST(Oom, LooksAtABoundedNumberOfGroups) {
  Files files{{"/proc/self/cgroup", "4:memory:/a\n"}};
  PutV1(files, "/a", 0, 0, kNoLimitV1);
  for (int i = 0; i < 200; ++i) PutV1(files, "/a/g" + std::to_string(i), 0, 0, kNoLimitV1);
  EXPECT_LE(Read(files).groups.size(), 66u);
}

TEST(Oom, OfThisMachineIsRead) {
  const OomCounters counters = ReadOomCounters();
  EXPECT_GE(counters.machine_kills, 0);
}

TEST(MemoryText, IsShort) {
  EXPECT_EQ(MemoryText(32 * kGib), "32 GiB");
  EXPECT_EQ(MemoryText(kGib * 318 / 10), "31.7 GiB");
  EXPECT_EQ(MemoryText(512 << 20), "512 MiB");
  EXPECT_EQ(MemoryText(0), "0 MiB");
  EXPECT_EQ(MemoryText(INT64_MAX), "8589934591.9 GiB");
}

}  // namespace
}  // namespace phalanx::agent

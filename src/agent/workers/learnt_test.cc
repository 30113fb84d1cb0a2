#include "agent/workers/learnt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/fd.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

class LearntTest : public testing::Test {
 protected:
  LearntTest()
      : dir_(fs::temp_directory_path() / fmt::format("phalanx-learnt-{}", getpid())),
        path_((dir_ / "l.json").string()) {
    fs::create_directories(dir_);
  }
  ~LearntTest() override { fs::remove_all(dir_); }

  const fs::path dir_;
  const std::string path_;
};

TEST_F(LearntTest, ComesBackAsItWasWritten) {
  EXPECT_TRUE(ReadLearnt(path_).modules.empty());
  WriteLearnt(path_, {{"torch.optim", "numpy"}, {"bad \"one\""}});
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"torch.optim", "numpy"})) << "in the order of imports";
  EXPECT_EQ(ReadLearnt(path_).deny, (Names{"bad \"one\""}));
  WriteLearnt(path_, {{"a"}, {}});  // a shorter text leaves nothing of the longer one
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"a"}));
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(LearntTest, DistrustsTheFile) {
  for (const char* text : {"", "{", "[]", "7", R"({"modules":7,"deny":{}})", R"({"modules":[7]})"}) {
    std::ofstream(path_, std::ios::trunc) << text;
    EXPECT_TRUE(ReadLearnt(path_).modules.empty()) << text;
  }
  fs::remove(path_);
  std::ofstream(dir_ / "real") << R"({"modules":["x"]})";
  fs::create_symlink(dir_ / "real", path_);
  EXPECT_TRUE(ReadLearnt(path_).modules.empty());
  WriteLearnt(path_, {{"a"}, {}});
  EXPECT_EQ(ReadLearnt((dir_ / "real").string()).modules, (Names{"x"}));
  EXPECT_TRUE(fs::is_symlink(path_)) << "what is not ours is left alone";
}

// Two agents of one script, which have started with the same file.
TEST_F(LearntTest, OneAgentsDenialsOutliveTheOthersWrite) {
  WriteLearnt(path_, {{"m"}, {"a", "b"}});
  WriteLearnt(path_, {{"n"}, {"b", "c"}});
  EXPECT_EQ(ReadLearnt(path_).deny, (Names{"a", "b", "c"}));
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"n"}));
}

TEST_F(LearntTest, AWriteThatFailsLeavesWhatWasThere) {
  WriteLearnt(path_, {{"a"}, {"b"}});
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit full = before;
  full.rlim_cur = 10;  // as a disk with no more room
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &full), 0);
  WriteLearnt(path_, {{"c"}, {"d"}});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"a"}));
  EXPECT_EQ(ReadLearnt(path_).deny, (Names{"b"}));
  EXPECT_FALSE(fs::exists(path_ + ".new"));
}

TEST_F(LearntTest, ADeadWritersDraftIsReplaced) {
  std::ofstream(path_ + ".new") << R"({"version":1,"modules":["cut)";
  WriteLearnt(path_, {{"a"}, {}});
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"a"}));
  EXPECT_FALSE(fs::exists(path_ + ".new"));
}

TEST_F(LearntTest, NeverWaitsForALock) {
  WriteLearnt(path_, {{"a"}, {}});
  const Fd other(open((path_ + ".lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(flock(other.get(), LOCK_EX), 0);
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"a"})) << "the file is whole at any time";
  WriteLearnt(path_, {{"b"}, {}});
  ASSERT_EQ(flock(other.get(), LOCK_UN), 0);
  EXPECT_EQ(ReadLearnt(path_).modules, (Names{"a"}));
}

TEST_F(LearntTest, EachScriptAndInterpreterHasItsOwn) {
  LaunchConfig config;
  config.state_root = "/state";
  config.script = "a.py";
  config.python = "python";
  const std::string path = LearntPath(config, "/scripts");
  EXPECT_EQ(path.size(), std::string("/state/learnt-0123456789abcdef.json").size());
  EXPECT_EQ(LearntPath(config, "/scripts"), path);
  EXPECT_NE(LearntPath(config, "/elsewhere"), path);
  config.script = "/scripts/a.py";
  EXPECT_EQ(LearntPath(config, "/elsewhere"), path);
  config.kind = ScriptKind::kModule;
  config.script = "pkg.train";
  EXPECT_NE(LearntPath(config, "/scripts"), LearntPath(config, "/elsewhere"));
  config.kind = ScriptKind::kScript;
  config.script = "/scripts/a.py";
  config.python = "python2";
  EXPECT_NE(LearntPath(config, "/elsewhere"), path);
  config.python = "python";
  config.script_name = "train";  // a function
  const std::string function = LearntPath(config, "/scripts");
  EXPECT_NE(function, path);
  EXPECT_NE(LearntPath(config, "/elsewhere"), function);
}

}  // namespace
}  // namespace phalanx::agent

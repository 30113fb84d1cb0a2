#include "agent/checkpoint/storage.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/test_folder.h"

namespace phalanx::agent {
namespace {

TEST(FindNewestStep, WhatCannotBeReadIsNotEmpty) {
  const TestFolder folder;
  folder.Write("file", "");
  folder.Write("empty/latest", "");
  folder.Write("loop/1/rank_0.pt", "of a step that is not committed");
  std::filesystem::create_symlink("2", folder / "loop/2");
  struct Case {
    std::string dir;
    std::string unreadable;
  };
  for (const Case& c : {
           Case{folder / "missing", ""},
           Case{folder / "empty", ""},
           Case{folder / "file", folder / "file" + ": opendir: Not a directory"},
           Case{folder / "loop", folder / "loop/2" + ": stat: Too many levels of symbolic links"},
       }) {
    const FoundSteps steps = FindNewestStep(**checkpoint::OpenStorage(c.dir), {}, "job");
    EXPECT_EQ(steps.found.step(), -1) << c.dir;
    EXPECT_EQ(steps.unreadable, c.unreadable) << c.dir;
  }
}

}  // namespace
}  // namespace phalanx::agent

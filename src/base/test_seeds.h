// Inputs that a fuzzer begins with, in the tests of what writes their format: its corpus cannot rot unseen.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "base/test_paths.h"

namespace phalanx {

// The file `name` of `corpus`, a folder below src/. `written` is what its writer makes of the same today: it is kept in
// build/<preset>/seeds, to be copied where the reader takes the older file no longer.
inline std::string SeedOf(const std::string& corpus, const std::string& name, const std::string& written) {
  const std::filesystem::path kept = std::filesystem::path(SourceDir()) / "src" / corpus / name;
  const std::filesystem::path today = std::filesystem::path(BuildDir()) / "seeds" / corpus / name;
  std::filesystem::create_directories(today.parent_path());
  std::ofstream(today, std::ios::binary) << written;
  std::ifstream in(kept, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << "no seed " << kept << "; what is written today: " << today;
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// All files of `corpus`, by name, where something else writes them.
inline std::map<std::string, std::string> SeedsIn(const std::string& corpus) {
  std::map<std::string, std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(SourceDir()) / "src" / corpus)) {
    std::ifstream in(entry.path(), std::ios::binary);
    seeds[entry.path().filename()] = {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  EXPECT_FALSE(seeds.empty()) << corpus;
  return seeds;
}

}  // namespace phalanx

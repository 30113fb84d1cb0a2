// Each fuzzer's function with the inputs of its corpus, whole, cut short and with bytes that are others: what `./run
// fuzz` does for minutes in a build of its own, every run of the unit tests does for a moment. fuzzers.inc, which CMake
// writes, has a line for each phx_fuzzer.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/test_paths.h"

#define PHX_FUZZER(name, folder) extern "C" int name(const uint8_t* data, size_t size);
#include "fuzz/fuzzers.inc"
#undef PHX_FUZZER

namespace phalanx {
namespace {

constexpr int kChangedInputs = 300;
constexpr size_t kRandomBytesMax = 512;

using Bytes = std::vector<uint8_t>;

struct Fuzzer {
  const char* name;
  const char* folder;  // below the clone's
  int (*try_input)(const uint8_t* data, size_t size);
};

void PrintTo(const Fuzzer& fuzzer, std::ostream* out) { *out << fuzzer.name; }

const Fuzzer kFuzzers[] = {
#define PHX_FUZZER(name, folder) {#name, folder, &name},
#include "fuzz/fuzzers.inc"
#undef PHX_FUZZER
};

// The files of corpus/NAME or, for a folder with one fuzzer, of corpus; in an order that is the same everywhere.
std::vector<Bytes> CorpusOf(const Fuzzer& fuzzer) {
  std::filesystem::path corpus = std::filesystem::path(SourceDir()) / fuzzer.folder / "corpus";
  if (std::filesystem::is_directory(corpus / fuzzer.name)) corpus /= fuzzer.name;
  std::vector<std::filesystem::path> files;
  if (std::filesystem::is_directory(corpus)) {
    for (const auto& entry : std::filesystem::directory_iterator(corpus)) {
      if (entry.is_regular_file()) files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> inputs;
  for (const std::filesystem::path& file : files) {
    std::ifstream in(file, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return inputs;
}

class CorpusTest : public testing::TestWithParam<Fuzzer> {};

// A fuzzer says that something is wrong by ending the program.
TEST_P(CorpusTest, IsTakenOrRefused) {
  std::vector<Bytes> inputs = CorpusOf(GetParam());
  inputs.emplace_back();
  for (const Bytes& input : inputs) EXPECT_EQ(GetParam().try_input(input.data(), input.size()), 0);

  std::mt19937 random(static_cast<uint32_t>(testing::UnitTest::GetInstance()->random_seed()));
  const auto below = [&random](size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); };
  for (int i = 0; i < kChangedInputs; ++i) {
    Bytes input = inputs[below(inputs.size())];
    if (input.empty()) input.resize(below(kRandomBytesMax) + 1);
    if (below(4) == 0) input.resize(below(input.size()) + 1);
    for (size_t changes = below(8) + 1; changes > 0; --changes) {
      input[below(input.size())] = static_cast<uint8_t>(below(256));
    }
    EXPECT_EQ(GetParam().try_input(input.data(), input.size()), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzzers, CorpusTest, testing::ValuesIn(kFuzzers),
                         [](const testing::TestParamInfo<Fuzzer>& fuzzer) { return fuzzer.param.name; });

}  // namespace
}  // namespace phalanx

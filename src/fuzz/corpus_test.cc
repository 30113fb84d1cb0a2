// Each fuzzer's function with the inputs of its corpus, whole, cut short and with bytes that are others: what `./run
// fuzz` does for minutes in a build of its own, every run of the unit tests does for a moment, each time with other
// bytes. fuzzers.inc, which CMake writes, has a line for each phx_fuzzer.
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/test_paths.h"

#define PHX_FUZZER(name, folder) extern "C" int name(const uint8_t* data, size_t size);
#include "fuzz/fuzzers.inc"
#undef PHX_FUZZER

namespace phalanx {
namespace {

constexpr int kChangedInputs = 300;     // at least
constexpr int64_t kChangedForMs = 400;  // of processor time, for each fuzzer
constexpr size_t kRandomBytesMax = 512;
constexpr size_t kInputBytesMax = 1 << 20;
// Of a processor, for all inputs of one fuzzer, also under a sanitizer.
constexpr rlim_t kFuzzerCpuMostS = 120;

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

// What a process that tries inputs tells the one that waits for it, in memory of both.
struct Trial {
  int (*try_input)(const uint8_t* data, size_t size);
  size_t tried;
  size_t size;  // of the input that is tried
  uint8_t input[kInputBytesMax];

  void Take(const Bytes& bytes) {
    ++tried;
    size = std::min(bytes.size(), kInputBytesMax);
    std::copy_n(bytes.begin(), size, input);
    if (try_input(bytes.data(), bytes.size()) != 0) std::abort();
  }
};

// `work` in a process of its own: a fuzzer says that something is wrong by ending it. Returns how many inputs it has
// tried; the last one is in build/<preset>/crashes then.
template <typename Work>
size_t RunApart(const Fuzzer& fuzzer, Work work) {
  void* const memory = mmap(nullptr, sizeof(Trial), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  PHX_CHECK(memory != MAP_FAILED, "no memory");
  Trial& trial = *static_cast<Trial*>(memory);
  trial.try_input = fuzzer.try_input;
  const pid_t child = fork();
  PHX_CHECK(child >= 0, "no process");
  if (child == 0) {
    google::protobuf::SetLogHandler(nullptr);  // it names each text that is no UTF-8
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const rlimit within{kFuzzerCpuMostS, kFuzzerCpuMostS};  // an input that it does not come to an end with is one, too
    setrlimit(RLIMIT_CPU, &within);
    work(trial);
#if defined(__SANITIZE_ADDRESS__)
    __lsan_do_leak_check();
#endif
    _exit(0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (status != 0) {
    const std::filesystem::path crashes = std::filesystem::path(BuildDir()) / "crashes";
    std::filesystem::create_directories(crashes);
    std::ofstream(crashes / fuzzer.name, std::ios::binary) << std::string(trial.input, trial.input + trial.size);
    ADD_FAILURE() << fuzzer.name << " has ended with status " << status << " at its input number " << trial.tried
                  << ", which is in " << (crashes / fuzzer.name).string();
  }
  const size_t tried = trial.tried;
  munmap(memory, sizeof(Trial));
  return tried;
}

int64_t ThreadCpuNs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// Inputs that nobody wrote, by the seed of the run.
class Changes {
 public:
  explicit Changes(const std::vector<Bytes>& inputs)
      : inputs_(inputs), random_(static_cast<uint32_t>(testing::UnitTest::GetInstance()->random_seed())) {}

  // One of the inputs with bytes that are others, perhaps cut short, perhaps with the end of another one behind it.
  Bytes Next() {
    Bytes input = inputs_[Below(inputs_.size())];
    if (input.empty()) input.resize(Below(kRandomBytesMax) + 1);
    if (Below(4) == 0) input.resize(Below(input.size()) + 1);
    if (Below(8) == 0) {
      const Bytes& other = inputs_[Below(inputs_.size())];
      input.insert(input.end(), other.begin() + static_cast<ptrdiff_t>(Below(other.size() + 1)), other.end());
    }
    for (size_t changes = Below(8) + 1; changes > 0; --changes) {
      input[Below(input.size())] = static_cast<uint8_t>(Below(256));
    }
    return input;
  }

 private:
  size_t Below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random_); }

  const std::vector<Bytes>& inputs_;
  std::mt19937 random_;
};

class CorpusTest : public testing::TestWithParam<Fuzzer> {};

TEST_P(CorpusTest, IsTakenOrRefused) {
  std::vector<Bytes> inputs = CorpusOf(GetParam());
  EXPECT_FALSE(inputs.empty()) << "no seeds in " << GetParam().folder << "/corpus";
  inputs.emplace_back();
  const size_t tried = RunApart(GetParam(), [&inputs](Trial& trial) {
    for (const Bytes& input : inputs) trial.Take(input);
    Changes changes(inputs);
    const int64_t until_ns = ThreadCpuNs() + kChangedForMs * 1'000'000;
    for (int i = 0; i < kChangedInputs || ThreadCpuNs() < until_ns; ++i) trial.Take(changes.Next());
  });
  RecordProperty("inputs", static_cast<int>(tried));
}

// What is promised to who reads the output of the tests above.
TEST(RunApart, KeepsTheInputThatEndsAFuzzer) {
  static const Fuzzer kBroken = {"broken_fuzzer", "", [](const uint8_t* data, size_t size) {
                                   PHX_CHECK(size == 0 || data[0] != 'x', "an x");
                                   return 0;
                                 }};
  static const auto kWork = [](Trial& trial) {
    for (const std::string input : {"", "a long one", "xy", "another"}) trial.Take(Bytes(input.begin(), input.end()));
  };
  const std::filesystem::path path = std::filesystem::path(BuildDir()) / "crashes" / kBroken.name;
  EXPECT_NONFATAL_FAILURE(RunApart(kBroken, kWork), "at its input number 3, which is in " + path.string());
  std::ifstream in(path, std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "xy");
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Fuzzers, CorpusTest, testing::ValuesIn(kFuzzers),
                         [](const testing::TestParamInfo<Fuzzer>& fuzzer) { return fuzzer.param.name; });

}  // namespace
}  // namespace phalanx

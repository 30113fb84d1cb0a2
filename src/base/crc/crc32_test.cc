#include "base/crc/crc32.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "base/crc/fold.h"

namespace phalanx {
namespace {

constexpr uint32_t kBefore = 0x12345678;

std::vector<uint8_t> RandomBytes(size_t n) {
  std::mt19937_64 random(1);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

uint32_t Zlib(uint32_t crc, const uint8_t* data, size_t n) { return static_cast<uint32_t>(crc32_z(crc, data, n)); }

// Around each size at which another loop takes over, and some that are odd.
std::vector<size_t> Sizes() {
  std::vector<size_t> sizes;
  for (const size_t around : {0, 64, 256, 1024, 4096, 32 << 10, 64 << 10, 256 << 10, 1 << 20}) {
    for (const size_t more : {0, 1, 3, 63, 64, 65, 255, 257}) sizes.push_back(around + more);
    if (around > 0) sizes.push_back(around - 1);
  }
  return sizes;
}

TEST(Crc32, IsThatOfZlib) {
  const std::vector<uint8_t> data = RandomBytes((1 << 20) + 1024);
  for (const size_t size : Sizes()) {
    for (const size_t at : {0, 1, 8, 63}) {
      ASSERT_EQ(Crc32(kBefore, data.data() + at, size), Zlib(kBefore, data.data() + at, size)) << size << " at " << at;
    }
  }
}

TEST(Crc32, CopiesWhatItCounts) {
  const std::vector<uint8_t> data = RandomBytes((1 << 20) + 1024);
  std::vector<uint8_t> to(data.size() + 64);
  for (const size_t size : Sizes()) {
    for (const size_t at : {0, 1, 8, 63}) {
      for (const size_t to_at : {0, 5, 32, 64}) {
        std::fill(to.begin(), to.end(), 0xEE);
        const uint32_t crc = CopyCrc32(kBefore, to.data() + to_at, data.data() + at, size);
        ASSERT_EQ(crc, Zlib(kBefore, data.data() + at, size)) << size << " from " << at << " to " << to_at;
        ASSERT_TRUE(std::equal(data.begin() + at, data.begin() + at + size, to.begin() + to_at));
        ASSERT_TRUE(std::all_of(to.begin(), to.begin() + to_at, [](uint8_t byte) { return byte == 0xEE; }));
        ASSERT_EQ(to[to_at + size], 0xEE) << size << " wrote behind its end";
      }
    }
  }
}

// What is written meanwhile may be in the copy or not; the CRC is that of the copy.
TEST(Crc32, CountsTheCopyOfWhatChangesMeanwhile) {
  std::vector<uint64_t> words((2 << 20) / sizeof(uint64_t));
  std::vector<uint8_t> copy(words.size() * sizeof(uint64_t));
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (uint64_t turn = 1; !stop; ++turn) {
      for (uint64_t& word : words) std::atomic_ref(word).store(turn, std::memory_order_relaxed);
    }
  });
  for (int round = 0; round < 200; ++round) {
    const size_t bytes = copy.size() - static_cast<size_t>(round);
    const uint32_t crc = CopyCrc32(0, copy.data(), words.data(), bytes);
    EXPECT_EQ(crc, Crc32(0, copy.data(), bytes)) << round;
  }
  stop = true;
  writer.join();
}

TEST(Crc32, FoldsInEachWayOfStoring) {
  if (!CanFold()) GTEST_SKIP() << "this processor has no 512-bit carry-less multiplication";
  const std::vector<uint8_t> data = RandomBytes(8 * kFoldBytes);
  alignas(64) static uint8_t to[8 * kFoldBytes];
  for (uint64_t bytes = kFoldBytes; bytes <= data.size(); bytes += kFoldBytes) {
    const uint32_t expected = ~Zlib(~kBefore, data.data(), bytes);
    EXPECT_EQ(Fold(kBefore, nullptr, data.data(), bytes, FoldStores::kNone), expected);
    for (const FoldStores stores : {FoldStores::kCached, FoldStores::kStreaming}) {
      std::fill(std::begin(to), std::end(to), 0);
      EXPECT_EQ(Fold(kBefore, to, data.data(), bytes, stores), expected);
      StoreFence();
      EXPECT_TRUE(std::equal(data.begin(), data.begin() + static_cast<ptrdiff_t>(bytes), std::begin(to)));
    }
  }
}

TEST(Crc32, JoinsNeighbours) {
  const std::vector<uint8_t> data = RandomBytes(300000);
  Crc32Joiner joiner;
  for (const size_t first : {0, 1, 1000, 200000}) {
    for (const size_t second : {0, 1, 64, 64, 99999}) {
      const uint32_t joined = joiner.Join(Crc32(0, data.data(), first), Crc32(0, data.data() + first, second), second);
      EXPECT_EQ(joined, Zlib(0, data.data(), first + second)) << first << " and " << second;
    }
  }
}

TEST(Crc32, JoinsWhatIsLongerThanMemory) {
  // Zeros behind something, 5 GiB of them: twice the half is the whole.
  constexpr uint64_t kHalf = (uint64_t{5} << 30) / 2;
  Crc32Joiner joiner;
  const uint32_t zeros = [&] {
    std::vector<uint8_t> mib(1 << 20);
    const uint32_t one = Crc32(0, mib.data(), mib.size());
    uint32_t all = 0;
    for (uint64_t i = 0; i < kHalf >> 20; ++i) all = joiner.Join(all, one, mib.size());
    return all;
  }();
  const uint32_t whole = joiner.Join(zeros, zeros, kHalf);
  EXPECT_EQ(whole, static_cast<uint32_t>(crc32_combine64(zeros, zeros, kHalf)));
}

}  // namespace
}  // namespace phalanx

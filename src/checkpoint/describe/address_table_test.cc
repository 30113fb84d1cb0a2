#include "checkpoint/describe/address_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace phalanx::checkpoint {
namespace {

const void* At(uint64_t address) { return reinterpret_cast<const void*>(address); }

TEST(AddressTable, FindsWhatWasAdded) {
  AddressTable table;
  EXPECT_EQ(table.Find(At(16)), AddressTable::kNone);
  table.Add(At(16), 7);
  EXPECT_EQ(table.Find(At(16)), 7U);
  EXPECT_EQ(table.Find(At(32)), AddressTable::kNone);
}

TEST(AddressTable, HoldsManyWhoseLowBitsAreTheSame) {
  AddressTable table;
  constexpr uint32_t kCount = 50'000;
  for (const uint64_t apart : {16, 80, 4096, 1 << 20}) {
    AddressTable each;
    for (uint32_t i = 0; i < kCount; ++i) each.Add(At((i + 1) * apart), i);
    for (uint32_t i = 0; i < kCount; ++i) ASSERT_EQ(each.Find(At((i + 1) * apart)), i);
    EXPECT_EQ(each.Find(At((kCount + 1) * apart)), AddressTable::kNone);
  }
}

TEST(AddressTable, VisitsEachOnce) {
  AddressTable table;
  for (uint32_t i = 1; i <= 3000; ++i) table.Add(At(i * UINT64_C(48)), i);
  uint64_t count = 0, sum = 0;
  table.ForEach([&](const void* address) {
    ++count;
    sum += reinterpret_cast<uint64_t>(address) / 48;
  });
  EXPECT_EQ(count, 3000U);
  EXPECT_EQ(sum, UINT64_C(3000) * 3001 / 2);
}

}  // namespace
}  // namespace phalanx::checkpoint

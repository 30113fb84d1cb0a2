#include "base/fnv.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

// The published values of the empty text, "a" and "foobar".
TEST(Fnv1a, IsTheHashThatItSaysItIs) {
  EXPECT_EQ(Fnv1a().value(), 0xcbf29ce484222325U);
  EXPECT_EQ(Fnv1a().Add("a").value(), 0xaf63dc4c8601ec8cU);
  EXPECT_EQ(Fnv1a().Add("foobar").value(), 0x85944171f73967e8U);
}

TEST(Fnv1a, TakesANumberByItsLowestByteFirst) {
  EXPECT_EQ(Fnv1a().Add(uint64_t{0x0807060504030201}).value(), Fnv1a().Add("\1\2\3\4\5\6\7\10").value());
}

}  // namespace
}  // namespace phalanx

#include "data/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/bytes.h"

namespace phalanx::data {
namespace {

using testing::HasSubstr;

Result<IndexHeader> Parse(const std::string& begin, uint64_t file_bytes) {
  return ParseIndexHeader(begin.data(), begin.size(), file_bytes);
}

std::string Refusal(const std::string& begin, uint64_t file_bytes) {
  const Result<IndexHeader> header = Parse(begin, file_bytes);
  return header.ok() ? "" : header.error().message;
}

// With zeros for the tables' first bytes, as a reader has them.
std::string Begin(const IndexHeader& header) {
  std::string begin = IndexHeaderBytes(header);
  begin.resize(kMaxIndexHeaderBytes);
  return begin;
}

TEST(Index, MegatronsHeader) {
  const IndexHeader header{Layout::kMmap, Dtype::kUint16, 3, 2, false};
  EXPECT_EQ(IndexHeaderBytes(header),
            std::string("MMIDIDX\0\0\1\0\0\0\0\0\0\0\x8\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 34));
  EXPECT_EQ(IndexBytes(header), 34U + 3 * 12 + 3 * 8);
  EXPECT_EQ(Lengths(header).at, 34U);
  EXPECT_EQ(Lengths(header).element_bytes, 4U);
  EXPECT_EQ(Offsets(header).at, 46U);
  EXPECT_EQ(Boundaries(header).at, 70U);
  EXPECT_EQ(Boundaries(header).count, 3U);
  EXPECT_EQ(Modes(header).count, 0U);
}

TEST(Index, OldHeader) {
  const IndexHeader header{Layout::kLazy, Dtype::kInt32, 3, 2, false};
  EXPECT_EQ(IndexHeaderBytes(header), std::string("TNTIDX\0\0\1\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"
                                                  "\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0",
                                                  56));
  EXPECT_EQ(Dimensions(header).at, 56U);
  EXPECT_EQ(Offsets(header).at, 56U + 4 * 8);
  EXPECT_EQ(Lengths(header).at, 56U + 8 * 8);
  EXPECT_EQ(Boundaries(header).at, 56U + 11 * 8);
  EXPECT_EQ(IndexBytes(header), 56U + 14 * 8);
}

TEST(Index, ComesBackAsItWasWritten) {
  for (const Layout layout : {Layout::kMmap, Layout::kLazy}) {
    for (const bool has_modes : {false, true}) {
      const IndexHeader header{layout, Dtype::kInt64, 70, 5, has_modes && layout == Layout::kMmap};
      const Result<IndexHeader> parsed = Parse(Begin(header), IndexBytes(header));
      ASSERT_TRUE(parsed.ok()) << parsed.error().message;
      EXPECT_EQ(parsed->layout, layout);
      EXPECT_EQ(parsed->dtype, Dtype::kInt64);
      EXPECT_EQ(parsed->sequences, 70U);
      EXPECT_EQ(parsed->documents, 5U);
      EXPECT_EQ(parsed->has_modes, header.has_modes);
    }
  }
}

TEST(Index, NoSequencesHaveNoModes) {
  const IndexHeader header{Layout::kMmap, Dtype::kInt32, 0, 0, false};
  const Result<IndexHeader> parsed = Parse(Begin(header).substr(0, 42), 42);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  EXPECT_FALSE(parsed->has_modes);
}

TEST(Index, RefusesWithASentence) {
  const IndexHeader header{Layout::kMmap, Dtype::kInt32, 3, 2, false};
  const std::string good = Begin(header);
  const uint64_t bytes = IndexBytes(header);
  auto with = [&](size_t at, char value) {
    std::string changed = good;
    changed[at] = value;
    return changed;
  };
  EXPECT_EQ(Refusal(good, bytes), "");
  EXPECT_THAT(Refusal("", 0), HasSubstr("neither MMIDIDX nor TNTIDX"));
  EXPECT_THAT(Refusal(good.substr(0, 33), 33), HasSubstr("ends within its header, after 33 of 34 bytes"));
  EXPECT_THAT(Refusal(with(9, 2), bytes), HasSubstr("its version is 2: 1 is known"));
  EXPECT_THAT(Refusal(with(17, 6), bytes), HasSubstr("token type 6 is floating point"));
  EXPECT_THAT(Refusal(with(17, 9), bytes), HasSubstr("token type 9 is unknown"));
  EXPECT_THAT(Refusal(with(26, 0), bytes), HasSubstr("no document boundary"));
  EXPECT_THAT(Refusal(good, bytes - 1), HasSubstr("it has 93 bytes, but 3 sequences and 2 documents take 94"));
  EXPECT_THAT(Refusal(with(25, '\x7f'), bytes), HasSubstr("more than any file holds"));
}

TEST(Index, RefusesOldOnesThatContradictThemselves) {
  const IndexHeader header{Layout::kLazy, Dtype::kInt32, 3, 2, false};
  std::string wide = Begin(header);
  wide[24] = 8;
  EXPECT_THAT(Refusal(wide, IndexBytes(header)), HasSubstr("a token has 8 bytes, but int32 has 4"));
  std::string deep = Begin(header);
  deep[40] = 6;
  EXPECT_THAT(Refusal(deep, IndexBytes(header)), HasSubstr("6 sizes for 3 sequences"));
}

TEST(Dtype, TokensAreReadAsTheirTypeHasThem) {
  const std::string bytes("\xff\xfe\xff\xff\xff\xff\xff\xff", 8);
  EXPECT_EQ(LoadToken(Dtype::kUint8, bytes.data()), 255);
  EXPECT_EQ(LoadToken(Dtype::kInt8, bytes.data()), -1);
  EXPECT_EQ(LoadToken(Dtype::kUint16, bytes.data()), 0xfeff);
  EXPECT_EQ(LoadToken(Dtype::kInt16, bytes.data()), -257);
  EXPECT_EQ(LoadToken(Dtype::kInt32, bytes.data()), -257);
  EXPECT_EQ(LoadToken(Dtype::kInt64, bytes.data()), -257);
}

TEST(Sum, NoticesWhatDoesNotFit) {
  EXPECT_TRUE(Sum().Add(INT64_MAX).fits());
  EXPECT_FALSE(Sum().Add(INT64_MAX).Add(1).fits());
  EXPECT_FALSE(Sum().AddProduct(uint64_t{1} << 62, 8).fits());
  EXPECT_FALSE(Sum().Add(UINT64_MAX).Add(2).fits());
  EXPECT_EQ(Sum().Add(9).Pad().value(), 16U);
  EXPECT_EQ(Sum().Add(8).Pad().value(), 8U);
}

}  // namespace
}  // namespace phalanx::data

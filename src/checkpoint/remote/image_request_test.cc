#include "checkpoint/remote/image_request.h"

#include <gtest/gtest.h>

namespace phalanx::checkpoint {
namespace {

ImageRequest Request() {
  ImageRequest request;
  request.image = {"/data/run7", {3, -1, 2}, -1};
  request.offset = 5;
  request.bytes = uint64_t{1} << 40;
  request.proved = true;
  return request;
}

TEST(ImageRequest, ComesBack) {
  const std::string text = FormatRequest(Request()) + "more";
  size_t used = 0;
  const auto parsed = ParseRequest(text, &used);
  ASSERT_TRUE(parsed.ok() && *parsed);
  EXPECT_EQ((*parsed)->image, Request().image);
  EXPECT_EQ((*parsed)->offset, 5u);
  EXPECT_EQ((*parsed)->bytes, uint64_t{1} << 40);
  EXPECT_TRUE((*parsed)->proved);
  EXPECT_EQ(used, text.size() - 4);
}

TEST(ImageProof, ComesBack) {
  EXPECT_EQ(ParseProof(FormatProof({9, true})).crc32, 9u);
  EXPECT_TRUE(ParseProof(FormatProof({9, true})).still_lent);
  EXPECT_FALSE(ParseProof(FormatProof({9, false})).still_lent);
}

TEST(ImageRequest, WaitsForItsLastByte) {
  const std::string text = FormatRequest(Request());
  size_t used = 0;
  for (size_t n = 0; n < text.size(); ++n) {
    const auto parsed = ParseRequest(std::string_view(text).substr(0, n), &used);
    ASSERT_TRUE(parsed.ok()) << n;
    EXPECT_FALSE(*parsed) << n;
  }
}

TEST(ImageRequest, IsNotTakenWithAnyOtherBit) {
  const std::string text = FormatRequest(Request());
  size_t used = 0;
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string other = text;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ (1 << bit % 8));
    const auto parsed = ParseRequest(other, &used);
    EXPECT_FALSE(parsed.ok() && *parsed) << bit;
  }
}

TEST(ImageAnswer, ComesBack) {
  const auto answer = ParseAnswer(FormatAnswer({true, 9, 100, 60}));
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->found);
  EXPECT_EQ(answer->crc32, 9u);
  EXPECT_EQ(answer->image_bytes, 100u);
  EXPECT_EQ(answer->bytes, 60u);
  EXPECT_FALSE(ParseAnswer(FormatAnswer({}))->found);
}

TEST(ImageAnswer, SaysNothingThatCannotBe) {
  EXPECT_FALSE(ParseAnswer(FormatAnswer({true, 9, 100, 101})).ok());
  EXPECT_FALSE(ParseAnswer(FormatAnswer({false, 0, 100, 1})).ok());
  EXPECT_FALSE(ParseAnswer("").ok());
  EXPECT_FALSE(ParseAnswer(std::string(kAnswerBytes, 'x')).ok());
}

}  // namespace
}  // namespace phalanx::checkpoint

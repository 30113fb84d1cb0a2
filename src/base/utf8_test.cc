#include "base/utf8.h"

#include <gtest/gtest.h>

namespace phalanx {
namespace {

TEST(Utf8, KnowsWellFormedCharacters) {
  struct Case {
    std::string_view text;
    size_t length;
  };
  for (const Case& c : {
           Case{"", 0}, Case{"a", 1}, Case{{"\0", 1}, 1}, Case{"\xc3\xbcx", 2}, Case{"\xe2\x82\xac", 3},
           Case{"\xf0\x9f\x98\x80", 4}, Case{"\xff", 0}, Case{"\x80", 0},  // begins within a character
           Case{"\xc3", 0},                                                // ends within one
           Case{"\xe2\x82", 0},                                            // ends within one
           Case{"\xe2\x82x", 0},                                           // is left within one
           Case{"\xc0\xaf", 0},                                            // longer than need be
           Case{"\xe0\x80\xaf", 0},                                        // longer than need be
           Case{"\xf0\x80\x80\xaf", 0},                                    // longer than need be
           Case{"\xed\xa0\x80", 0},                                        // half of a pair of UTF-16
           Case{"\xf4\x90\x80\x80", 0},                                    // behind the last character
           Case{"\xf5\x80\x80\x80", 0},                                    // behind the last character
       }) {
    EXPECT_EQ(Utf8Length(c.text), c.length) << testing::PrintToString(c.text);
  }
}

TEST(Utf8, ReplacesWhatIsNone) {
  EXPECT_EQ(ToUtf8(""), "");
  EXPECT_EQ(ToUtf8("gr\xc3\xbc\xc3\x9f"), "gr\xc3\xbc\xc3\x9f");
  EXPECT_EQ(ToUtf8("a\xff\xc3z\xe2\x82"), "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Utf8, CutsBetweenCharacters) {
  EXPECT_EQ(CutUtf8("abc", 3), "abc");
  EXPECT_EQ(CutUtf8("abc", 2), "ab");
  EXPECT_EQ(CutUtf8("a\xe2\x82\xac", 3), "a");
  EXPECT_EQ(CutUtf8("a\xe2\x82\xac", 4), "a\xe2\x82\xac");
  EXPECT_EQ(CutUtf8("\xe2\x82\xac", 2), "");
}

}  // namespace
}  // namespace phalanx

#include "checkpoint/image/safetensors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/crc/crc32.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr std::string_view kData = "abcdefghijkl";
constexpr std::string_view kTwo =
    R"("b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]},"a":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]})";

std::string Hex(std::string_view data) { return fmt::format("{:08x}", Crc32(0, data.data(), data.size())); }

std::string WithLength(std::string_view header, std::string_view data) {
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return file.append(header).append(data);
}

// A file with these tensors and their CRCs, in the order in which they are described.
std::string Make(std::string_view tensors, const std::vector<std::string_view>& of_tensors,
                 std::string_view data = kData) {
  std::string crcs;
  for (const std::string_view tensor : of_tensors) crcs += Hex(tensor);
  const std::string begin = R"({"__metadata__":{"phalanx.crc32":")";
  std::string file = WithLength(fmt::format(R"({}00000000{}","phalanx.info":"{{\"step\":3}}"}}{}{}}}  )", begin, crcs,
                                            tensors.empty() ? "" : ",", tensors),
                                data);
  const std::string head = Hex(std::string_view(file).substr(0, file.size() - data.size()));
  return file.replace(8 + begin.size(), 8, head);
}

std::string Two() { return Make(kTwo, {"efghijkl", "abcd"}); }

std::string WhyNot(const std::string& file) {
  std::vector<ImageRecord> records;
  std::string info;
  return ParseSafetensors(file.data(), file.size(), &records, &info);
}

TEST(Safetensors, TellsItsTensorsAsTheyLie) {
  const std::string file = Two();
  std::vector<ImageRecord> records;
  std::string info;
  ASSERT_EQ(ParseSafetensors(file.data(), file.size(), &records, &info), "");
  EXPECT_EQ(info, R"({"step":3})");
  ASSERT_EQ(records.size(), 3U);
  const uint64_t data_at = file.size() - kData.size();
  EXPECT_EQ(records[0].name, kHeaderRecord);
  EXPECT_EQ(records[0].bytes, data_at);
  EXPECT_EQ(records[1].name, "a");
  EXPECT_EQ(records[1].offset, data_at);
  EXPECT_EQ(records[1].crc32, Crc32(0, "abcd", 4));
  EXPECT_EQ(records[2].name, "b");
  EXPECT_EQ(records[2].offset, data_at + 4);
  EXPECT_EQ(records[2].bytes, 8U);
  EXPECT_EQ(CheckSafetensors(file.data(), file.size()), "");
}

TEST(Safetensors, EveryFlippedBitIsFound) {
  const std::string file = Two();
  for (size_t at = 0; at < 8 * file.size(); ++at) {
    std::string flipped = file;
    flipped[at / 8] = static_cast<char>(flipped[at / 8] ^ (1 << at % 8));
    EXPECT_NE(CheckSafetensors(flipped.data(), flipped.size()), "") << "bit " << at;
  }
}

TEST(Safetensors, ADamagedTensorIsNamed) {
  std::string file = Two();
  file.back() ^= 1;
  EXPECT_EQ(WhyNot(file), "");
  EXPECT_THAT(CheckSafetensors(file.data(), file.size()), HasSubstr("tensor 'b' of 8 bytes"));
  file = Two();
  file[file.find("step")] = 'S';
  EXPECT_THAT(CheckSafetensors(file.data(), file.size()), HasSubstr("its header of"));
}

TEST(Safetensors, ACutFileIsRefusedAtEveryLength) {
  const std::string file = Two();
  for (size_t bytes = 0; bytes < file.size(); ++bytes) {
    EXPECT_NE(WhyNot(file.substr(0, bytes)), "") << bytes << " bytes";
  }
  EXPECT_NE(WhyNot(file + "x"), "");
}

TEST(Safetensors, EmptyTensorsAndNoneAreFine) {
  EXPECT_EQ(WhyNot(Make("", {}, "")), "");
  EXPECT_EQ(WhyNot(Make(R"("e":{"dtype":"F64","shape":[0,9],"data_offsets":[0,0]})", {""}, "")), "");
  EXPECT_EQ(WhyNot(Make(R"("s":{"dtype":"F32","shape":[],"data_offsets":[0,4]})", {"abcd"}, "abcd")), "");
}

TEST(Safetensors, ATensorThatIsNotWhereItShouldBeIsRefused) {
  const auto why = [](std::string_view tensors, size_t count = 1) {
    return WhyNot(Make(tensors, std::vector<std::string_view>(count, "x")));
  };
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[13],"data_offsets":[0,13]})"), HasSubstr("from 0 to 13 in 12 bytes"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[1],"data_offsets":[5,4]})"), HasSubstr("from 5 to 4"));
  EXPECT_THAT(why(R"("a":{"dtype":"F32","shape":[12],"data_offsets":[0,12]})"), HasSubstr("another size"));
  EXPECT_THAT(why(R"("a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})"),
              HasSubstr("too large a shape"));
  EXPECT_THAT(why(R"("a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]})"),
              HasSubstr("another size"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]})"), HasSubstr("fraction"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[11],"data_offsets":[0,11]})"), HasSubstr("end at"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[11],"data_offsets":[1,12]})"), HasSubstr("the one before ends at"));
  const std::string overlapping =
      R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]})";
  EXPECT_THAT(why(overlapping, 2), HasSubstr("the one before ends at"));
}

TEST(Safetensors, AHeaderOfAnotherFormIsRefused) {
  const auto why = [](std::string_view tensors) { return WhyNot(Make(tensors, {"x"})); };
  EXPECT_THAT(why(R"("a":{"dtype":"I4","shape":[12],"data_offsets":[0,12]})"), HasSubstr("unknown data type I4"));
  EXPECT_THAT(why(R"("a":{"shape":[12],"data_offsets":[0,12]})"), HasSubstr("has no dtype"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","data_offsets":[0,12]})"), HasSubstr("has no dtype, shape"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[12],"data_offsets":[0]})"), HasSubstr("has no dtype, shape"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[12],"data_offsets":[0,12,13]})"), HasSubstr("where none belongs"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[[12]],"data_offsets":[0,12]})"), HasSubstr("where none belongs"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8","shape":[-12],"data_offsets":[0,12]})"), HasSubstr("below 0"));
  EXPECT_THAT(why(R"("a":{"dtype":{},"shape":[12],"data_offsets":[0,12]})"), HasSubstr("nested too deeply"));
  EXPECT_THAT(why(R"("a":null)"), HasSubstr("null"));
  EXPECT_THAT(why(R"("a":7)"), HasSubstr("where none belongs"));
  EXPECT_THAT(why(R"("a":{"dtype":"U8")"), HasSubstr("is no JSON"));
  EXPECT_THAT(WhyNot(Make(R"("a":{"dtype":"U8","shape":[12],"data_offsets":[0,12]})", {})),
              HasSubstr("holds 1 checksums for a header and 1 tensors"));
  const std::string twice =
      R"("a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[4],"data_offsets":[8,12]})";
  EXPECT_THAT(WhyNot(Make(twice, {"x", "x"})), HasSubstr("two tensors are called 'a'"));
}

TEST(Safetensors, OfOthersIsNoneOfOurs) {
  const std::string stock = WithLength(R"({"a":{"dtype":"U8","shape":[12],"data_offsets":[0,12]}})", kData);
  EXPECT_TRUE(IsSafetensors(stock.data(), stock.size()));
  EXPECT_THAT(WhyNot(stock), HasSubstr("no checksums"));
  std::string file = Two();
  file[file.find("crc32\":\"") + 8] = 'G';
  EXPECT_THAT(WhyNot(file), HasSubstr("no number"));
  std::string longer = Two();
  longer[7] = 1;
  EXPECT_THAT(WhyNot(longer), HasSubstr("longer than the file"));
  const std::string zip("PK\x03\x04\0\0\x08\x08{", 9);
  EXPECT_FALSE(IsSafetensors(zip.data(), zip.size()));
  EXPECT_FALSE(IsSafetensors("", 0));
}

}  // namespace
}  // namespace phalanx::checkpoint

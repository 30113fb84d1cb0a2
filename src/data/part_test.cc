#include "data/part.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/crc/crc32.h"
#include "data/bytes.h"

namespace phalanx::data {
namespace {

using testing::HasSubstr;

struct Fields {
  uint32_t version = 1;
  uint32_t dtype = 8;
  uint64_t number = 3;
  uint64_t parts = 5;
  uint64_t tokens = 7;
  uint64_t sequences = 3;
  uint64_t documents = 2;
  uint64_t notes = 5;
};

// As docs/formats/data-parts.md has it.
std::string HeaderBytes(const Fields& fields) {
  std::string bytes("PHXPART\0", 8);
  Append(bytes, fields.version);
  Append(bytes, fields.dtype);
  Append(bytes, fields.number);
  Append(bytes, fields.parts);
  bytes += std::string(32, 'f');
  for (const uint64_t count : {fields.tokens, fields.sequences, fields.documents, fields.notes}) Append(bytes, count);
  Append(bytes, uint32_t{0x11});
  Append(bytes, uint32_t{0x22});
  Append(bytes, Crc32(0, bytes.data(), bytes.size()));
  bytes.resize(kPartHeaderBytes);
  return bytes;
}

constexpr uint64_t kFileBytes = 4096 + 16 + 16 + 16 + 5;  // 14 bytes of tokens, 12 of lengths, 16 of ends, 5 of notes

std::string Refusal(const std::string& begin, uint64_t file_bytes) {
  const Result<PartHeader> header = ParsePartHeader(begin.data(), begin.size(), file_bytes);
  return header.ok() ? "" : header.error().message;
}

TEST(Part, HeaderAndPlaces) {
  const std::string bytes = HeaderBytes({});
  const Result<PartHeader> header = ParsePartHeader(bytes.data(), bytes.size(), kFileBytes);
  ASSERT_TRUE(header.ok()) << header.error().message;
  EXPECT_EQ(header->dtype, Dtype::kUint16);
  EXPECT_EQ(header->number, 3U);
  EXPECT_EQ(header->parts, 5U);
  EXPECT_EQ(header->fingerprint[31], 'f');
  EXPECT_EQ(header->tokens_crc32, 0x11U);
  EXPECT_EQ(header->tables_crc32, 0x22U);
  EXPECT_EQ(TokenBytes(*header), 14U);
  EXPECT_EQ(TablesAt(*header), 4096U + 16);
  EXPECT_EQ(Lengths(*header).count, 3U);
  EXPECT_EQ(DocumentEnds(*header).at, 4096U + 32);
  EXPECT_EQ(DocumentEnds(*header).count, 2U);
  EXPECT_EQ(NotesAt(*header), 4096U + 48);
  EXPECT_EQ(header->notes_bytes, 5U);
}

TEST(Part, RefusesWithASentence) {
  const std::string good = HeaderBytes({});
  EXPECT_EQ(Refusal(good, kFileBytes), "");
  EXPECT_THAT(Refusal(good.substr(0, 100), 100), HasSubstr("ends within its header, after 100 of 4096 bytes"));
  EXPECT_THAT(Refusal(std::string(4096, '\0'), 4096), HasSubstr("never finished"));
  EXPECT_THAT(Refusal(std::string(4096, 'x'), 4096), HasSubstr("does not begin with PHXPART"));
  EXPECT_THAT(Refusal(HeaderBytes({.version = 2}), kFileBytes), HasSubstr("its version is 2"));
  EXPECT_THAT(Refusal(HeaderBytes({.dtype = 7}), kFileBytes), HasSubstr("floating point"));
  EXPECT_THAT(Refusal(HeaderBytes({.number = 5}), kFileBytes), HasSubstr("part 5 of 5, and they are counted from 0"));
  EXPECT_THAT(Refusal(good, kFileBytes + 1), HasSubstr("it has 4150 bytes, but its header speaks of 4149"));
  EXPECT_THAT(Refusal(HeaderBytes({.tokens = uint64_t{1} << 63}), kFileBytes), HasSubstr("more than any file holds"));
  std::string flipped = good;
  flipped[64] ^= 1;
  EXPECT_THAT(Refusal(flipped, kFileBytes), HasSubstr("the CRC differs"));
  flipped = good;
  flipped[4095] = 1;
  EXPECT_THAT(Refusal(flipped, kFileBytes), HasSubstr("something behind the fields"));
}

}  // namespace
}  // namespace phalanx::data

#include "checkpoint/image/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/image/image_bytes.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

const ImageTail kTail = {"a pickle", R"({"version":1})", "0123456789012345678901234567890123456789"};

ImageLayout Plan(const std::vector<uint64_t>& sizes, uint64_t pickle_bytes = 8, uint64_t file_bytes = 0) {
  ImageLayout layout;
  EXPECT_EQ(PlanImage(sizes.data(), sizes.size(), pickle_bytes, file_bytes, &layout), "");
  return layout;
}

struct Image {
  ImageLayout layout;
  std::vector<uint8_t> bytes;
  uint32_t crc32 = 0;
};

// Records of these sizes; each byte of record i is i + 1.
Image Make(const std::vector<uint64_t>& sizes, const ImageTail& tail = kTail) {
  Image image;
  image.layout = Plan(sizes, tail.pickle.size());
  image.bytes.assign(image.layout.file_bytes, 0xEE);
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < sizes.size(); ++i) {
    uint8_t* data = image.bytes.data() + image.layout.data_at[i];
    std::fill(data, data + sizes[i], static_cast<uint8_t>(i + 1));
    crcs.push_back(Crc32(0, data, sizes[i]));
  }
  EXPECT_EQ(TailFits(image.layout, tail), "");
  image.crc32 = FinishImage(image.bytes.data(), image.layout, tail, crcs.data());
  return image;
}

TEST(Image, HasItsRecordsWhereThePlanSays) {
  const std::vector<uint64_t> sizes = {1, 0, 64, 63, 100000, 4096, 0, 7, 65536, 3, 3, 3};
  const Image image = Make(sizes);
  EXPECT_EQ(image.layout.file_bytes % kImagePage, 0U);
  EXPECT_EQ(image.crc32, Crc32(0, image.bytes.data(), image.bytes.size()));
  EXPECT_EQ(CheckImage(image.bytes.data(), image.bytes.size()), "");
  std::vector<ImageRecord> records;
  ASSERT_EQ(ParseImage(image.bytes.data(), image.bytes.size(), &records), "");
  ASSERT_EQ(records.size(), sizes.size() + 7);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(records[i].name, "archive/data/" + std::to_string(i));
    EXPECT_EQ(records[i].offset, image.layout.data_at[i]);
    EXPECT_EQ(records[i].offset % kImageAlignment, 0U);
    EXPECT_EQ(records[i].bytes, sizes[i]);
  }
  std::vector<std::string> tail;
  for (size_t i = sizes.size(); i < records.size(); ++i) {
    const auto* data = reinterpret_cast<const char*>(image.bytes.data()) + records[i].offset;
    tail.push_back(records[i].name + "=" + std::string(data, records[i].bytes));
  }
  EXPECT_THAT(tail,
              testing::ElementsAre("archive/data.pkl=a pickle", "archive/.format_version=1",
                                   "archive/.storage_alignment=64", "archive/byteorder=little", "archive/version=3\n",
                                   "archive/.data/serialization_id=0123456789012345678901234567890123456789",
                                   R"(archive/.phalanx/info={"version":1})"));
}

TEST(Image, IsOneOfNoRecords) {
  const Image image = Make({});
  EXPECT_EQ(CheckImage(image.bytes.data(), image.bytes.size()), "");
  EXPECT_EQ(image.crc32, Crc32(0, image.bytes.data(), image.bytes.size()));
}

TEST(Image, IsTheSameBytesWhateverWasThereBefore) {
  Image image = Make({100, 70000, 5});
  const std::vector<uint8_t> first = image.bytes;
  std::vector<uint32_t> crcs;
  for (size_t i = 0; i < 3; ++i) {
    crcs.push_back(Crc32(0, image.bytes.data() + image.layout.data_at[i], image.layout.bytes[i]));
  }
  // A tail that was longer leaves nothing behind.
  const std::string pickle(1000, 'p');
  const ImageTail longer = {pickle, "{}", kTail.serialization_id};
  FinishImage(image.bytes.data(), image.layout, longer, crcs.data());
  EXPECT_NE(image.bytes, first);
  FinishImage(image.bytes.data(), image.layout, kTail, crcs.data());
  EXPECT_EQ(image.bytes, first);
}

TEST(Plan, DependsOnSizesAlone) {
  const ImageLayout plan = Plan({10, 20000, 30}, 1000);
  const ImageLayout later = Plan({10, 20000, 30}, 5000, plan.file_bytes);
  EXPECT_EQ(plan.data_at, later.data_at);
  EXPECT_EQ(plan.hash, later.hash);
  EXPECT_NE(plan.hash, Plan({10, 20001, 30}, 1000, plan.file_bytes).hash);
  EXPECT_NE(plan.hash, Plan({10, 20000, 30}, 1000, plan.file_bytes + kImagePage).hash);
}

TEST(Plan, LeavesRoomForTheTailToGrow) {
  for (const uint64_t pickle_bytes : {uint64_t{100}, uint64_t{10} << 20}) {
    const ImageLayout layout = Plan({1000}, pickle_bytes);
    const uint64_t room = std::max<uint64_t>(64 << 10, pickle_bytes / 4);
    const std::string fits(pickle_bytes + room - 512, 'p');
    EXPECT_EQ(TailFits(layout, {fits, "", kTail.serialization_id}), "");
    const std::string grown(pickle_bytes + room + (pickle_bytes / 64) + 8192, 'p');
    EXPECT_THAT(TailFits(layout, {grown, "", kTail.serialization_id}), HasSubstr("its slot has"));
  }
}

TEST(Plan, FillsTheTailUpToItsLastByte) {
  const ImageLayout plan = Plan({5000});
  std::string pickle = "p";
  while (TailFits(plan, {pickle + std::string(64, 'p'), "", kTail.serialization_id}).empty()) pickle.append(64, 'p');
  while (TailFits(plan, {pickle + "p", "", kTail.serialization_id}).empty()) pickle += 'p';
  std::vector<uint8_t> bytes(plan.file_bytes);
  const uint32_t crc = Crc32(0, bytes.data() + plan.data_at[0], 5000);
  FinishImage(bytes.data(), plan, {pickle, "", kTail.serialization_id}, &crc);
  EXPECT_EQ(CheckImage(bytes.data(), bytes.size()), "");
}

TEST(Plan, RefusesWhatNoFileHolds) {
  ImageLayout layout;
  const std::vector<uint64_t> sizes = {uint64_t{1} << 63, uint64_t{1} << 63};
  EXPECT_THAT(PlanImage(sizes.data(), 2, 0, 0, &layout), HasSubstr("more bytes"));
  EXPECT_THAT(PlanImage(sizes.data(), uint64_t{1} << 40, 0, 0, &layout), HasSubstr("more than an image may have"));
  EXPECT_THAT(PlanImage(sizes.data(), 0, uint64_t{1} << 60, 0, &layout), HasSubstr("more bytes"));
}

// Sizes and places on either side of what 32 bits hold. Untouched pages cost nothing.
TEST(Image, SpeaksOf64Bits) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  const std::vector<uint64_t> sizes = {4 * kGiB - 1, 4 * kGiB - 2, 4 * kGiB, 10, 4 * kGiB + 3, 0, 70000};
  const ImageLayout layout = Plan(sizes);
  void* memory =
      mmap(nullptr, layout.file_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::vector<uint32_t> crcs = {1, 2, 3, Crc32(0, std::string(10, '\0').data(), 10), 5, 0, 7};
  FinishImage(static_cast<uint8_t*>(memory), layout, kTail, crcs.data());
  std::vector<ImageRecord> records;
  EXPECT_EQ(ParseImage(memory, layout.file_bytes, &records), "");
  ASSERT_EQ(records.size(), sizes.size() + 7);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(records[i].offset, layout.data_at[i]);
    EXPECT_EQ(records[i].bytes, sizes[i]);
    EXPECT_EQ(records[i].crc32, crcs[i]);
  }
  // Behind the data of the first, which 32 bits cannot count: a descriptor of 64 bits, then the next header at once.
  const uint8_t* descriptor = static_cast<uint8_t*>(memory) + layout.data_at[0] + sizes[0];
  EXPECT_EQ(Get<uint32_t>(descriptor), kDescriptorSignature);
  EXPECT_EQ(Get<uint32_t>(descriptor + 4), crcs[0]);
  EXPECT_EQ(Get<uint64_t>(descriptor + 8), sizes[0]);
  EXPECT_EQ(Get<uint64_t>(descriptor + 16), sizes[0]);
  EXPECT_EQ(Get<uint32_t>(descriptor + 24), kLocalSignature);
  munmap(memory, layout.file_bytes);
}

TEST(Reader, FindsEachFlippedByteOfData) {
  Image image = Make({3, 1000, 0, 70000});
  for (size_t i = 0; i < 4; ++i) {
    for (uint64_t at = 0; at < image.layout.bytes[i]; at += 97) {
      uint8_t& byte = image.bytes[image.layout.data_at[i] + at];
      byte ^= 0x10;
      EXPECT_THAT(CheckImage(image.bytes.data(), image.bytes.size()),
                  HasSubstr("archive/data/" + std::to_string(i) + " of"));
      byte ^= 0x10;
    }
  }
  EXPECT_EQ(CheckImage(image.bytes.data(), image.bytes.size()), "");
}

// Whatever a byte of the structure is turned into: never a record outside the file. What still passes has lost nothing.
TEST(Reader, DistrustsEachByteOfTheStructure) {
  Image image = Make({3, 1000, 0, 700});
  for (uint64_t at = 0; at < image.bytes.size(); ++at) {
    if (at > image.layout.tail_at + 4096 && at + 4096 < image.bytes.size()) continue;  // zeros
    image.bytes[at] ^= 0xFF;
    std::vector<ImageRecord> records;
    ParseImage(image.bytes.data(), image.bytes.size(), &records);
    for (const ImageRecord& record : records) {
      ASSERT_LE(record.offset, image.bytes.size()) << at;
      ASSERT_LE(record.bytes, image.bytes.size() - record.offset) << at;
    }
    image.bytes[at] ^= 0xFF;
  }
}

TEST(Reader, RefusesWhatIsCutShort) {
  const Image image = Make({3, 1000});
  std::vector<ImageRecord> records;
  for (uint64_t bytes = 0; bytes < image.bytes.size(); bytes += bytes < 200 ? 1 : 101) {
    const std::vector<uint8_t> part(image.bytes.begin(), image.bytes.begin() + static_cast<ptrdiff_t>(bytes));
    EXPECT_NE(ParseImage(part.data(), part.size(), &records), "") << bytes;
  }
}

TEST(Reader, RefusesADirectoryWithoutAnEnd) {
  Image image = Make({3, 1000});
  uint8_t* end64 = image.bytes.data() + image.bytes.size() - kEndingBytes;
  const auto entries = Get<uint64_t>(end64 + 32);
  for (const uint64_t wrong : {entries + 1, entries - 1, uint64_t{1} << 60}) {
    Put<uint64_t>(end64 + 24, wrong);
    Put<uint64_t>(end64 + 32, wrong);
    EXPECT_NE(CheckImage(image.bytes.data(), image.bytes.size()), "") << wrong;
  }
}

TEST(Reader, RefusesRecordsThatDoNotEndBeforeTheDirectory) {
  Image image = Make({100, 100});
  const uint64_t directory = Get<uint64_t>(image.bytes.data() + image.bytes.size() - kEndingBytes + 48);
  std::vector<ImageRecord> records;
  for (const uint32_t bytes : {static_cast<uint32_t>(directory), uint32_t{1} << 30, kMax32 - 1}) {
    Put<uint32_t>(image.bytes.data() + directory + 20, bytes);
    Put<uint32_t>(image.bytes.data() + directory + 24, bytes);
    EXPECT_THAT(ParseImage(image.bytes.data(), image.bytes.size(), &records), HasSubstr("entry 0")) << bytes;
  }
}

TEST(Reader, RefusesRecordsThatOverlap) {
  Image image = Make({100, 100});
  std::vector<ImageRecord> records;
  ASSERT_EQ(ParseImage(image.bytes.data(), image.bytes.size(), &records), "");
  // The second entry speaks of the first record, by its name.
  const uint64_t directory = Get<uint64_t>(image.bytes.data() + image.bytes.size() - kEndingBytes + 48);
  uint8_t* first = image.bytes.data() + directory;
  const uint64_t length = kEntryBytes + Get<uint16_t>(first + 28);
  std::copy(first, first + length, first + length);
  EXPECT_THAT(ParseImage(image.bytes.data(), image.bytes.size(), &records), HasSubstr("entry 1"));
}

TEST(Parts, AreThePickleAndTheStorages) {
  for (const std::vector<uint64_t>& sizes : {std::vector<uint64_t>{64, 0, 100}, {}, std::vector<uint64_t>(300, 7)}) {
    const Image image = Make(sizes);
    std::vector<ImagePart> parts;
    ASSERT_EQ(FindParts(image.bytes.data(), image.bytes.size(), &parts), "");
    ASSERT_EQ(parts.size(), sizes.size() + 1);
    const std::string pickle(reinterpret_cast<const char*>(image.bytes.data()) + parts[0].offset, parts[0].bytes);
    EXPECT_EQ(pickle, kTail.pickle);
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(parts[i + 1].offset, image.layout.data_at[i]);
      EXPECT_EQ(parts[i + 1].bytes, sizes[i]);
    }
  }
}

// Whatever a byte of the directory or of the pickle's header is turned into: what is found lies in the file, and where
// a storage's length is another its place is not the one that the directory names.
TEST(Parts, AreNotThoseOfAChangedDirectory) {
  Image image = Make({64, 100, 5000});
  std::vector<ImagePart> right;
  ASSERT_EQ(FindParts(image.bytes.data(), image.bytes.size(), &right), "");
  const auto directory_at = image.bytes.size() - 1200;
  size_t found = 0;
  for (size_t at = directory_at; at < image.bytes.size(); ++at) {
    for (const int flip : {1, 0x80}) {
      image.bytes[at] = static_cast<uint8_t>(image.bytes[at] ^ flip);
      std::vector<ImagePart> parts;
      if (FindParts(image.bytes.data(), image.bytes.size(), &parts).empty()) {
        ++found;
        for (const ImagePart& part : parts) EXPECT_LE(part.offset + part.bytes, image.bytes.size()) << at;
        for (size_t i = 1; i < 3; ++i) EXPECT_EQ(parts[i].bytes, right[i].bytes) << at;
      }
      image.bytes[at] = static_cast<uint8_t>(image.bytes[at] ^ flip);
    }
  }
  EXPECT_GT(found, 0U) << "CRCs and the tail's records are not looked at";
}

TEST(Parts, AreNoneOfAnotherFile) {
  std::vector<ImagePart> parts;
  const std::string text(500, 'x');
  EXPECT_THAT(FindParts(text.data(), text.size(), &parts), HasSubstr("not an image"));
  EXPECT_THAT(FindParts(text.data(), 5, &parts), HasSubstr("too short"));
}

TEST(Reader, ShowsNoControlCharacters) {
  Image image = Make({100});
  const std::string name = "archive/data/0";
  const std::string odd = "archive/\033ata/0";
  for (auto at = image.bytes.begin();;) {
    at = std::search(at, image.bytes.end(), name.begin(), name.end());
    if (at == image.bytes.end()) break;
    at = std::copy(odd.begin(), odd.end(), at);
  }
  image.bytes[image.layout.data_at[0]] ^= 1;
  EXPECT_THAT(CheckImage(image.bytes.data(), image.bytes.size()), HasSubstr("archive/?ata/0"));
}

}  // namespace
}  // namespace phalanx::checkpoint

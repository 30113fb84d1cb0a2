#include "checkpoint/image/file_table.h"

#include <gmock/gmock.h>

#include "checkpoint/image/test_file_table.h"

namespace phalanx::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;

std::string WhyNot(const std::string& image) {
  std::vector<FileOfImage> files;
  const std::string why = ParseFileTable(image.data(), image.size(), &files);
  EXPECT_TRUE(why.empty() || files.empty());
  return why;
}

TEST(FileTableTest, NamesTheFilesOfAnImage) {
  const std::string image = ImageOfFiles({{"a.pt", 4096, 5000, 7}, {"b.bin", 12288, 1, 8, true}}, 16384);
  std::vector<FileOfImage> files;
  ASSERT_EQ(ParseFileTable(image.data(), image.size(), &files), "");
  ASSERT_EQ(files.size(), 2u);
  EXPECT_THAT(files, ElementsAre(Field(&FileOfImage::name, "a.pt"), Field(&FileOfImage::name, "b.bin")));
  EXPECT_EQ(files[0].offset, 4096u);
  EXPECT_EQ(files[0].bytes, 5000u);
  EXPECT_EQ(files[0].crc32, 7u);
  EXPECT_FALSE(files[0].copied_elsewhere);
  EXPECT_TRUE(files[1].copied_elsewhere);
}

TEST(FileTableTest, ARankMayHaveNone) {
  const std::string image = ImageOfFiles({}, 4096);
  std::vector<FileOfImage> files;
  EXPECT_EQ(ParseFileTable(image.data(), image.size(), &files), "");
  EXPECT_TRUE(files.empty());
}

TEST(FileTableTest, WhatIsNoneIsRefused) {
  const std::string good = ImageOfFiles({{"a.pt", 4096, 5000, 7}}, 16384);
  EXPECT_THAT(WhyNot(""), HasSubstr("no table"));
  EXPECT_THAT(WhyNot(std::string(16384, '\0')), HasSubstr("no table"));
  EXPECT_THAT(WhyNot(good.substr(0, 40)), HasSubstr("cut off"));
  std::string changed = good;
  changed[40] = static_cast<char>(changed[40] ^ 1);
  EXPECT_THAT(WhyNot(changed), HasSubstr("wrong CRC"));
  changed = good;
  changed[8] = 2;
  EXPECT_THAT(WhyNot(changed), HasSubstr("another version"));
}

TEST(FileTableTest, FilesThatDoNotLieOneBehindTheOtherAreRefused) {
  for (const std::vector<FileOfImage>& files : std::vector<std::vector<FileOfImage>>{
           {{"a", 0, 10, 0}},                          // in the table
           {{"a", 4100, 10, 0}},                       // within a page
           {{"a", 4096, 5000, 0}, {"b", 8192, 1, 0}},  // over the one before
           {{"b", 8192, 1, 0}, {"a", 4096, 1, 0}},     // in another order
           {{"a", 4096, 12289, 0}},                    // behind the image's end
           {{"a", 1u << 20, 1, 0}},                    // all of it
           {{"a", 4096, UINT64_MAX, 0}},               //
           {{"a", UINT64_MAX - 4095, 4096, 0}},        //
           {{"a", 4096, 0, 0}},                        // empty
       }) {
    EXPECT_THAT(WhyNot(ImageOfFiles(files, 16384)), HasSubstr("does not lie")) << files[0].offset;
  }
}

TEST(FileTableTest, NamesArePlainAndDifferent) {
  EXPECT_THAT(WhyNot(ImageOfFiles({{"a", 4096, 1, 0}, {"a", 8192, 1, 0}}, 16384)), HasSubstr("two files"));
  for (const std::string& name :
       {std::string(), std::string("a/b"), std::string(".."), std::string(".metadata"), std::string("manifest.json"),
        std::string("a\nb"), std::string("a\0b", 3), std::string("a\xff\xfe")}) {
    EXPECT_FALSE(IsNameOfFile(name)) << name;
    EXPECT_THAT(WhyNot(ImageOfFiles({{name, 4096, 1, 0}}, 16384)), HasSubstr("plain name")) << name;
  }
  EXPECT_TRUE(IsNameOfFile(std::string(kFileOfImageNameMax, 'a')));
  EXPECT_FALSE(IsNameOfFile(std::string(kFileOfImageNameMax + 1, 'a')));
  EXPECT_TRUE(IsNameOfFile("zero_pp_rank_0_mp_rank_00_optim_states.pt"));
  EXPECT_TRUE(IsNameOfFile("modèle 1.safetensors"));
}

}  // namespace
}  // namespace phalanx::checkpoint

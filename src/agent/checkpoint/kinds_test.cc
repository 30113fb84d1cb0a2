#include "agent/checkpoint/kinds.h"

#include <gtest/gtest.h>

#include "checkpoint/disk/manifest.h"
#include "checkpoint/rank/memory_names.h"

namespace phalanx::agent {
namespace {

checkpoint::MemoryImage Image(const std::string& dir, const std::string& page, int64_t step) {
  checkpoint::MemoryImage image;
  image.dir = dir;
  image.page = page;
  image.image.epoch = 1;
  image.image.step = step;
  image.image.rank = 5;
  return image;
}

bool NoPage(const std::string&, const std::string&) { return false; }

TEST(SaveKindsTest, TheSharedPageSaysOfWhichKindASaveIs) {
  SaveKinds kinds(NoPage);
  kinds.Add(Image("/a", checkpoint::kMetadataPageName, 10));
  kinds.Add(Image("/a", checkpoint::kMainPageName, 20));
  kinds.Add(Image("/b", "0", 10));
  EXPECT_EQ(kinds.Of(Image("/a", "0", 10)), v1::DCP);
  EXPECT_EQ(kinds.Of(Image("/a", "1", 20)), v1::DDP);
  EXPECT_EQ(kinds.Of(Image("/b", "0", 10)), v1::FULL) << "no rank of it shares a page";
}

TEST(SaveKindsTest, ASaveWithoutItsSharedImageIsOfTheNewestKind) {
  SaveKinds kinds(NoPage);
  kinds.Add(Image("/a", checkpoint::kMetadataPageName, 20));
  kinds.Add(Image("/a", checkpoint::kMainPageName, 10));
  EXPECT_EQ(kinds.Of(Image("/a", "0", 30)), v1::DCP);
}

TEST(SaveKindsTest, TheOpenedPageSaysItOfAFirstSaveWithoutItsSharedImage) {
  SaveKinds kinds([](const std::string& dir, const std::string& page) {
    return page == (dir == "/a" ? checkpoint::kMetadataPageName : checkpoint::kMainPageName);
  });
  kinds.Add(Image("/a", "0", 10));
  kinds.Add(Image("/b", "0", 10));
  EXPECT_EQ(kinds.Of(Image("/a", "1", 10)), v1::DCP);
  EXPECT_EQ(kinds.Of(Image("/b", "1", 10)), v1::DDP);
}

TEST(SaveKindsTest, AnImageBelongsToItsRankOrToAll) {
  EXPECT_EQ(RankOf(Image("/a", "0", 1)), 5);
  EXPECT_EQ(RankOf(Image("/a", checkpoint::kMainPageName, 1)), checkpoint::kMainRank);
  EXPECT_TRUE(IsShared(Image("/a", SharedPageOf(v1::DCP), 1)));
  EXPECT_TRUE(IsShared(Image("/a", SharedPageOf(v1::DDP), 1)));
  EXPECT_STRNE(SharedPageOf(v1::DCP), SharedPageOf(v1::DDP));
}

}  // namespace
}  // namespace phalanx::agent

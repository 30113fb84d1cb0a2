#include "master/record/lost_rows.h"

#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

RecordRow Told(int64_t id) { return {id, 0, 1, "first-step", "", -1, "", "{}"}; }

TEST(NextRowId, IsBehindWhatWasLost) {
  EXPECT_EQ(NextRowId({}), 1);
  EXPECT_EQ(NextRowId({Told(1), Told(2)}), 3);
  EXPECT_EQ(NextRowId({Told(7), Told(8)}), 9) << "the newest rows alone";
  EXPECT_EQ(NextRowId({Told(1), LostRow(2, 5, 0)}), 7) << "2 to 6 were lost";
  EXPECT_EQ(NextRowId({Told(1), LostRow(2, 5, 0), Told(7)}), 8);
  EXPECT_EQ(NextRowId({Told(1), LostRow(2, 5, 0), Told(4), Told(6)}), 9) << "2, 3, 5, 7 and 8 were lost";
  EXPECT_EQ(NextRowId({LostRow(1, 2, 0), Told(3), LostRow(4, 3, 0)}), 7);
}

TEST(NextRowId, TakesACountThatIsNoneForOneRow) {
  RecordRow row = LostRow(2, 5, 0);
  for (const char* detail : {"no json", "[]", "{}", R"({"count":"5"})", R"({"count":-5})"}) {
    row.detail_json = detail;
    EXPECT_EQ(NextRowId({row}), 3) << detail;
  }
}

}  // namespace
}  // namespace phalanx::master

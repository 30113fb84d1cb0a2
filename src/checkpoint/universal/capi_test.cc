#include "checkpoint/universal/capi.h"

#include <gtest/gtest.h>

#include <array>
#include <string>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/image/image.h"

namespace phalanx::universal {
namespace {

TEST(UniversalCapiTest, WritesAndPublishes) {
  const TestFolder folder;
  folder.Write("ucp.writing/.keep", "");
  const std::string text = "some bytes";
  const std::array<phx_universal_piece, 3> pieces = {{{text.data(), 4}, {text.data() + 4, 6}, {text.data(), 10}}};
  const std::array<uint64_t, 2> counts = {2, 1};
  const std::array<phx_universal_file, 2> files = {
      {{"zero/a/fp32.pt", nullptr, "p", 1, pieces.data(), counts.data(), 2},
       {"model.pt", nullptr, nullptr, 0, pieces.data(), counts.data(), 1}}};
  std::array<phx_universal_written, 2> written = {};
  std::array<char, 64> error = {};
  const std::string draft = folder / "ucp.writing";
  ASSERT_EQ(phx_universal_write(draft.c_str(), files.data(), 2, 2, written.data(), error.data(), error.size()), 0)
      << error.data();
  EXPECT_EQ(folder.Read("ucp.writing/model.pt"), text);
  EXPECT_EQ(written[1].crc32, Crc32(0, text.data(), text.size()));
  const std::string zip = folder.Read("ucp.writing/zero/a/fp32.pt");
  EXPECT_EQ(written[0].bytes, zip.size());
  EXPECT_EQ(checkpoint::CheckImage(zip.data(), zip.size()), "");

  const std::string target = folder / "ucp";
  const phx_universal_publication publication = {draft.c_str(), target.c_str(), "m", "{}", 2, nullptr};
  ASSERT_EQ(phx_universal_publish(&publication, error.data(), error.size()), 0) << error.data();
  EXPECT_EQ(folder.Read("ucp/m"), "{}");
  EXPECT_FALSE(folder.Has("latest_universal"));
}

TEST(UniversalCapiTest, ATextIsCutToItsBuffer) {
  const TestFolder folder;
  std::array<char, 8> error = {};
  const phx_universal_publication publication = {"/none/a", "/none/b", "m", "", 0, nullptr};
  EXPECT_EQ(phx_universal_publish(&publication, error.data(), error.size()), -1);
  EXPECT_STREQ(error.data(), "/none/a");
  EXPECT_EQ(phx_universal_publish(&publication, nullptr, 0), -1);
}

}  // namespace
}  // namespace phalanx::universal

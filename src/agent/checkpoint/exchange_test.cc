#include "agent/checkpoint/exchange.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "base/save_key.h"
#include "base/test_folder.h"
#include "checkpoint/memory/memory.h"

namespace phalanx::agent {
namespace {

using checkpoint::ImageServer;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Key;

constexpr char kHere[] = "127.0.0.1";
constexpr char kDir[] = "/data/run";
const SaveKey kSave{4, 7};

class ExchangeTest : public testing::Test {
 protected:
  // A node that lends an image of those ranks, so many bytes each.
  std::unique_ptr<ImageServer> Node(const std::map<int32_t, uint64_t>& bytes_of) {
    auto server = ImageServer::Start(kHere, {});
    EXPECT_TRUE(server.ok());
    checkpoint::LentImages images;
    for (const auto& [rank, bytes] : bytes_of) {
      const std::string path = fmt::format("{}/lent{}", folder_.path(), rank);
      const std::string image(bytes, 'x');
      std::ofstream(path, std::ios::binary) << image;
      images[{kDir, kSave, rank}] = {path, bytes, Crc32(0, image.data(), bytes)};
    }
    (*server)->Lend(std::move(images));
    return *std::move(server);
  }

  // To read images of those ranks from that node.
  FetchJob Job(const ImageServer& node, const std::vector<int32_t>& ranks) {
    FetchJob job;
    job.order.set_dir(kDir);
    SetKey(*job.order.mutable_save(), kSave);
    for (const int32_t rank : ranks) {
      v1::ImageElsewhere& elsewhere = *job.order.mutable_restore()->add_elsewhere();
      elsewhere.set_rank(rank);
      v1::ImageSource& source = *elsewhere.add_sources();
      source.set_address(kHere);
      source.set_port(node.port());
      source.set_key(std::string(node.key().begin(), node.key().end()));
    }
    job.folder = folder_.path();
    job.number = ++numbers_;
    return job;
  }

  TestFolder folder_;
  uint64_t numbers_ = 0;
  Fd stop_{eventfd(0, EFD_CLOEXEC)};
};

TEST_F(ExchangeTest, OneImageThatNobodyLendsCostsAllOthers) {
  const auto node = Node({{0, 1000}, {2, 1000}});
  const FetchedFiles fetched = FetchAll(Job(*node, {0, 1, 2}), stop_);
  EXPECT_THAT(fetched.files, IsEmpty());
  EXPECT_THAT(fetched.error, HasSubstr("it does not hold the image any more"));
}

TEST_F(ExchangeTest, WhatIsReadAheadIsWorthHavingWithoutTheRest) {
  const auto node = Node({{0, 1000}, {2, 1000}});
  FetchJob job = Job(*node, {0, 1, 2});
  job.ahead = true;
  const FetchedFiles fetched = FetchAll(job, stop_);
  EXPECT_EQ(fetched.error, "");
  EXPECT_THAT(fetched.files, ElementsAre(Key(0), Key(2)));

  ImageExchange exchange(kHere, {});
  exchange.OnRound();
  exchange.Keep(kDir, kSave, fetched.files);
  const FetchJob left = exchange.WithoutKept(Job(*node, {0, 1, 2}).order, {});
  ASSERT_EQ(left.order.restore().elsewhere_size(), 1) << "the rest is asked for alone";
  EXPECT_EQ(left.order.restore().elsewhere(0).rank(), 1);

  exchange.Forget(kDir);
  EXPECT_FALSE(std::filesystem::exists(fetched.files.at(0).path));
  EXPECT_EQ(exchange.WithoutKept(Job(*node, {0, 1, 2}).order, {}).order.restore().elsewhere_size(), 3);
}

TEST_F(ExchangeTest, AQuarterOfTheFreeMemoryIsReadAheadAtMost) {
  const uint64_t most = checkpoint::FreeMemoryBytes(folder_.path()) / 4;
  const std::string path = folder_.path() + "/lent";
  std::ofstream(path).close();
  std::filesystem::resize_file(path, most + (most >> 4));  // a hole: not a byte is read
  auto node = *ImageServer::Start(kHere, {});
  checkpoint::LentImages images;
  images[{kDir, kSave, 0}] = {path, most + (most >> 4), 0};
  node->Lend(std::move(images));
  FetchJob job = Job(*node, {0});
  job.ahead = true;
  const FetchedFiles fetched = FetchAll(job, stop_);
  EXPECT_THAT(fetched.files, IsEmpty());
  EXPECT_EQ(fetched.error, "");
}

TEST_F(ExchangeTest, WhatIsReadAheadIsGivenUpAlone) {
  ImageExchange exchange(kHere, {});
  exchange.OnRound();
  const auto round = exchange.stop();
  const auto ahead = exchange.ahead_stop();
  exchange.StopAhead();
  const auto is_fired = [](const Fd& stop) {
    pollfd watched{stop.get(), POLLIN, 0};
    return poll(&watched, 1, 0) == 1;
  };
  EXPECT_TRUE(is_fired(*ahead));
  EXPECT_FALSE(is_fired(*round));
  EXPECT_FALSE(is_fired(*exchange.ahead_stop()));
}

}  // namespace
}  // namespace phalanx::agent

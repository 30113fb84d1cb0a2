#include "checkpoint/rank/frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/rank/test_memory.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr uint64_t kEpoch = 4;
constexpr uint64_t kSlotBytes = 1 << 20;

// Records of which one is large enough to be joined by its CRC, and two stand next to each other.
class FrameTest : public testing::Test {
 protected:
  FrameTest() : memory_(kEpoch) {
    std::mt19937_64 random(5);
    for (const size_t size : {300000, 0, 17, 70001}) {
      records_.emplace_back(size, '\0');
      for (char& byte : records_.back()) byte = static_cast<char>(random());
      bytes_.push_back(size);
      sources_.push_back(records_.back().data());
    }
    for (char& byte : frame_bytes_) byte = static_cast<char>(random());
    memory_.MakeSlots(2, kSlotBytes);
    save_.step = 7;
    save_.world_size = 1;
    save_.n = bytes_.size();
    save_.bytes = bytes_.data();
    save_.source = reinterpret_cast<const void* const*>(sources_.data());
    save_.file_bytes = kSlotBytes;
    save_.notify_fd = -1;
    Point();
  }

  void Point() {
    frame_.bytes = frame_bytes_.data();
    frame_.byte_count = frame_bytes_.size();
    frame_.record_at = record_at_.data();
    frame_.patches = patches_.data();
    frame_.patch_count = patches_.size();
    frame_.spans = spans_.data();
    frame_.span_count = spans_.size();
  }
  // The image as it should be.
  std::string Expected() const {
    std::string image;
    size_t given = 0;
    for (size_t i = 0; i < records_.size(); ++i) {
      const size_t length = record_at_[i] - image.size();
      image += frame_bytes_.substr(given, length) + records_[i];
      given += length;
    }
    image += frame_bytes_.substr(given);
    for (const phx_ckpt_patch& patch : patches_) {
      const bool is_head = patch.record == PHX_CKPT_HEAD;
      const bool is_span = !is_head && (patch.record & PHX_CKPT_SPAN) != 0;
      const phx_ckpt_span span = is_span ? spans_.at(patch.record ^ PHX_CKPT_SPAN) : phx_ckpt_span{};
      const uint32_t crc = is_head   ? Crc32(0, image.data(), record_at_[0])
                           : is_span ? Crc32(0, image.data() + span.at, span.bytes)
                                     : Crc32(0, records_[patch.record].data(), records_[patch.record].size());
      std::array<char, 9> digits{};
      std::snprintf(digits.data(), digits.size(), "%08x", crc);
      if (frame_.digits != 0) image.replace(patch.at, 8, digits.data(), 8);
      if (frame_.digits == 0) image.replace(patch.at, 4, reinterpret_cast<const char*>(&crc), 4);
    }
    image.resize(kSlotBytes, '\0');
    return image;
  }
  std::string WhyNot() {
    ImageLayout layout;
    Point();
    return PlanFrame(save_, frame_, &layout);
  }

  TestMemory memory_;
  std::vector<std::string> records_;
  std::vector<uint64_t> bytes_;
  std::vector<const char*> sources_;
  std::vector<uint64_t> record_at_ = {64, 300064, 300064, 300200};
  std::string frame_bytes_ = std::string(500, '\0');
  std::vector<phx_ckpt_patch> patches_ = {{10, 0}, {300100, 2}, {370210, 3}, {60, 0}};
  std::vector<phx_ckpt_span> spans_;
  phx_ckpt_save save_{};
  phx_ckpt_frame frame_{};
};

TEST_F(FrameTest, TheImageIsTheFrameWithItsRecordsAndTheirChecksums) {
  std::array<char, 256> error{};
  phx_ckpt* ckpt = phx_ckpt_open(memory_.control_path().c_str(), kEpoch, error.data(), error.size());
  ASSERT_NE(ckpt, nullptr) << error.data();
  for (const int threads : {0, 2}) {
    save_.threads = threads;
    save_.step = 7 + threads;
    frame_.digits = threads == 0 ? 0 : 1;
    if (frame_.digits != 0) patches_ = {{10, 0}, {300100, 2}, {370230, 3}, {50, 3}, {20, PHX_CKPT_HEAD}};
    Point();
    const int slot = phx_ckpt_begin_framed(ckpt, &save_, &frame_, error.data(), error.size());
    ASSERT_GE(slot, 0) << error.data();
    phx_ckpt_outcome outcome{};
    EXPECT_EQ(phx_ckpt_wait_copied(ckpt, &outcome), 0);
    EXPECT_EQ(outcome.state, PHX_CKPT_SEALED);
    std::ifstream file(memory_.SlotPath(slot), std::ios::binary);
    const std::string image{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(image, Expected());
    const SlotImage& sealed = memory_.ReadSlot(slot).image;
    EXPECT_EQ(sealed.crc32, Crc32(0, image.data(), image.size()));
    EXPECT_EQ(sealed.records, 4U);
    memory_.Commit(slot);
  }
  phx_ckpt_close(ckpt);
}

// A file in the image: the CRCs in it are there when its own is taken.
TEST_F(FrameTest, ASpanHasTheChecksumOfAllItsBytes) {
  std::array<char, 256> error{};
  spans_ = {{64, 300100}, {300200, 70011}, {300220, 0}};
  spans_[2] = {300164, 36};
  patches_ = {{300100, 0}, {300110, 2}, {0, PHX_CKPT_SPAN | 0}, {4, PHX_CKPT_SPAN | 1}, {8, PHX_CKPT_SPAN | 2}};
  Point();
  phx_ckpt* ckpt = phx_ckpt_open(memory_.control_path().c_str(), kEpoch, error.data(), error.size());
  const int slot = phx_ckpt_begin_framed(ckpt, &save_, &frame_, error.data(), error.size());
  ASSERT_GE(slot, 0) << error.data();
  phx_ckpt_outcome outcome{};
  EXPECT_EQ(phx_ckpt_wait_copied(ckpt, &outcome), 0);
  std::ifstream file(memory_.SlotPath(slot), std::ios::binary);
  EXPECT_TRUE((std::string{std::istreambuf_iterator<char>(file), {}} == Expected()));
  phx_ckpt_close(ckpt);
}

TEST_F(FrameTest, ASpanThatCutsARecordOrLeavesTheImageIsRefused) {
  for (const phx_ckpt_span span : {phx_ckpt_span{100, 1000}, phx_ckpt_span{0, 100}, phx_ckpt_span{0, kSlotBytes + 1},
                                   phx_ckpt_span{kSlotBytes + 1, 0}, phx_ckpt_span{UINT64_MAX, 2}}) {
    spans_ = {span};
    EXPECT_THAT(WhyNot(), HasSubstr("a file of")) << span.at;
  }
  spans_ = {{64, 300000}};
  EXPECT_EQ(WhyNot(), "");
  patches_.push_back({0, PHX_CKPT_SPAN | 1});
  EXPECT_THAT(WhyNot(), HasSubstr("cannot stand at 0"));
}

TEST_F(FrameTest, AZipAfterAFrameHasALayoutOfItsOwn) {
  std::array<char, 256> error{};
  phx_ckpt* ckpt = phx_ckpt_open(memory_.control_path().c_str(), kEpoch, error.data(), error.size());
  const int first = phx_ckpt_begin_framed(ckpt, &save_, &frame_, error.data(), error.size());
  ASSERT_GE(first, 0) << error.data();
  save_.step = 8;
  const int slot = phx_ckpt_begin(ckpt, &save_, error.data(), error.size());
  ASSERT_GE(slot, 0) << error.data();
  EXPECT_EQ(phx_ckpt_check_file(memory_.SlotPath(slot).c_str(), error.data(), error.size()), 0) << error.data();
  phx_ckpt_close(ckpt);
}

TEST_F(FrameTest, WhatDoesNotMakeUpAnImageIsRefused) {
  EXPECT_EQ(WhyNot(), "");
  const auto refused = [this](const std::string& what) { EXPECT_THAT(WhyNot(), HasSubstr(what)); };

  record_at_[3] = 300080;
  refused("record 3 of 70001 bytes does not lie at 300080");
  record_at_[3] = kSlotBytes - 70000;
  refused("record 3");
  record_at_[3] = ~uint64_t{0};
  refused("record 3");
  record_at_[3] = 300200;

  frame_bytes_.resize(100);
  refused("a frame of 100 bytes does not go with records of 370018 bytes");
  frame_bytes_.resize(kSlotBytes - 370018 + 1);
  refused("does not go with records");
  frame_bytes_.resize(500);

  for (const uint64_t at : {uint64_t{61}, uint64_t{64}, uint64_t{300060}, uint64_t{300203}, uint64_t{370201 + 314},
                            uint64_t{kSlotBytes}, ~uint64_t{0}}) {
    patches_[1].at = at;
    refused("the CRC of record 2 cannot stand at " + std::to_string(at));
  }
  patches_[1] = {300100, 4};
  refused("the CRC of record 4");
  patches_[1] = {300100, PHX_CKPT_HEAD};
  refused("the CRC of the head cannot stand at 300100");
  patches_ = {{60, PHX_CKPT_HEAD}};
  EXPECT_EQ(WhyNot(), "");
  frame_.digits = 1;
  refused("the CRC of the head cannot stand at 60");
}

}  // namespace
}  // namespace phalanx::checkpoint

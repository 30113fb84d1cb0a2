#include "base/save_form.h"

#include <gtest/gtest.h>

#include "phalanx/v1/checkpoint.pb.h"

namespace phalanx {
namespace {

TEST(SaveFormTest, EachKindHasANameANumberAndAMessageThatComeBack) {
  for (const SaveKind& kind : kSaveKinds) {
    EXPECT_EQ(KindOf(kind.form), kind.name);
    EXPECT_EQ(FormOfKind(kind.name), kind.form);
    EXPECT_EQ(FormOfNumber(NumberOf(kind.form)), kind.form);
    v1::SaveForm wire;
    SetForm(wire, kind.form);
    EXPECT_TRUE(IsForm(wire));
    EXPECT_EQ(FormOf(wire), kind.form);
  }
  EXPECT_EQ(FormOfKind("other"), std::nullopt);
  EXPECT_EQ(KindOf({FileNeed::kAnyRank, false, false}), "other");
}

// docs/formats/checkpoint-image.md has these, and python/phalanx/checkpoint/formats/forms.py.
TEST(SaveFormTest, TheNumbersAreThoseOfTheFormat) {
  EXPECT_EQ(NumberOf(kFullForm), 0u);
  EXPECT_EQ(NumberOf(kDdpForm), 7u);
  EXPECT_EQ(NumberOf(kDcpForm), 6u);
  EXPECT_EQ(NumberOf(kFilesForm), 14u);
}

TEST(SaveFormTest, WhatNoSaveCanBeMadeUpOfIsNone) {
  EXPECT_FALSE(FormOfNumber(16));
  EXPECT_FALSE(FormOfNumber(1)) << "an image of each rank that every rank needs";
  EXPECT_FALSE(FormOfNumber(3)) << "nobody needs anything";
  v1::SaveForm wire;
  for (const auto own : {v1::EVERY_RANK, v1::NOBODY, static_cast<v1::FileNeed>(9), static_cast<v1::FileNeed>(-1)}) {
    wire.set_own(own);
    EXPECT_FALSE(IsForm(wire)) << own;
  }
}

TEST(FileNeedTest, NamesComeBack) {
  for (const FileNeed need : {FileNeed::kOwner, FileNeed::kEveryRank, FileNeed::kAnyRank, FileNeed::kNobody}) {
    EXPECT_EQ(FileNeedOf(NameOf(need)), need);
  }
  EXPECT_EQ(FileNeedOf("me"), std::nullopt);
  EXPECT_EQ(static_cast<int>(FileNeed::kEveryRank), static_cast<int>(v1::EVERY_RANK));
  EXPECT_EQ(static_cast<int>(FileNeed::kAnyRank), static_cast<int>(v1::ANY_RANK));
  EXPECT_EQ(static_cast<int>(FileNeed::kNobody), static_cast<int>(v1::NOBODY));
}

}  // namespace
}  // namespace phalanx

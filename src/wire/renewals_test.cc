#include "wire/renewals.h"

#include <gtest/gtest.h>

namespace phalanx::wire {
namespace {

TEST(Renewals, WhatWasTakenIsReadAgainWhereItHasChanged) {
  Renewals<int> renewals;
  EXPECT_TRUE(renewals.AreDue(0));
  renewals.Take(0);
  EXPECT_FALSE(renewals.AreDue(0));
  EXPECT_TRUE(renewals.AreDue(1));
}

// A certificate that begins in a moment by this clock has the same stamps then.
TEST(Renewals, WhatWasRefusedIsReadAgainAndToldOnce) {
  Renewals<int> renewals;
  renewals.Take(0);
  EXPECT_TRUE(renewals.Refuse(1));
  EXPECT_TRUE(renewals.AreDue(1));
  EXPECT_FALSE(renewals.Refuse(1));
  EXPECT_TRUE(renewals.Refuse(2));
  renewals.Take(2);
  EXPECT_FALSE(renewals.AreDue(2));
  EXPECT_TRUE(renewals.Refuse(1)) << "another time";
}

}  // namespace
}  // namespace phalanx::wire

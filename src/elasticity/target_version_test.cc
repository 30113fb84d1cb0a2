#include "elasticity/target_version.h"

#include <gtest/gtest.h>

#include <string>

#include "elasticity/python_json.h"

namespace phalanx::elasticity {
namespace {

std::string WhyNot(const char* version) {
  const Result<Done> checked = CheckTargetVersion(Value(std::string(version)));
  return checked.ok() ? "" : checked.error().type;
}

TEST(TargetVersion, NewEnough) {
  for (const char* version : {"0.3.8",
                              "0.3.8.0.0",
                              "00.03.08",
                              "0.3.8.0.1",
                              "0.4",
                              "v0.4",
                              "1!0.1",
                              "0.3.8+local",
                              "0.3.8-1",
                              "0.3.8.post1.dev1",
                              "0.3.8_rev3",
                              "0.3.8r",
                              " 0.16.5\n",
                              "\u00a00.16.5\u2028",

                              "0.4rc",
                              "0.4a--1",
                              "0.16.5+Torch.2_1-x",
                              "99999999999999999999.0",
                              "0.3.10",
                              "0.16.5-RC.1"}) {
    EXPECT_EQ(WhyNot(version), "") << version;
  }
}

TEST(TargetVersion, TooOld) {
  for (const char* version : {"0.3.7", "0.3", "0", "0!0.3.7.99", "0.3.8rc1", "0.3.8a", "0.3.8.dev0", "0.3.8preview",
                              "0.3.8C.", "0.3.8a1.post2.dev3+x", "0.3.8-alpha_1", "0.3.8dev"}) {
    EXPECT_EQ(WhyNot(version), "ElasticityError") << version;
  }
  EXPECT_EQ(CheckTargetVersion(Value(std::string("0.2"))).error().message,
            "Target deepspeed version of 0.2 is not compatible with minimum version 0.3.8 supporting elasticity.");
}

TEST(TargetVersion, None) {
  for (const char* version : {"", "abc", "0.4-", "1..2", "1.", ".1", "1.0+", "1.0+a..b", "1.0+\u00e9", "vv1", "v",
                              "1.0 0", "0.3.8--1", "1.0a-1-2-3", "1!", "0.3.\u0668", "0.3.8dev1post1", "1.0+a-"}) {
    EXPECT_EQ(WhyNot(version), "InvalidVersion") << version;
  }
  EXPECT_EQ(CheckTargetVersion(Value(std::string("it's"))).error().message, "Invalid version: \"it's\"");
  EXPECT_EQ(CheckTargetVersion(Value()).error().message, "Invalid version: None");
  EXPECT_EQ(CheckTargetVersion(Value(0.4)).error().message, "Invalid version: 0.4");
  EXPECT_EQ(WhyNot(std::string(kIntDigitsMax + 1, '1').c_str()), "ValueError");
}

}  // namespace
}  // namespace phalanx::elasticity

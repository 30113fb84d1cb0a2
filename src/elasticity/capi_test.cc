#include "elasticity/capi.h"

#include <gtest/gtest.h>

#include <string>

#include "elasticity/rows.h"

namespace phalanx::elasticity {
namespace {

TEST(CInterface, AnswersFitOrAreCut) {
  const std::string request = R"({"id": 1, "ds_config": {"elasticity": {}}})";
  const std::string expected = AnswerRequest(request);
  EXPECT_EQ(phx_elasticity_answer(request.data(), request.size(), nullptr, 0), expected.size());
  char cut[8];
  EXPECT_EQ(phx_elasticity_answer(request.data(), request.size(), cut, sizeof cut), expected.size());
  EXPECT_EQ(std::string(cut), expected.substr(0, 7));
  std::string whole(expected.size() + 1, '?');
  phx_elasticity_answer(request.data(), request.size(), whole.data(), whole.size());
  EXPECT_EQ(whole.c_str(), expected);
  EXPECT_EQ(phx_elasticity_abi_version(), 1U);
}

}  // namespace
}  // namespace phalanx::elasticity

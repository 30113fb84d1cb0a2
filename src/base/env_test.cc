#include "base/env.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace phalanx {
namespace {

TEST(Environment, TellsUnsetFromEmpty) {
  Environment env({{"EMPTY", ""}, {"SET", "x"}});
  EXPECT_EQ(env.Get("EMPTY"), "");
  EXPECT_EQ(env.Get("SET"), "x");
  EXPECT_EQ(env.Get("ABSENT"), std::nullopt);
  EXPECT_EQ(env.NonEmptyOr("EMPTY", "fallback"), "fallback");
  EXPECT_EQ(env.NonEmptyOr("ABSENT", "fallback"), "fallback");
  EXPECT_EQ(env.NonEmptyOr("SET", "fallback"), "x");
}

TEST(Environment, SnapshotsTheProcess) {
  char first[] = "PHX_TWICE=first", second[] = "PHX_TWICE=second", equals[] = "PHX_EQUALS=a=b";
  char nameless[] = "=C:=x", no_equals[] = "PHX_NO_EQUALS", empty[] = "PHX_EMPTY=";
  char* entries[] = {first, nameless, second, no_equals, equals, empty, nullptr};
  char** real = environ;
  environ = entries;
  Environment env = Environment::FromProcess();
  environ = real;
  std::map<std::string, std::string> expected = {{"PHX_TWICE", "first"}, {"PHX_EQUALS", "a=b"}, {"PHX_EMPTY", ""}};
  EXPECT_EQ(env.values(), expected);
}

}  // namespace
}  // namespace phalanx

#include "base/net.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace phalanx {
namespace {

TEST(Net, SplitsAndJoinsHostPort) {
  for (const char* text : {"node1:29400", "10.0.0.1:1", "[::1]:65535"}) {
    const auto split = SplitHostPort(text);
    ASSERT_TRUE(split.ok()) << text;
    EXPECT_EQ(JoinHostPort(split->host, split->port), text);
  }
}

TEST(Net, RefusesWhatIsNoHostPort) {
  for (const char* text :
       {"", "node1", ":1", "node1:", "node1:0", "node1:65536", "node1:1x", "::1:1", "[]:1", "[::1:1"}) {
    EXPECT_FALSE(SplitHostPort(text).ok()) << text;
  }
}

TEST(Net, ResolvesAddressesAndLocalhostWithoutAsking) {
  EXPECT_EQ(*Resolve("192.0.2.7", 0), std::vector<std::string>{"192.0.2.7"});
  EXPECT_EQ(Resolve("localhost", 0)->front(), "127.0.0.1");
}

TEST(Net, AnUnknownNameIsAnErrorThatNamesIt) {
  const auto found = Resolve("no-such-host.invalid", 1'000);
  ASSERT_FALSE(found.ok());
  EXPECT_NE(Message(found.status()).find("no-such-host.invalid"), std::string::npos);
}

TEST(Net, KnowsLocalAddresses) {
  EXPECT_TRUE(IsLocalAddress("127.0.0.3"));
  EXPECT_FALSE(IsLocalAddress("192.0.2.7"));
  EXPECT_EQ(*LocalAddressTowards("127.0.0.1", 1), "127.0.0.1");
}

// It goes into messages, which take nothing but UTF-8.
TEST(Net, AHostNameIsText) {
  constexpr int kRight = 0, kWrong = 1, kNotAllowed = 2;
  const pid_t child = fork();
  if (child == 0) {
    const bool own = unshare(CLONE_NEWUTS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWUTS) == 0;
    if (!own || sethostname("node\xff", 5) != 0) _exit(kNotAllowed);
    _exit(Hostname() == "node\xef\xbf\xbd" ? kRight : kWrong);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNotAllowed)
    GTEST_SKIP() << "needs root, or a namespace of users, for a host name of its own";
  EXPECT_EQ(WEXITSTATUS(status), kRight);
}

}  // namespace
}  // namespace phalanx

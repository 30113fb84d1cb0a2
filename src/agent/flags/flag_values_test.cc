#include "agent/flags/flag_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <csignal>

namespace phalanx::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using testing::StartsWith;

TEST(FlagValues, Integers) {
  EXPECT_EQ(ParseInteger("12", 0, 20).value(), 12);
  EXPECT_EQ(ParseInteger("+12", 0, 20).value(), 12);
  EXPECT_EQ(ParseInteger("-3", -5, 20).value(), -3);
  EXPECT_EQ(ParseInteger("9223372036854775807", 0, INT64_MAX).value(), INT64_MAX);
  for (const char* wrong : {"", "+", "-", "+-3", " 1", "1 ", "1x", "0x10", "1.0", "21", "-1", "9223372036854775808"}) {
    EXPECT_FALSE(ParseInteger(wrong, 0, 20).ok()) << wrong;
  }
  EXPECT_EQ(Message(ParseInteger("21", 0, 20).status()), "expected a whole number between 0 and 20");
}

TEST(FlagValues, SecondsBecomeMilliseconds) {
  for (auto [text, ms] : std::map<std::string, int64_t>{{"30", 30'000},
                                                        {"0.5", 500},
                                                        {".25", 250},
                                                        {"1.", 1000},
                                                        {"0", 0},
                                                        {"0.001", 1},
                                                        {"0.0001", 1},
                                                        {"0.1000", 100},
                                                        {"1.2345", 1235}}) {
    EXPECT_EQ(ParseSecondsToMs(text).value(), ms) << text;
  }
  for (const char* wrong : {"", ".", "-1", "+1", "1e3", "1s", "1.2.3", "nan", "inf", "99999999999999999999", "1,5"}) {
    EXPECT_FALSE(ParseSecondsToMs(wrong).ok()) << wrong;
  }
}

TEST(FlagValues, Nodes) {
  EXPECT_EQ(ParseNodes("3").value(), (std::pair<uint32_t, uint32_t>(3, 3)));
  EXPECT_EQ(ParseNodes("1:4").value(), (std::pair<uint32_t, uint32_t>(1, 4)));
  for (const char* wrong : {"", "0", "0:3", "4:3", "-1", "1:2:3", "1:", ":2", "a", "4294967297", "1000001"}) {
    EXPECT_FALSE(ParseNodes(wrong).ok()) << wrong;
  }
}

TEST(FlagValues, Bools) {
  for (const char* yes : {"1", "True", "T", "yes", "y"}) EXPECT_TRUE(ParseBool(yes).value()) << yes;
  for (const char* no : {"0", "FALSE", "f", "No", "n"}) EXPECT_FALSE(ParseBool(no).value()) << no;
  for (const char* wrong : {"", "2", "on", "truee"}) EXPECT_FALSE(ParseBool(wrong).ok()) << wrong;
}

std::string Shown(const std::string& text) {
  StatusOr<Endpoint> endpoint = ParseEndpoint(text);
  if (!endpoint.ok()) return "wrong";
  return endpoint->host + " " + (endpoint->port ? std::to_string(*endpoint->port) : "-");
}

TEST(FlagValues, Endpoints) {
  EXPECT_EQ(Shown("node1"), "node1 -");
  EXPECT_EQ(Shown("node-1_a.example.com:29400"), "node-1_a.example.com 29400");
  EXPECT_EQ(Shown("10.0.0.1:0"), "10.0.0.1 0");
  EXPECT_EQ(Shown(" node1:1 "), "node1 1");
  EXPECT_EQ(Shown(":29400"), " 29400");
  EXPECT_EQ(Shown("[2001:db8::1]:29400"), "2001:db8::1 29400");
  EXPECT_EQ(Shown("[::1]"), "::1 -");
  EXPECT_EQ(Shown("2001:db8::1"), "2001:db8::1 -");
  EXPECT_EQ(Shown("fe80::1%eth0"), "fe80::1%eth0 -");
  for (const char* wrong : {"", "node1:", "node1:65536", "node1:-1", "node1:+1", "node1:x", "http://node1:1", "no de:1",
                            "[node1]:1", "[::1", "[::1]1", "[]:1", "fe80::1%:1 x", "a/b", "node1:99999999999"}) {
    EXPECT_EQ(Shown(wrong), "wrong") << wrong;
  }
}

TEST(FlagValues, Hosts) {
  EXPECT_EQ(ParseHost("[::1]").value(), "::1");
  EXPECT_EQ(ParseHost("10.0.0.1").value(), "10.0.0.1");
  for (const char* wrong : {"", "a:1", "[]", "a b", "-\n"}) EXPECT_FALSE(ParseHost(wrong).ok()) << wrong;
}

TEST(FlagValues, StreamMaps) {
  EXPECT_EQ(ParseStreamMap("3").value().Of(7), 3);
  StreamMap map = ParseStreamMap("0:3,11:1").value();
  EXPECT_EQ(map.Of(0), 3);
  EXPECT_EQ(map.Of(11), 1);
  EXPECT_EQ(map.Of(1), 0);
  for (const char* wrong :
       {"", "4", "03", "-1", "0:4", "0:", ":1", "0:1,", "0:1,2", "a:1", "0:1:2", "0:1;1:2", "99999999999:1"}) {
    EXPECT_FALSE(ParseStreamMap(wrong).ok()) << wrong;
  }
}

TEST(FlagValues, LocalRanks) {
  EXPECT_THAT(ParseLocalRanks("2,0, 10").value(), ElementsAre(0, 2, 10));
  for (const char* wrong : {"", ",", "0,", "a", "-1", "0-3"}) EXPECT_FALSE(ParseLocalRanks(wrong).ok()) << wrong;
}

TEST(FlagValues, Signals) {
  EXPECT_THAT(ParseSignals("SIGTERM, SIGUSR1").value(), ElementsAre(SIGUSR1, SIGTERM));
  for (const char* wrong : {"", "TERM", "15", "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGTERM,"}) {
    EXPECT_FALSE(ParseSignals(wrong).ok()) << wrong;
  }
  EXPECT_THAT(Message(ParseSignals("SIGKILL").status()), HasSubstr("SIGTERM"));
}

TEST(FlagValues, PortRanges) {
  EXPECT_EQ(ParsePortRange("20000-20999").value(), (std::pair<uint16_t, uint16_t>(20000, 20999)));
  for (const char* wrong : {"", "20000", "0-1", "2-1", "1-65536", "1:2", "a-b", "-1-2", "20000-20000"}) {
    EXPECT_FALSE(ParsePortRange(wrong).ok()) << wrong;
  }
}

TEST(FlagValues, KeyValues) {
  EXPECT_THAT(ParseKeyValues("join_timeout=5, last_call_timeout = 1").value(),
              ElementsAre(Pair("join_timeout", "5"), Pair("last_call_timeout", "1")));
  EXPECT_THAT(ParseKeyValues("'join_timeout=5,last_call_timeout=1'").value(),
              ElementsAre(Pair("join_timeout", "5"), Pair("last_call_timeout", "1")));
  EXPECT_THAT(ParseKeyValues("a='1',b=\"2=3\"").value(), ElementsAre(Pair("a", "1"), Pair("b", "2=3")));
  EXPECT_TRUE(ParseKeyValues("").value().empty());
  EXPECT_TRUE(ParseKeyValues("''").value().empty());
  for (const char* wrong : {"a", "a=", "=1", ",", "a=1,", "a=1,,b=2"})
    EXPECT_FALSE(ParseKeyValues(wrong).ok()) << wrong;
}

TEST(FlagValues, CleanText) {
  EXPECT_TRUE(IsCleanText("job-7 \xc3\xa4\xe6\xbc\xa2\xf0\x9f\x98\x80"));
  for (const char* wrong : {"a\nb", "\x7f", "\xc3", "\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\x80",
                            "\xc3(", "\xe0\x80\xaf"}) {
    EXPECT_FALSE(IsCleanText(wrong)) << wrong;
  }
}

TEST(FlagValues, JobDirectoriesAreOneSafeComponent) {
  EXPECT_EQ(JobDirectoryName("job7"), "job7");
  EXPECT_EQ(JobDirectoryName("Llama_2.7b-a"), "Llama_2.7b-a");
  EXPECT_THAT(JobDirectoryName("../../etc"), StartsWith("job.._.._etc-"));
  EXPECT_THAT(JobDirectoryName(".."), StartsWith("job..-"));
  EXPECT_THAT(JobDirectoryName("-rf"), StartsWith("job-rf-"));
  EXPECT_THAT(JobDirectoryName("a/b"), StartsWith("a_b-"));
  EXPECT_NE(JobDirectoryName("a/b"), JobDirectoryName("a:b"));
  EXPECT_NE(JobDirectoryName("a/b"), JobDirectoryName("a_b"));
  std::string nul("a\0b", 3);
  EXPECT_THAT(JobDirectoryName(nul), StartsWith("a_b-"));
  EXPECT_LE(JobDirectoryName(std::string(256, 'x')).size(), 100u);
  EXPECT_NE(JobDirectoryName(std::string(101, 'x')), JobDirectoryName(std::string(102, 'x')));
  EXPECT_THAT(JobDirectoryName(""), StartsWith("job-"));
}

}  // namespace
}  // namespace phalanx::agent

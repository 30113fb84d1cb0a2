#include "agent/node/embedded_master.h"

#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

bool IsMine(const std::string& address) { return address == "10.0.0.1" || address == "127.0.0.1" || address == "::1"; }

LaunchConfig Config(Rendezvous rendezvous, int node_rank = -1) {
  LaunchConfig config;
  config.rendezvous = rendezvous;
  config.node_rank = node_rank;
  config.endpoint_host = "head";
  config.endpoint_port = 29400;
  return config;
}

TEST(Hosting, StandaloneHostsOnLoopback) {
  const Hosting hosting = DecideHosting(Config(Rendezvous::kStandalone), {}, IsMine);
  EXPECT_TRUE(hosting.host);
  EXPECT_EQ(hosting.bind_address, "127.0.0.1");
  EXPECT_EQ(hosting.dial_host, "127.0.0.1");
}

TEST(Hosting, TheMachineThatTheEndpointNamesHosts) {
  const Hosting here = DecideHosting(Config(Rendezvous::kC10d), {"192.0.2.1", "10.0.0.1"}, IsMine);
  EXPECT_TRUE(here.host);
  EXPECT_EQ(here.bind_address, "10.0.0.1");
  EXPECT_FALSE(DecideHosting(Config(Rendezvous::kC10d), {"192.0.2.1"}, IsMine).host);
  EXPECT_FALSE(DecideHosting(Config(Rendezvous::kC10d), {}, IsMine).host);
}

TEST(Hosting, OfSeveralMachinesThatAnEndpointNamesOneHosts) {
  const std::vector<std::string> orders[] = {{"2001:db8::1", "10.0.0.10", "10.0.0.9", "127.0.0.1"},
                                             {"10.0.0.9", "127.0.0.1", "2001:db8::1", "10.0.0.10"}};
  for (const std::vector<std::string>& addresses : orders) {
    EXPECT_EQ(HostsAddress(addresses), "10.0.0.9");
    for (const char* own : {"10.0.0.9", "10.0.0.10", "2001:db8::1"}) {
      const auto is_own = [own](const std::string& address) { return address == own || address == "127.0.0.1"; };
      const Hosting hosting = DecideHosting(Config(Rendezvous::kC10d), addresses, is_own);
      EXPECT_EQ(hosting.host, own == std::string("10.0.0.9"));
      EXPECT_EQ(hosting.bind_address, hosting.host ? own : "");
    }
  }
  EXPECT_EQ(HostsAddress({"::1", "2001:db8::2", "2001:db8::1"}), "2001:db8::1");
  EXPECT_EQ(HostsAddress({"::1", "127.0.0.1"}), "127.0.0.1");
  EXPECT_EQ(HostsAddress({}), "");
}

TEST(Hosting, StaticRankZeroHosts) {
  EXPECT_TRUE(DecideHosting(Config(Rendezvous::kStatic, 0), {"10.0.0.1"}, IsMine).host);
  EXPECT_FALSE(DecideHosting(Config(Rendezvous::kStatic, 1), {"10.0.0.1"}, IsMine).host);
  const Hosting behind_a_service = DecideHosting(Config(Rendezvous::kStatic, 0), {"192.0.2.1"}, IsMine);
  EXPECT_TRUE(behind_a_service.host);
  EXPECT_EQ(behind_a_service.bind_address, "0.0.0.0");
}

TEST(Hosting, IsHostSettlesIt) {
  LaunchConfig config = Config(Rendezvous::kC10d);
  config.is_host = false;
  EXPECT_FALSE(DecideHosting(config, {"10.0.0.1"}, IsMine).host);
  config.is_host = true;
  EXPECT_EQ(DecideHosting(config, {"2001:db8::1"}, IsMine).bind_address, "::");
}

// Debian's /etc/hosts: the machine's own name is 127.0.1.1 to itself alone.
TEST(Hosting, AMachineWhoseOwnNameIsALoopback) {
  const auto local = [](const std::string& address) { return address == "127.0.1.1" || address == "10.0.0.1"; };
  LaunchConfig config = Config(Rendezvous::kC10d);
  EXPECT_EQ(DecideHosting(config, {"127.0.1.1"}, local).bind_address, "127.0.1.1");  // nobody else is to come
  config.max_nodes = 2;
  const Hosting hosting = DecideHosting(config, {"127.0.1.1"}, local);
  EXPECT_EQ(hosting.bind_address, "0.0.0.0");
  EXPECT_EQ(hosting.dial_host, "127.0.1.1");
  EXPECT_EQ(DecideHosting(config, {"127.0.1.1", "10.0.0.1"}, local).bind_address, "10.0.0.1");
  EXPECT_EQ(AdvertisedAddress(config, "127.0.0.1", {"127.0.0.1", "::1", "169.254.3.4", "10.0.0.1"}), "10.0.0.1");
  EXPECT_EQ(AdvertisedAddress(config, "127.0.0.1", {"127.0.0.1"}), "127.0.0.1");
  EXPECT_EQ(AdvertisedAddress(config, "10.0.0.7", {"10.0.0.1"}), "10.0.0.7");
  for (const char* asked : {"localhost", "127.0.0.1"}) {  // loopback on purpose
    config.endpoint_host = asked;
    EXPECT_EQ(DecideHosting(config, {"127.0.0.1"}, IsMine).bind_address, "127.0.0.1");
    EXPECT_EQ(AdvertisedAddress(config, "127.0.0.1", {"10.0.0.1"}), "127.0.0.1");
  }
}

TEST(ReadyLine, SaysPortOrError) {
  EXPECT_EQ(std::get<MasterReady>(ParseReadyLine("ready 29400")).port, 29400);
  const auto in_use = std::get<MasterNotReady>(ParseReadyLine("error address-in-use port 29400 is taken"));
  EXPECT_TRUE(in_use.address_in_use);
  EXPECT_EQ(in_use.sentence, "port 29400 is taken");
  for (const char* garbage : {"", "ready", "ready 0", "ready 65536", "ready 1x", "hello", "error"}) {
    EXPECT_TRUE(std::holds_alternative<MasterNotReady>(ParseReadyLine(garbage))) << garbage;
  }
}

}  // namespace
}  // namespace phalanx::agent

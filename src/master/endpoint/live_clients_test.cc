#include "master/endpoint/live_clients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(LiveClients, ANodeIsLetInWhenItsOlderRanksAreGone) {
  LiveClients clients;
  EXPECT_THAT(clients.Join("a", {"10.0.0.1"}), IsEmpty()) << "no round lives";
  clients.Begin(7, 2);
  EXPECT_THAT(clients.Join("a", {"10.0.0.1", "10.1.0.1"}), ElementsAre("10.0.0.1", "10.1.0.1"));
  clients.Join("b", {"10.0.0.2"});
  EXPECT_THAT(clients.Began("a", 6), IsEmpty()) << "it still has the round before";
  EXPECT_THAT(clients.Began("a", 7), ElementsAre("10.0.0.1", "10.1.0.1"));
  EXPECT_THAT(clients.Began("a", 7), IsEmpty()) << "once";
  EXPECT_THAT(clients.Join("a", {"10.0.0.1"}), IsEmpty()) << "a new stream closes nothing";
  EXPECT_FALSE(clients.all());
  EXPECT_THAT(clients.Began("stranger", 7), IsEmpty());
  EXPECT_THAT(clients.Began("b", 7), ElementsAre("10.0.0.2"));
  EXPECT_TRUE(clients.all());
  clients.End();
  EXPECT_FALSE(clients.all());
  EXPECT_THAT(clients.Began("a", 0), IsEmpty());
}

TEST(LiveClients, AnAddressOfTwoNodesWaitsForBoth) {
  LiveClients clients;
  clients.Begin(7, 2);
  clients.Join("a", {"127.0.0.1", "127.0.0.2"});
  EXPECT_THAT(clients.Join("b", {"127.0.0.1", "127.0.0.3"}), ElementsAre("127.0.0.3"));
  EXPECT_THAT(clients.Began("b", 7), ElementsAre("127.0.0.3"));
  EXPECT_THAT(clients.Began("a", 7), ElementsAre("127.0.0.1", "127.0.0.2"));
}

// To a master that was started anew, members come one by one.
TEST(LiveClients, WhoComesBackMayCloseAnAddressAgain) {
  LiveClients clients;
  clients.Begin(7, 2);
  clients.Join("a", {"10.0.0.1"});
  EXPECT_THAT(clients.Began("a", 7), ElementsAre("10.0.0.1"));
  EXPECT_FALSE(clients.all());
  EXPECT_THAT(clients.Join("b", {"10.0.0.1"}), ElementsAre("10.0.0.1"));
  EXPECT_THAT(clients.Began("b", 7), ElementsAre("10.0.0.1"));
}

}  // namespace
}  // namespace phalanx::master

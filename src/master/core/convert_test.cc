#include "master/core/convert.h"

#include <gtest/gtest.h>

#include "base/grpc_peer.h"
#include "master/core/door.h"

namespace phalanx::master {
namespace {

TEST(PeerAddress, OfAllForms) {
  EXPECT_EQ(PeerAddress("ipv4:10.0.0.1:4711"), "10.0.0.1");
  EXPECT_EQ(PeerAddress("ipv6:%5B2001:db8::1%5D:4711"), "2001:db8::1");
  EXPECT_EQ(PeerAddress("ipv6:[::1]:4711"), "::1");
  EXPECT_EQ(PeerAddress("ipv6:%5Bfe80::1%25eth0%5D:4711"), "fe80::1");
  EXPECT_EQ(PeerAddress("ipv6:%5B::ffff:10.0.0.1%5D:4711"), "10.0.0.1");
  for (const char* other :
       {"", "ipv4:", "ipv6:", "ipv6:%5B", "unix:/tmp/x:1", "ipv4:nonsense:1", "ipv6:%5D:1", "ipv6:%5B%5D:1"}) {
    EXPECT_EQ(PeerAddress(other), "") << other;
    EXPECT_EQ(PeerHostPort(other), "") << other;
  }
  EXPECT_EQ(PeerHostPort("ipv4:10.0.0.1:4711"), "10.0.0.1:4711");
  EXPECT_EQ(PeerHostPort("ipv6:%5B2001:db8::1%5D:4711"), "[2001:db8::1]:4711");
  EXPECT_EQ(PeerHostPort("ipv6:%5B::ffff:10.0.0.1%5D:4711"), "10.0.0.1:4711") << "as the kernel's address is shown";
}

TEST(DetailJson, IsAlwaysJson) {
  Record record;
  record.detail = {{"number", int64_t{7}}, {"text", std::string("a\xff\"b")}};
  EXPECT_EQ(DetailJson(record), "{\"number\":7,\"text\":\"a\xef\xbf\xbd\\\"b\"}");
  EXPECT_EQ(DetailJson(Record{}), "{}");
}

TEST(StatusOfCheckpoints, IsWhatTheJobKnowsOfEachDirectory) {
  JobState state("job", DefaultSpec());
  CheckpointDir& dir = state.checkpoints.dirs["/data/run7"];
  EXPECT_EQ(StatusOf(state, 0).checkpoints(0).committed_step(), -1);
  dir.committed = SaveKey{1, 40};
  dir.stored = SaveKey{1, 20};
  dir.store.emplace().save = {1, 30};
  dir.store->begun_at = 1'000;
  const v1::StatusReply reply = StatusOf(state, 1'250);
  ASSERT_EQ(reply.checkpoints_size(), 1);
  const v1::CheckpointStatus& told = reply.checkpoints(0);
  EXPECT_EQ(told.dir(), "/data/run7");
  EXPECT_EQ(told.committed_step(), 40);
  EXPECT_EQ(told.stored_step(), 20);
  EXPECT_EQ(told.storing_step(), 30);
  EXPECT_EQ(told.storing_ms(), 250);
}

}  // namespace
}  // namespace phalanx::master

#include "master/core/convert.h"

#include <gtest/gtest.h>

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
  }
}

TEST(EventOf, BoundsWhatComesFromOutside) {
  v1::AgentMessage message;
  message.set_next_store_port(70'000);
  v1::WorkerExited& wire = *message.mutable_worker_exited();
  wire.set_error_json(std::string(kMaxErrorJsonBytes + 1, 'x'));
  wire.set_last_words(std::string(kMaxLastWordsBytes, 'x') + "the end");
  wire.set_killed_by(std::string(kMaxEndTextBytes + 1, 'x'));
  wire.set_end_note("a note");
  wire.set_peak_resident_bytes(-1);
  const auto exited = std::get<WorkerExited>(EventOf(7, message));
  EXPECT_EQ(exited.session, 7U);
  EXPECT_EQ(exited.next_store_port, 0U);
  EXPECT_TRUE(exited.exit.error_json.empty());
  EXPECT_EQ(exited.exit.last_words.size(), kMaxLastWordsBytes);
  EXPECT_TRUE(exited.exit.last_words.ends_with("the end"));
  EXPECT_TRUE(exited.exit.killed_by.empty());
  EXPECT_EQ(exited.exit.end_note, "a note");
  EXPECT_EQ(exited.exit.peak_resident_bytes, 0);

  message.mutable_leaving()->set_reason(std::string(511, 'x') + "\xc3\xa4");  // half a letter would break the stream
  message.mutable_leaving()->set_signal(1'000'000);
  const auto leaving = std::get<Leaving>(EventOf(7, message));
  EXPECT_EQ(leaving.why, std::string(511, 'x'));
  EXPECT_EQ(leaving.signal, 64);

  message.mutable_hello()->mutable_spec()->set_join_timeout_ms(INT64_MAX);
  message.mutable_hello()->mutable_spec()->set_last_call_ms(INT64_MIN);
  message.mutable_hello()->mutable_spec()->set_last_call_fixed(true);
  message.mutable_hello()->set_seen_epoch(UINT64_MAX);
  const AgentAttached attached = AttachedOf(7, message, "", true);
  EXPECT_LT(attached.info.spec.join_timeout_ms, INT64_MAX / 2);
  EXPECT_EQ(attached.info.spec.last_call_ms, 0);
  EXPECT_TRUE(MessageOf(attached.info.spec).last_call_fixed());
  EXPECT_LT(attached.info.seen_epoch, UINT64_MAX / 2);
}

TEST(EventOf, ProgressOfAnOlderAgentIsUnknownAndThatOfAnyAgentIsBounded) {
  v1::AgentMessage message;
  message.mutable_beat()->set_max_step(50);
  const Progress none = std::get<Beat>(EventOf(7, message)).progress;
  EXPECT_FALSE(none.step || none.from_step || none.caught_up_ms_ago);
  EXPECT_EQ(none.saving_ms, 0);

  v1::Progress& wire = *message.mutable_beat()->mutable_progress();
  wire.set_step(50);
  wire.set_from_step(0);
  wire.set_saving_ms(-1);
  wire.set_caught_up_ms_ago(INT64_MAX);
  const Progress told = std::get<Beat>(EventOf(7, message)).progress;
  EXPECT_EQ(told.step, 50);
  EXPECT_EQ(told.from_step, 0);
  EXPECT_EQ(told.saving_ms, 0);
  EXPECT_LT(*told.caught_up_ms_ago, INT64_MAX / 2);
  wire.set_step(INT64_MAX);
  wire.set_from_step(-5);
  const Progress wild = std::get<Beat>(EventOf(7, message)).progress;
  EXPECT_LT(*wild.step, INT64_MAX / 2);
  EXPECT_FALSE(wild.from_step);

  *message.mutable_first_step()->mutable_progress() = v1::Progress();
  message.mutable_first_step()->mutable_progress()->set_step(3);
  EXPECT_EQ(std::get<FirstStep>(EventOf(7, message)).progress.step, 3);
  message.mutable_worker_exited()->mutable_progress()->set_saving_ms(4);
  EXPECT_EQ(std::get<WorkerExited>(EventOf(7, message)).progress.saving_ms, 4);
}

TEST(SameToken, ComparesWhole) {
  EXPECT_TRUE(SameToken("secret", "secret"));
  for (const char* other : {"", "secre", "secrets", "Secret", "secresecre"}) EXPECT_FALSE(SameToken(other, "secret"));
}

TEST(DetailJson, IsAlwaysJson) {
  Record record;
  record.detail = {{"number", int64_t{7}}, {"text", std::string("a\xff\"b")}};
  EXPECT_EQ(DetailJson(record), "{\"number\":7,\"text\":\"a\xef\xbf\xbd\\\"b\"}");
  EXPECT_EQ(DetailJson(Record{}), "{}");
}

TEST(StatusOfCheckpoints, IsWhatTheJobKnowsOfEachDirectory) {
  JobState state("job", JobSpec());
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

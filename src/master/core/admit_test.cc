#include "master/core/admit.h"

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <variant>

#include "master/core/door.h"

namespace phalanx::master {
namespace {

v1::AgentMessage Admitted(v1::AgentMessage message) {
  Admit(message);
  return message;
}

TEST(Admit, BoundsAWorkersEnd) {
  v1::AgentMessage message;
  message.set_next_store_port(70'000);
  v1::WorkerExited& said = *message.mutable_worker_exited();
  said.set_error_json(std::string(kMaxErrorJsonBytes + 1, 'x'));
  said.set_last_words(std::string(kMaxLastWordsBytes, 'x') + "the end");
  said.set_killed_by(std::string(kMaxEndTextBytes + 1, 'x'));
  said.set_end_note("a note");
  said.set_blamed_on(std::string(kMaxEndTextBytes + 1, 'x'));
  said.set_peak_resident_bytes(-1);
  said.set_for_rescale(true);
  said.set_signal(9);
  const Event event = EventOf(7, message);
  const auto& heard = std::get<AgentSaid>(event);
  EXPECT_EQ(heard.session, 7U);
  EXPECT_EQ(heard.message.next_store_port(), 0U);
  const v1::WorkerExited& exit = heard.message.worker_exited();
  EXPECT_TRUE(exit.error_json().empty());
  EXPECT_EQ(exit.last_words().size(), kMaxLastWordsBytes);
  EXPECT_TRUE(exit.last_words().ends_with("the end"));
  EXPECT_TRUE(exit.killed_by().empty());
  EXPECT_EQ(exit.end_note(), "a note");
  EXPECT_TRUE(exit.blamed_on().empty());
  EXPECT_EQ(exit.peak_resident_bytes(), 0);
  EXPECT_FALSE(exit.for_rescale()) << "who was killed made room for nobody";
  said.clear_signal();
  EXPECT_TRUE(Admitted(message).worker_exited().for_rescale());
}

TEST(Admit, BoundsWhyANodeLeavesAndWhoIsAsked) {
  v1::AgentMessage message;
  message.mutable_leaving()->set_reason(std::string(511, 'x') + "\xc3\xa4");  // half a letter would break the stream
  message.mutable_leaving()->set_signal(1'000'000);
  EXPECT_EQ(Admitted(message).leaving().reason(), std::string(511, 'x'));
  EXPECT_EQ(Admitted(message).leaving().signal(), 64);
  message.mutable_store_refused()->set_sentence(std::string(513, 'x'));
  EXPECT_EQ(Admitted(message).store_refused().sentence().size(), 512U);
  message.mutable_console_lost()->set_sentence(std::string(513, 'x'));
  EXPECT_EQ(Admitted(message).console_lost().sentence().size(), 512U);
  message.mutable_safe_point()->set_asked(UINT32_MAX);
  EXPECT_EQ(Admitted(message).safe_point().asked(), kMaxLocalWorldSize);
}

TEST(Admit, BoundsWhatANodeTellsOfItsHardware) {
  v1::AgentMessage message;
  v1::NodeFact& said = *message.mutable_node_fact();
  said.set_kind(std::string(100, 'x'));
  said.set_device(std::string(1'000, 'x'));
  said.set_sentence(std::string(511, 'x') + "\xc3\xa4");
  said.set_source(std::string(1'000, 'x'));
  said.set_unix_ms(-1);
  said.GetReflection()->MutableUnknownFields(&said)->AddLengthDelimited(99, std::string(1'000, 'x'));
  const v1::NodeFact fact = Admitted(message).node_fact();
  EXPECT_EQ(fact.kind().size(), 32U);
  EXPECT_EQ(fact.device().size(), kMaxNameBytes);
  EXPECT_EQ(fact.sentence(), std::string(511, 'x'));
  EXPECT_EQ(fact.source().size(), 512U);
  EXPECT_EQ(fact.unix_ms(), 0);
  EXPECT_LE(fact.ByteSizeLong(), 2'000U);
}

TEST(Admit, BoundsAHelloAndKeepsNoToken) {
  v1::AgentMessage message;
  message.set_next_store_port(70'000);
  v1::Hello& said = *message.mutable_hello();
  said.set_software_version(std::string(kMaxNameBytes + 1, 'x'));
  for (size_t i = 0; i < kMaxInterfaceAddresses + 10; ++i) said.add_interface_addresses("10.0.0.1");
  said.set_seen_epoch(UINT64_MAX);
  said.mutable_spec()->set_join_timeout_ms(INT64_MAX);
  said.mutable_spec()->set_last_call_ms(INT64_MIN);
  said.mutable_spec()->set_last_call_fixed(true);
  for (v1::StartRound* round : {said.mutable_live_round(), said.mutable_last_round()}) {
    round->set_epoch(UINT64_MAX);
    round->set_restart_count(UINT32_MAX);
    round->set_restarts_used(UINT32_MAX);
    round->set_lives_without_step(UINT32_MAX);
    round->set_highest_step(INT64_MAX);
    round->set_reason(std::string(513, 'x'));
  }
  const AgentAttached attached = AttachedOf(7, message, "10.0.0.9");
  EXPECT_EQ(attached.session, 7U);
  EXPECT_EQ(attached.peer_address, "10.0.0.9");
  EXPECT_EQ(attached.message.next_store_port(), 70'000U) << "the door names it";
  const v1::Hello& hello = attached.hello();
  EXPECT_EQ(hello.software_version().size(), kMaxNameBytes);
  EXPECT_EQ(hello.interface_addresses_size(), static_cast<int>(kMaxInterfaceAddresses) + 1) << "the door sees it";
  EXPECT_LT(hello.seen_epoch(), UINT64_MAX / 2);
  EXPECT_LT(hello.spec().join_timeout_ms(), INT64_MAX / 2);
  EXPECT_EQ(hello.spec().last_call_ms(), 0);
  EXPECT_TRUE(hello.spec().last_call_fixed());
  for (const v1::StartRound& round : {hello.live_round(), hello.last_round()}) {
    EXPECT_LT(round.epoch(), UINT64_MAX / 2);
    EXPECT_LT(round.restart_count(), UINT32_MAX / 2);
    EXPECT_LT(round.restarts_used(), UINT32_MAX / 2);
    EXPECT_LT(round.lives_without_step(), UINT32_MAX / 2);
    EXPECT_LT(round.highest_step(), INT64_MAX / 2);
    EXPECT_EQ(round.reason().size(), 512U);
  }
  said.mutable_live_round()->set_highest_step(-1);
  EXPECT_FALSE(Admitted(message).hello().live_round().has_highest_step());
}

// A node's Hello and a worker's end are kept as they are: what this master does not know could be of any size.
TEST(Admit, KeepsNothingThatNobodyBounds) {
  v1::AgentMessage hello;
  hello.mutable_hello()->set_node_id("a");
  const size_t of_hello = Admitted(hello).ByteSizeLong();
  v1::AgentMessage exited;
  exited.mutable_worker_exited()->set_pid(7);
  const size_t of_end = Admitted(exited).ByteSizeLong();
  v1::AgentMessage report;
  report.mutable_checkpoint()->mutable_held()->add_saves()->set_dir("/checkpoints");
  const size_t of_report = Admitted(report).ByteSizeLong();
  v1::Hello& known = *hello.mutable_hello();
  for (google::protobuf::Message* part : std::initializer_list<google::protobuf::Message*>{
           &known, known.mutable_spec(), exited.mutable_worker_exited(),
           report.mutable_checkpoint()->mutable_held()->mutable_saves(0)}) {
    part->GetReflection()->MutableUnknownFields(part)->AddLengthDelimited(900, std::string(100'000, 'x'));
  }
  EXPECT_EQ(Admitted(hello).ByteSizeLong(), of_hello);
  EXPECT_EQ(Admitted(exited).ByteSizeLong(), of_end);
  EXPECT_EQ(Admitted(report).ByteSizeLong(), of_report);
}

TEST(Admit, ASpecWithoutValuesIsTheDefaultOne) {
  v1::JobSpec spec = DefaultSpec();
  spec.clear_restart_window_ms();
  spec.clear_join_timeout_ms();
  spec.clear_node_unit();
  AdmitSpec(spec);
  EXPECT_EQ(spec.SerializeAsString(), DefaultSpec().SerializeAsString());
  spec.set_rescale_grace_ms(0);
  spec.set_last_call_ms(0);
  AdmitSpec(spec);
  EXPECT_EQ(spec.rescale_grace_ms(), 0) << "not at all";
  EXPECT_EQ(spec.last_call_ms(), 0);
}

TEST(Admit, WhatNeitherChecksNorLeavesOutIsNoCheck) {
  v1::JobSpec spec = DefaultSpec();
  spec.mutable_check()->set_straggler_rule(v1::CheckSpec::MEDIAN_DEVIATION);
  AdmitSpec(spec);
  EXPECT_FALSE(spec.has_check());
  spec.mutable_check()->set_excludes_stragglers(true);  // as --watch-ranks finds them
  AdmitSpec(spec);
  EXPECT_EQ(spec.check().level(), 0U);
  EXPECT_EQ(spec.check().left_out_ms(), kDefaultLeftOutMs);
}

TEST(Admit, PacesAreBounded) {
  v1::AgentMessage message;
  v1::RankPace& wild = *message.mutable_beat()->add_paces();
  wild.set_steps(UINT64_MAX);
  wild.set_own_us(-1);
  wild.set_waited_us(INT64_MAX);
  const v1::RankPace& told = Admitted(message).beat().paces(0);
  EXPECT_LT(told.steps(), uint64_t{1} << 41);
  EXPECT_EQ(told.own_us(), 0);
  EXPECT_LT(told.waited_us(), INT64_MAX / 2);
  for (int i = 0; i < 100'000; ++i) message.mutable_beat()->add_paces();
  EXPECT_EQ(Admitted(message).beat().paces_size(), 0);
}

TEST(Admit, OfAnElasticConfigThatIsTooLongSoMuchIsKeptThatTheDoorSeesIt) {
  for (const char* character : {"x", "\xf0\x9f\x94\xa5"}) {
    v1::JobSpec spec = DefaultSpec();
    while (spec.elastic_config().size() < 500'000) *spec.mutable_elastic_config() += character;
    AdmitSpec(spec);
    EXPECT_LT(spec.elastic_config().size(), 4'200U);
    EXPECT_EQ(SpecFault(spec), "--elastic-config: at most 4096 bytes are allowed");
    EXPECT_TRUE(spec.ParseFromString(spec.SerializeAsString())) << "half a character is none";
  }
}

TEST(Admit, ProgressOfAnOlderAgentIsUnknownAndThatOfAnyAgentIsBounded) {
  v1::AgentMessage message;
  message.mutable_beat()->set_max_step(50);
  EXPECT_FALSE(Admitted(message).beat().has_progress());

  v1::Progress wild;
  wild.set_step(INT64_MAX);
  wild.set_from_step(-5);
  wild.set_saving_ms(-1);
  wild.set_caught_up_ms_ago(INT64_MAX);
  const auto check = [](const v1::Progress& told) {
    EXPECT_LT(told.step(), INT64_MAX / 2);
    EXPECT_TRUE(told.has_step());
    EXPECT_FALSE(told.has_from_step());
    EXPECT_EQ(told.saving_ms(), 0);
    EXPECT_LT(told.caught_up_ms_ago(), INT64_MAX / 2);
  };
  *message.mutable_beat()->mutable_progress() = wild;
  check(Admitted(message).beat().progress());
  *message.mutable_first_step()->mutable_progress() = wild;
  check(Admitted(message).first_step().progress());
  *message.mutable_worker_exited()->mutable_progress() = wild;
  check(Admitted(message).worker_exited().progress());

  v1::Progress& sane = *message.mutable_beat()->mutable_progress();
  sane.set_step(50);
  sane.set_from_step(0);
  EXPECT_EQ(Admitted(message).beat().progress().step(), 50);
  EXPECT_TRUE(Admitted(message).beat().progress().has_from_step());
}

TEST(Admit, TheStepsOfABeatAreBounded) {
  for (const int64_t wild : {INT64_MAX, INT64_MIN}) {
    v1::AgentMessage message;
    message.mutable_beat()->set_min_step(wild);
    message.mutable_beat()->set_max_step(wild);
    const v1::Beat beat = Admitted(message).beat();
    message.mutable_first_step()->set_step(wild);
    for (const int64_t step : {beat.min_step(), beat.max_step(), Admitted(message).first_step().step()}) {
      EXPECT_GE(step, 0);
      EXPECT_LE(step, int64_t{1} << 48);
    }
  }
}

TEST(Admit, WhatMemoryHoldsIsHeardWhereAllOfItIsSane) {
  v1::AgentMessage sane;
  v1::CheckpointsHeld& held = *sane.mutable_checkpoint()->mutable_held();
  held.add_saves()->set_dir("/checkpoints");
  held.mutable_saves(0)->mutable_save()->set_step(10);
  held.add_awaited()->set_dir("/checkpoints");
  held.mutable_awaited(0)->mutable_save()->set_step(10);
  held.mutable_source()->set_address("10.0.0.7");
  held.mutable_source()->set_port(4'000);
  held.mutable_source()->set_key(std::string(32, 'k'));
  held.set_unreadable(std::string(600, 'x'));
  EXPECT_EQ(Admitted(sane).checkpoint().held().unreadable().size(), 512U);
  const std::function<void(v1::CheckpointsHeld&)> spoilers[] = {
      [](auto& h) { h.mutable_awaited(0)->set_dir(""); },
      [](auto& h) { h.mutable_source()->set_port(65'536); },
      [](auto& h) { h.mutable_source()->set_address(std::string(65, '1')); },
      [](auto& h) { h.mutable_source()->set_key("short"); },
      [](auto& h) { h.mutable_awaited(0)->mutable_save()->set_step(-1); },
      [](auto& h) { h.mutable_saves(0)->mutable_form()->set_own(static_cast<v1::FileNeed>(9)); },
      [](auto& h) { h.mutable_saves(0)->mutable_form()->set_own(v1::EVERY_RANK); },
      [](auto& h) {
        for (int i = 0; i < 1'024; ++i) *h.add_awaited() = h.awaited(0);
      },
  };
  for (const auto& spoil : spoilers) {
    v1::AgentMessage message = sane;
    spoil(*message.mutable_checkpoint()->mutable_held());
    EXPECT_EQ(Admitted(message).body_case(), v1::AgentMessage::BODY_NOT_SET);
  }
  v1::AgentMessage opened;
  opened.mutable_checkpoint()->set_dir("/checkpoints");
  opened.mutable_checkpoint()->mutable_opened()->mutable_form()->set_own(v1::NOBODY);
  EXPECT_EQ(Admitted(opened).body_case(), v1::AgentMessage::BODY_NOT_SET);
}

TEST(Admit, WhatNoAgentWouldAskOfShardsIsNotHeard) {
  v1::AgentMessage sane;
  sane.mutable_shard_request()->set_dataset("data");
  sane.mutable_shard_request()->mutable_take();
  EXPECT_TRUE(Admitted(sane).has_shard_request());
  const std::function<void(v1::ShardRequest&)> spoilers[] = {
      [](auto& request) { request.clear_dataset(); },
      [](auto& request) { request.set_dataset(std::string(257, 'x')); },
      [](auto& request) { request.set_local_rank(4'096); },
      [](auto& request) { request.set_epoch((uint64_t{1} << 48) + 1); },
      [](auto& request) { request.mutable_done()->mutable_shards()->Resize(65, 1); },
      [](auto& request) { request.mutable_back()->mutable_shards()->Resize(65, 1); },
      [](auto& request) { request.mutable_restore()->mutable_undone_gaps()->Resize(8'193, 1); },
  };
  for (const auto& spoil : spoilers) {
    v1::AgentMessage message = sane;
    spoil(*message.mutable_shard_request());
    EXPECT_EQ(Admitted(message).body_case(), v1::AgentMessage::BODY_NOT_SET);
  }
}

TEST(Admit, WhatNoAgentWouldTellOfCheckpointsIsNotHeard) {
  v1::AgentMessage message;
  v1::CheckpointReport& report = *message.mutable_checkpoint();
  report.set_dir("relative");
  report.mutable_sealed()->mutable_save()->set_step(10);
  EXPECT_EQ(Admitted(message).body_case(), v1::AgentMessage::BODY_NOT_SET);
  report.set_dir("/checkpoints");
  EXPECT_TRUE(Admitted(message).has_checkpoint());
  v1::SharedValue& value = *report.mutable_sealed()->add_values();
  value.set_name(std::string(256, 'x'));
  EXPECT_TRUE(Admitted(message).has_checkpoint());
  value.set_name(std::string(257, 'x'));
  EXPECT_EQ(Admitted(message).body_case(), v1::AgentMessage::BODY_NOT_SET);
  value.set_name("x");
  for (int i = 1; i < 128; ++i) *report.mutable_sealed()->add_values() = report.sealed().values(0);
  EXPECT_TRUE(Admitted(message).has_checkpoint());
  *report.mutable_sealed()->add_values() = report.sealed().values(0);
  EXPECT_EQ(Admitted(message).body_case(), v1::AgentMessage::BODY_NOT_SET);
  report.mutable_skipped()->set_why(std::string(513, 'x'));
  EXPECT_EQ(Admitted(message).checkpoint().skipped().why().size(), 512U);
}

TEST(Admit, AFailureFromAJournalIsBoundedAndJudgedAnew) {
  v1::Failure kept;
  kept.set_rank(3);
  kept.mutable_exited()->set_exit_code(1);
  kept.mutable_exited()->set_last_words("Connection reset by peer");
  kept.mutable_exited()->set_end_note(std::string(kMaxEndTextBytes + 1, 'x'));
  const Failure failure = AdmitFailure(kept, "a");
  EXPECT_EQ(failure.told.rank(), 3U);
  EXPECT_EQ(failure.node, "a");
  EXPECT_TRUE(failure.collateral);
  EXPECT_TRUE(failure.told.exited().end_note().empty());
}

}  // namespace
}  // namespace phalanx::master

// A node's checkpoints in a replay log: each event, each decision, and a job that saves, stores and restores.
#include "agent/checkpoint/saving.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/checkpoint/checkpoints.h"
#include "agent/replay/events.h"
#include "agent/replay/frames.h"
#include "agent/replay/player.h"
#include "replay/text.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;

constexpr char kDir[] = "/data/run";

v1::CheckpointOrder Order(int64_t step, uint64_t epoch = 1) {
  v1::CheckpointOrder order;
  order.set_dir(kDir);
  order.mutable_save()->set_epoch(epoch);
  order.mutable_save()->set_step(step);
  order.set_reason("because");
  return order;
}

// An image of a save of epoch 1, of a world of two.
HeldPage Page(uint32_t rank, int64_t step) { return {kDir, kFullForm, 0, {1, step}, rank, 2, true}; }

v1::Shard Shard(int32_t rank) {
  v1::Shard shard;
  shard.set_rank(rank);
  shard.set_file(fmt::format("rank-{}.pt", rank));
  shard.set_bytes(4'096);
  return shard;
}

// One of each kind, with every field set.
std::vector<saving::Event> Events() {
  v1::CheckpointOrder dropped = Order(3);
  dropped.mutable_dropped();
  v1::FoundOnDisk found;
  found.set_step(10);
  HeldPage shared = Page(1, 10);
  shared.page = kMainPage;
  shared.form = kDdpForm;
  return {
      saving::RoundBegun{2, 1},
      saving::Scanned{2, {Page(0, 10), shared}},
      saving::Attached{},
      saving::Ordered{dropped},
      saving::Opened{1, kDir, {kDcpForm, true, 3, 100, {"latest", "last"}}},
      saving::Sealed{1, kDir, true, 12, true},
      saving::Skipped{1, kDir, 12, "no slot: \xff"},
      saving::WaitAsked{1, 7, kDir, 12, true},
      saving::RestoreAsked{1, 8, kDir},
      saving::RankGone{1},
      saving::JobEnded{},
      saving::Leaving{},
      saving::TidyAsked{},
      saving::Ended{{Page(0, 10)}, true},
      saving::Found{2, kDir, {found, "EIO"}},
      saving::Checked{2, kDir, "step-10", "a CRC", true},
      saving::FolderMade{kDir, {1, 10}, "step-10", "ENOSPC"},
      saving::ImagesWritten{kDir, {1, 10}, "10.1", {Shard(0), Shard(1)}, "ENOSPC"},
      saving::StepClosed{kDir, {1, 10}, "ENOSPC"},
      saving::Tidied{kDir, "EACCES"},
      saving::Archived{kDir, {10, 20}, "EROFS"},
      saving::Fetched{1, kDir, 2, 3, "ECONNREFUSED"},
      saving::ImagesAsked{1, 9, kDir, 2, {{0, {}}, {5, checkpoint::ByteRanges({{1, 2}, {9, 12}})}}},
      saving::RestoreDone{1, kDir, 2},
      saving::MasterSilent{"away"},
  };
}

saving::Event Back(const saving::Event& event) {
  v1::AgentEvent wire;
  EXPECT_TRUE(wire.ParseFromString(MessageOf(AnyEvent(event)).SerializeAsString()));
  const StatusOr<AnyEvent> back = EventOf(wire);
  EXPECT_TRUE(back.ok()) << back.status();
  return back.ok() ? std::get<saving::Event>(*back) : saving::Event();
}

TEST(SavingReplay, EveryEventComesBackAsItWas) {
  const std::vector<saving::Event> events = Events();
  EXPECT_EQ(events.size(), std::variant_size_v<saving::Event>);
  for (size_t i = 0; i < events.size(); ++i) {
    ASSERT_EQ(events[i].index(), i) << "one of each kind, in their order";
    const saving::Event back = Back(events[i]);
    ASSERT_EQ(back.index(), i);
    EXPECT_EQ(MessageOf(AnyEvent(back)).SerializeAsString(), MessageOf(AnyEvent(events[i])).SerializeAsString()) << i;
  }
  EXPECT_EQ(std::get<saving::Opened>(Back(events[4])).options, std::get<saving::Opened>(events[4]).options);
  EXPECT_EQ(std::get<saving::Skipped>(Back(events[6])).why, "no slot: \xff");
  const HeldPage shared = std::get<saving::Scanned>(Back(events[1])).pages.at(1);
  EXPECT_EQ(shared.page, kMainPage);
  EXPECT_EQ(shared.form, kDdpForm);
  EXPECT_EQ(shared.save, (SaveKey{1, 10}));
  EXPECT_EQ(shared.world_size, 2U);
  EXPECT_TRUE(shared.committed);
}

void IsRefused(const v1::SavingEvent& event) {
  v1::AgentEvent wire;
  *wire.mutable_saving() = event;
  EXPECT_THAT(Message(EventOf(wire).status()), HasSubstr("contradicts itself")) << event.ShortDebugString();
}

TEST(SavingReplay, WhatNoAgentSeesIsRefused) {
  v1::SavingEvent wire;
  IsRefused(wire);
  wire.mutable_rank_gone()->set_local_rank(UINT32_MAX);
  IsRefused(wire);
  for (const char* const dir : {"", "data/run"}) {
    wire.mutable_restore_asked()->set_dir(dir);
    IsRefused(wire);
  }
  wire.mutable_restore_asked()->set_dir(std::string(5'000, '/'));
  IsRefused(wire);
  for (const int64_t step : {INT64_MIN, int64_t{-1}, INT64_MAX}) {
    wire.mutable_sealed()->set_dir(kDir);
    wire.mutable_sealed()->set_step(step);
    IsRefused(wire);
    wire.mutable_skipped()->set_dir(kDir);
    wire.mutable_skipped()->set_step(step);
    IsRefused(wire);
    wire.mutable_wait_asked()->set_dir(kDir);
    wire.mutable_wait_asked()->set_step(step);
    IsRefused(wire);
  }
  const auto opened = [&wire]() -> v1::SavingEvent::Opened& {
    wire.mutable_opened()->Clear();
    wire.mutable_opened()->set_dir(kDir);
    return *wire.mutable_opened();
  };
  opened().set_local_rank(4'096);
  IsRefused(wire);
  opened().mutable_form()->set_own(v1::EVERY_RANK);
  IsRefused(wire);
  opened().set_keep_last(UINT32_MAX);
  IsRefused(wire);
  opened().set_keep_every(-1);
  IsRefused(wire);
  v1::SavingEvent::Opened& many = opened();
  for (int i = 0; i < 9; ++i) many.add_trackers("tracker");
  IsRefused(wire);
  wire.mutable_scanned()->add_pages()->mutable_form()->set_own(v1::NOBODY);
  IsRefused(wire);
  wire.mutable_ended()->add_in_memory()->mutable_form()->set_own(static_cast<v1::FileNeed>(-1));
  IsRefused(wire);
}

// A node of two ranks, recorded as its shell does it.
struct Recorded {
  Recorded() {
    *start.mutable_agent() = StartOf({}, "node", "host");
    CoreState state;
    const Prepared prepared{2, 0};
    frames.push_back(EventFrame(now, prepared));
    frames.push_back(DecisionsFrame(Step(state, prepared, now)));
  }

  void On(const saving::Event& event) {
    frames.push_back(EventFrame(++now, event));
    const saving::Decided decided = saving::Step(checkpoints, event);
    frames.push_back(DecisionsFrame(decided));
    for (const v1::ReplayDecision& each : frames.back().decisions().decisions()) said.push_back(each.action());
  }

  void OnOrder(const v1::CheckpointOrder& order) { On(saving::Ordered{order}); }

  v1::ReplayStart start;
  NodeCheckpoints checkpoints{2};
  Instant now = 1'000;
  std::vector<v1::ReplayFrame> frames;  // event and decisions in turn
  std::vector<std::string> said;        // all decisions
};

// Both ranks open the directory, once more as one of another kind in vain, and step 10 comes to storage.
void Save(Recorded& node) {
  node.On(saving::RoundBegun{1, 0});
  node.On(saving::Scanned{1, {}});
  const CheckpointOptions options{kFullForm, false, 2, 0, {}};
  for (const int rank : {0, 1}) node.On(saving::Opened{rank, kDir, options});
  node.On(saving::Opened{1, kDir, {kDdpForm, false, 0, 0, {}}});
  for (const int rank : {0, 1}) node.On(saving::Sealed{rank, kDir, false, 10, true});
  node.On(saving::WaitAsked{0, 3, kDir, 10, true});
  v1::CheckpointOrder order = Order(10);
  order.mutable_committed();
  node.OnOrder(order);
  order.mutable_prepare_store();
  node.OnOrder(order);
  node.On(saving::FolderMade{kDir, {1, 10}, "step-10", ""});
  order.mutable_store_shards()->set_name("step-10");
  node.OnOrder(order);
  node.On(saving::ImagesWritten{kDir, {1, 10}, "10", {Shard(0), Shard(1)}, ""});
  order.mutable_write_manifest()->set_name("step-10");
  node.OnOrder(order);
  node.On(saving::StepClosed{kDir, {1, 10}, ""});
  node.On(saving::Archived{kDir, {10}, "EROFS"});
  order.mutable_store_ended()->set_stored(true);
  node.OnOrder(order);
}

// A rank is killed; the next round goes on from memory, and the job ends.
void Restore(Recorded& node) {
  for (const int rank : {1, 0}) node.On(saving::RankGone{rank});
  node.On(saving::RoundBegun{2, 0});
  node.On(saving::Scanned{2, {Page(0, 10), Page(1, 10)}});
  node.On(saving::Opened{0, kDir, {kFullForm, false, 2, 0, {}}});
  node.On(saving::RestoreAsked{0, 4, kDir});
  v1::CheckpointOrder order = Order(10);
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  node.OnOrder(order);
  node.On(saving::JobEnded{});
  node.On(saving::TidyAsked{});
  node.On(saving::Tidied{kDir, "EACCES"});
  node.On(saving::Ended{{Page(0, 10), Page(1, 10)}, false});
}

Recorded Life() {
  Recorded node;
  Save(node);
  Restore(node);
  return node;
}

std::string Play(const Recorded& node) {
  StatusOr<std::unique_ptr<replay::Player>> player = PlayAgent(node.start);
  if (!player.ok()) return Message(player.status());
  for (size_t i = 0; i + 1 < node.frames.size(); i += 2) {
    const StatusOr<v1::ReplayDecisions> replayed = (*player)->Step(node.frames[i].event());
    if (!replayed.ok()) return Message(replayed.status());
    const std::optional<int> difference = replay::FirstDifference(node.frames[i + 1].decisions(), *replayed);
    if (difference) return fmt::format("step {}, decision {}", i / 2, *difference);
  }
  return "same";
}

TEST(SavingReplay, SavesAndRestoresAreDecidedTheSameAgain) {
  const Recorded node = Life();
  EXPECT_EQ(Play(node), "same");
  EXPECT_THAT(node.said, testing::IsSupersetOf({
                             HasSubstr("refuse: it was opened as of kind"),
                             HasSubstr("mark step 10 of epoch 1 of /data/run as committed"),
                             HasSubstr("make a folder in /data/run for step 10 of epoch 1"),
                             HasSubstr("write images of step 10 of epoch 1 to step-10"),
                             HasSubstr("answer wait 3 of local rank 0: stored"),
                             HasSubstr("answer restore 4 of local rank 0 in /data/run: dir: \"/data/run\" save {"),
                             HasSubstr("tidy up /data/run"),
                             HasSubstr("say: checkpoint: EACCES"),
                             HasSubstr("remove the memory"),
                         }));
}

// What one event of the life is, from 0, counted with Prepared.
template <typename OneEvent>
size_t StepOf(const Recorded& node, const std::string& decides) {
  for (size_t i = 0; i + 1 < node.frames.size(); i += 2) {
    const v1::ReplayDecisions& decisions = node.frames[i + 1].decisions();
    const bool is_it = std::any_of(decisions.decisions().begin(), decisions.decisions().end(),
                                   [&](const auto& each) { return each.action().find(decides) != std::string::npos; });
    const StatusOr<AnyEvent> event = EventOf(node.frames[i].event().agent());
    const auto* saving = event.ok() ? std::get_if<saving::Event>(&*event) : nullptr;
    if (is_it && saving != nullptr && std::holds_alternative<OneEvent>(*saving)) return i / 2;
  }
  ADD_FAILURE() << "nothing decides to " << decides;
  return 0;
}

v1::SavingEvent& EventAt(Recorded& node, size_t step) {
  return *node.frames.at(2 * step).mutable_event()->mutable_agent()->mutable_saving();
}

// What is told of the life where one thing in it is another.
template <typename Change>
std::string PlayOther(const Recorded& whole, Change change) {
  Recorded node = whole;
  change(node);
  return Play(node);
}

TEST(SavingReplay, OneOtherEventOrDecisionShows) {
  const Recorded whole = Life();
  const size_t sealed = StepOf<saving::Sealed>(whole, "sealed {");
  const auto another_step = [&](Recorded& node) { EventAt(node, sealed).mutable_sealed()->set_step(11); };
  EXPECT_EQ(PlayOther(whole, another_step), fmt::format("step {}, decision 0", sealed));
  const auto to_memory_only = [&](Recorded& node) {
    for (const size_t step : {sealed - 1, sealed}) EventAt(node, step).mutable_sealed()->set_store(false);
  };
  EXPECT_EQ(PlayOther(whole, to_memory_only), fmt::format("step {}, decision 0", sealed));
  const size_t committed = StepOf<saving::Ordered>(whole, "as committed");
  const auto an_older_one = [&](Recorded& node) {
    EventAt(node, committed).mutable_ordered()->mutable_save()->set_step(9);
  };
  EXPECT_EQ(PlayOther(whole, an_older_one), fmt::format("step {}, decision 0", committed));
  const size_t scanned = StepOf<saving::Scanned>(whole, "ranks: 1");
  const auto an_image_less = [&](Recorded& node) {
    EventAt(node, scanned).mutable_scanned()->mutable_pages()->RemoveLast();
  };
  EXPECT_EQ(PlayOther(whole, an_image_less), fmt::format("step {}, decision 0", scanned));
  const size_t ended = StepOf<saving::Ended>(whole, "remove the memory");
  const auto another_decision = [&](Recorded& node) {
    node.frames.at(2 * ended + 1).mutable_decisions()->mutable_decisions(0)->set_action("remove the memoir");
  };
  EXPECT_EQ(PlayOther(whole, another_decision), fmt::format("step {}, decision 0", ended));
  const auto one_rank = [](Recorded& node) {
    node.frames[0].mutable_event()->mutable_agent()->mutable_prepared()->set_local_world_size(1);
  };
  EXPECT_THAT(PlayOther(whole, one_rank), HasSubstr("decision 0"));
}

TEST(SavingReplay, EachActionIsTextWithAllThatItDoes) {
  v1::CheckpointReport report;
  report.set_dir(kDir);
  const SaveKey save{4, 7};
  v1::CheckpointOrder elsewhere;
  SetKey(*elsewhere.mutable_save(), save);
  elsewhere.mutable_restore()->add_elsewhere()->set_rank(-1);
  elsewhere.mutable_restore()->mutable_elsewhere(0)->add_sources();
  const std::vector<std::pair<CheckpointAction, std::string>> all = {
      {TellMaster{report}, "tell the master dir: \"/data/run\""},
      {ScanMemory{4, "/c"}, "look at memory for epoch 4, and at older saves of /c"},
      {MarkCommitted{kDir, save}, "mark step 7 of epoch 4 of /data/run as committed"},
      {MarkDropped{kDir, save}, "mark step 7 of epoch 4 of /data/run as dropped"},
      {HoldSave{kDir, save}, "hold the images of step 7 of epoch 4 of /data/run"},
      {ReleaseSave{kDir, save}, "release the images of step 7 of epoch 4 of /data/run"},
      {AnswerWait{1, 3, "failed", "why"}, "answer wait 3 of local rank 1: failed, why"},
      {AnswerRestore{1, 3, kDir, {}, ""}, "answer restore 3 of local rank 1 in /data/run: "},
      {AnswerImages{1, 3, kDir, save, {{0, {}}, {5, checkpoint::ByteRanges({{0, 7}})}}, "gone"},
       "refuse images [0, 5: 7 bytes] of step 7 of epoch 4 in /data/run for local rank 1, request 3: gone"},
      {FindSteps{kDir, {"a", "b"}, 4, {"b"}},
       "find the newest step in /data/run for epoch 4, but for [a b], of which are doubted [b]"},
      {CheckStep{kDir, "step-7", 4, "/far"}, "check step-7 in /data/run for epoch 4, and in its archive /far"},
      {FetchImages{kDir, elsewhere, 5, {}}, "fetch of step 7 of /data/run for epoch 5 the images [-1 of 1]"},
      {ForgetAhead{kDir}, "forget what was read ahead of /data/run"},
      {MakeStepFolder{kDir, save}, "make a folder in /data/run for step 7 of epoch 4"},
      {WriteImages{kDir, save, "step-7", true},
       "write images of step 7 of epoch 4 to step-7 in /data/run, the shared one too"},
      {CloseStep{kDir, {}, {kFullForm, false, 2, 100, {"latest"}}},
       "close a step in /data/run: ; keep the last 2, and each 100th; trackers [latest]"},
      {ArchiveSteps{kDir, {kFullForm, false, 0, 0, {"latest"}, "/far", 100}},
       "copy what is due of /data/run to /far, each 100th; trackers [latest]"},
      {TidyUp{kDir}, "tidy up /data/run"},
      {RemoveMemory{}, "remove the memory"},
      {LeaveMemory{"step 7"}, "leave the memory, for step 7"},
      {SayCheckpoint{"text"}, "say: text"},
  };
  EXPECT_EQ(all.size(), std::variant_size_v<CheckpointAction>);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].first.index(), i) << "one of each kind, in their order";
    EXPECT_EQ(DecisionsOf(saving::Decided{"", {all[i].first}}).decisions(0).action(), all[i].second);
  }
  const auto ahead = DecisionsOf(saving::Decided{"", {FetchImages{kDir, elsewhere, 5, {}, true}}});
  EXPECT_EQ(ahead.decisions(0).action(), "fetch ahead of step 7 of /data/run for epoch 5 the images [-1 of 1]");
  const auto refused = DecisionsOf(saving::Decided{"", {AnswerRestore{1, 3, kDir, {}, "EIO"}}});
  EXPECT_EQ(refused.decisions(0).action(), "refuse restore 3 of local rank 1 in /data/run: EIO");
}

}  // namespace
}  // namespace phalanx::agent

#include "agent/checks/lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace phalanx::agent::checks {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

template <typename Wanted>
Wanted Parsed(const std::string& line) {
  const auto event = ParseLine(line);
  EXPECT_TRUE(event.ok()) << event.status();
  const Wanted* const wanted = event.ok() ? std::get_if<Wanted>(&*event) : nullptr;
  EXPECT_NE(wanted, nullptr) << line;
  return wanted == nullptr ? Wanted() : *wanted;
}

std::string Fault(const std::string& line) {
  const auto event = ParseLine(line);
  return event.ok() ? "" : Message(event.status());
}

TEST(CheckLines, AResultWithItsValues) {
  const auto told = Parsed<checking::CheckTold>(
      R"({"type":"result","id":7,"check":"tcp","outcome":"failed","sentence":"tcp with b: refused","took_us":12,)"
      R"("values":[{"name":"latency","unit":"us","value":30,"better":"less"},)"
      R"({"name":"rate","unit":"MB/s","value":900,"better":"more"},{"name":"offset","unit":"us","value":-3}]})");
  EXPECT_EQ(told.id, 7u);
  EXPECT_EQ(told.result.check(), "tcp");
  EXPECT_EQ(told.result.outcome(), v1::CheckResult::FAILED);
  EXPECT_EQ(told.result.sentence(), "tcp with b: refused");
  EXPECT_EQ(told.result.took_us(), 12);
  ASSERT_THAT(told.result.values(), SizeIs(3));
  EXPECT_EQ(told.result.values(0).better(), v1::CheckValue::LESS);
  EXPECT_EQ(told.result.values(1).value(), 900);
  EXPECT_EQ(told.result.values(2).better(), v1::CheckValue::NEITHER);
}

TEST(CheckLines, TheOtherLines) {
  Parsed<checking::HelperReady>(R"({"type":"ready","torch":null})");
  EXPECT_EQ(Parsed<checking::CheckBegun>(R"({"type":"begun","id":3,"check":"matmul"})").check, "matmul");
  const auto done = Parsed<checking::CheckDone>(R"({"type":"done","id":3,"ended":"ended after 30 s in tcp"})");
  EXPECT_EQ(done.id, 3u);
  EXPECT_EQ(done.ended, "ended after 30 s in tcp");
}

TEST(CheckLines, WhatIsNoLineIsRefusedWithItsReason) {
  EXPECT_THAT(Fault("hello"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(Fault("[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(Fault(R"({"type":"other"})"), HasSubstr("expected ready, begun, result or done"));
  EXPECT_THAT(Fault(R"({"type":"result","outcome":"good"})"), HasSubstr("expected passed, failed or skipped"));
  EXPECT_THAT(Fault(R"({"type":"result","outcome":"passed","values":[{"value":1.5}]})"), HasSubstr("an integer"));
  EXPECT_THAT(Fault(R"({"type":"result","outcome":"passed","values":[1]})"), HasSubstr("expected objects"));
  EXPECT_THAT(Fault(R"({"type":"done","id":99999999999999999999})"), HasSubstr("an integer"));
  EXPECT_THAT(Fault(std::string(kMaxLineBytes + 1, ' ')), HasSubstr("a line of more than"));
}

TEST(CheckLines, LongTextsAreCut) {
  const auto told = Parsed<checking::CheckTold>(R"({"type":"result","id":1,"outcome":"passed","sentence":")" +
                                                std::string(5'000, 'x') + "\"}");
  EXPECT_EQ(told.result.sentence().size(), 512u);
}

TEST(CheckLines, AnOrderIsOneLineWithAllThatTheHelperNeeds) {
  v1::CheckOrder order;
  order.set_kind(v1::CheckOrder::PAIR);
  order.set_group_rank(1);
  order.set_group_size(2);
  order.set_store_address("10.0.0.1");
  order.set_store_port(4711);
  order.add_names("a");
  order.add_names("b\n");
  order.set_limit_ms(30'000);
  NodeSetup setup;
  setup.address = "10.0.0.2";
  setup.programs = {"/opt/check"};
  setup.nics = {"eth1", "eth2"};
  setup.has_switchbox = true;
  const std::string line = OrderLine(9, order, setup);
  EXPECT_EQ(line, R"({"type":"order","id":9,"kind":"pair","group_rank":1,"group_size":2,"store":["10.0.0.1",4711],)"
                  R"("address":"10.0.0.2","peers":["a","b\n"],"limit_ms":30000,"directory":"","programs":[],)"
                  R"("nics":["eth1","eth2"],"switchbox":null})"
                  "\n");
  order.set_group_size(8);
  EXPECT_THAT(OrderLine(9, order, setup), HasSubstr(R"("peers":[])"));
  order.set_kind(v1::CheckOrder::ALONE);
  order.clear_store_address();
  EXPECT_THAT(OrderLine(9, order, setup), HasSubstr(R"("store":null)"));
  EXPECT_THAT(OrderLine(9, order, setup), HasSubstr(R"("programs":["/opt/check"])"));
  EXPECT_THAT(OrderLine(9, order, setup),
              HasSubstr(R"("switchbox":{"source":"nvidia","pairs":[[0,1],[2,4],[3,5],[6,7]],)"
                        R"("min_bandwidth_mb_s":10000,"min_channels":2})"));
}

}  // namespace
}  // namespace phalanx::agent::checks

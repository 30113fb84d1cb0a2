#include "store/mux.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace phalanx::store {
namespace {

using Kind = Mux::Event::Kind;
constexpr uint64_t kEpoch = 5;
enum Frame : uint8_t { kOpen = 1, kBytes = 2, kTaken = 3, kClosed = 4 };

std::string Head(int kind, ClientNumber client, uint32_t amount) {
  std::string bytes = {static_cast<char>(kind), '\0'};
  bytes.append(reinterpret_cast<const char*>(&client), sizeof client);
  bytes.append(reinterpret_cast<const char*>(&amount), sizeof amount);
  return bytes;
}

std::string Greeting(uint64_t epoch = kEpoch) { return std::string(Mux(Mux::End::kRelay, epoch).Output()); }

struct Seen {
  Kind kind;
  ClientNumber client;
  std::string bytes;
  bool operator==(const Seen&) const = default;
};

// Gives `bytes` in pieces of `step`; bytes of one client that come in a row are one event here.
std::vector<Seen> Feed(Mux& mux, std::string_view bytes, size_t step = SIZE_MAX) {
  std::vector<Seen> seen;
  for (size_t at = 0; at < bytes.size(); at += std::min(step, bytes.size() - at)) {
    std::string_view piece = bytes.substr(at, step);
    for (Mux::Event event = mux.Take(piece); event.kind != Kind::kMore; event = mux.Take(piece)) {
      const bool goes_on = event.kind == Kind::kBytes && !seen.empty() && seen.back().kind == Kind::kBytes &&
                           seen.back().client == event.client;
      if (goes_on) {
        seen.back().bytes += event.bytes;
      } else {
        seen.push_back({event.kind, event.client, std::string(event.bytes)});
      }
    }
  }
  return seen;
}

std::string TakeOutput(Mux& mux) {
  std::string output(mux.Output());
  mux.Sent(output.size());
  return output;
}

// One that has been greeted, with nothing to send.
Mux Greeted(Mux::End end) {
  Mux mux(end, kEpoch);
  EXPECT_EQ(Feed(mux, Greeting()), (std::vector<Seen>{{Kind::kGreeted, 0, ""}}));
  TakeOutput(mux);
  return mux;
}

const char* WhyBroken(Mux::End end, const std::string& bytes) {
  Mux mux = Greeted(end);
  if (end == Mux::End::kRelay) {
    EXPECT_EQ(mux.Open(), std::optional<ClientNumber>(0));
  }
  const std::vector<Seen> seen = Feed(mux, bytes);
  EXPECT_TRUE(!seen.empty() && seen.back().kind == Kind::kViolation) << bytes.size();
  EXPECT_TRUE(Feed(mux, Head(kOpen, 1, 0)).empty()) << "nothing is heard behind a violation";
  EXPECT_FALSE(mux.WantsInput());
  return mux.violation();
}

// ---- greeting

TEST(MuxTest, GreetsAsThePageSays) {
  const std::string bytes = Greeting();
  EXPECT_EQ(bytes, std::string("\xf0PHXRLY\x01\x05\0\0\0\0\0\0\0", 16));
  EXPECT_EQ(bytes.front(), Mux::kFirstByte);
  Mux store(Mux::End::kStore, kEpoch);
  EXPECT_EQ(store.Output(), "") << "the relay speaks first";
  for (const char byte : bytes.substr(0, 15)) {
    EXPECT_TRUE(Feed(store, std::string(1, byte)).empty());
    EXPECT_FALSE(store.greeted());
  }
  EXPECT_EQ(Feed(store, bytes.substr(15)), (std::vector<Seen>{{Kind::kGreeted, 0, ""}}));
  EXPECT_TRUE(store.greeted());
  EXPECT_EQ(store.Output(), bytes);
}

TEST(MuxTest, KnowsAStrangerByItsFirstWrongByte) {
  for (const auto& [at, why] : {std::pair<size_t, const char*>{1, "greets otherwise"},
                                {7, "greets otherwise"},
                                {8, "another round"},
                                {15, "another round"}}) {
    std::string bytes = Greeting();
    ++bytes[at];
    Mux mux(Mux::End::kStore, kEpoch);
    EXPECT_TRUE(Feed(mux, bytes.substr(0, at)).empty());
    EXPECT_EQ(Feed(mux, bytes.substr(at, 1)), (std::vector<Seen>{{Kind::kViolation, 0, ""}})) << at;
    EXPECT_NE(std::string_view(mux.violation()).find(why), std::string_view::npos) << mux.violation();
    EXPECT_EQ(mux.Output(), "");
  }
}

// ---- clients

TEST(MuxTest, CarriesClientsBothWaysHoweverTheBytesAreCut) {
  for (const size_t step : {1, 3, 8, 9, 1000}) {
    Mux relay(Mux::End::kRelay, kEpoch);
    Mux store(Mux::End::kStore, kEpoch);
    const ClientNumber a = *relay.Open();
    const ClientNumber b = *relay.Open();
    relay.Send(a, "from a");
    relay.Send(b, std::string(70, 'b'));
    relay.Close(a);
    EXPECT_EQ(Feed(store, TakeOutput(relay), step), (std::vector<Seen>{{Kind::kGreeted, 0, ""},
                                                                       {Kind::kOpened, a, ""},
                                                                       {Kind::kOpened, b, ""},
                                                                       {Kind::kBytes, a, "from a"},
                                                                       {Kind::kBytes, b, std::string(70, 'b')},
                                                                       {Kind::kClosed, a, ""}}));
    store.Send(b, "to b");
    store.Close(a);
    store.Close(b);
    EXPECT_EQ(Feed(relay, TakeOutput(store), step),
              (std::vector<Seen>{{Kind::kGreeted, 0, ""}, {Kind::kBytes, b, "to b"}, {Kind::kClosed, b, ""}}));
  }
}

TEST(MuxTest, FramesAreThoseOfThePage) {
  Mux relay = Greeted(Mux::End::kRelay);
  relay.Open();
  const ClientNumber client = *relay.Open();
  relay.Send(client, "xyz");
  relay.Close(client);
  EXPECT_EQ(TakeOutput(relay),
            Head(kOpen, 0, 0) + Head(kOpen, 1, 0) + Head(kBytes, 1, 3) + "xyz" + Head(kClosed, 1, 0));
  EXPECT_EQ(Head(kBytes, 258, 3), std::string("\x02\0\x02\x01\x03\0\0\0", 8));
}

TEST(MuxTest, ANumberIsFreeWhenBothEndsHaveClosedIt) {
  Mux relay = Greeted(Mux::End::kRelay);
  EXPECT_EQ(relay.Open(), std::optional<ClientNumber>(0));
  relay.Close(0);
  EXPECT_EQ(relay.Open(), std::optional<ClientNumber>(1)) << "the store has not closed 0";
  EXPECT_TRUE(Feed(relay, Head(kBytes, 0, 2) + "xx" + Head(kTaken, 0, 9) + Head(kClosed, 0, 0)).empty())
      << "what was on its way says nothing";
  EXPECT_EQ(relay.Open(), std::optional<ClientNumber>(0));
  EXPECT_EQ(Feed(relay, Head(kBytes, 0, 1) + "y"), (std::vector<Seen>{{Kind::kBytes, 0, "y"}}));

  Mux store = Greeted(Mux::End::kStore);
  EXPECT_EQ(Feed(store, Head(kOpen, 0, 0) + Head(kClosed, 0, 0)).size(), 2u);
  store.Close(0);
  EXPECT_EQ(Feed(store, Head(kOpen, 0, 0)), (std::vector<Seen>{{Kind::kOpened, 0, ""}}));
}

TEST(MuxTest, WhatIsOnItsWayToAClosedClientIsPassedOver) {
  Mux store = Greeted(Mux::End::kStore);
  EXPECT_EQ(Feed(store, Head(kOpen, 0, 0) + Head(kBytes, 0, 6) + "abc").size(), 2u);
  store.Close(0);
  EXPECT_EQ(Feed(store, "def" + Head(kOpen, 1, 0) + Head(kBytes, 1, 1) + "z"),
            (std::vector<Seen>{{Kind::kOpened, 1, ""}, {Kind::kBytes, 1, "z"}}));
  EXPECT_EQ(store.Room(0), 0u);
}

TEST(MuxTest, ThereAreAsManyClientsAsNumbers) {
  Mux relay = Greeted(Mux::End::kRelay);
  for (size_t i = 0; i < Mux::kClientsMax; ++i) ASSERT_EQ(relay.Open(), std::optional<ClientNumber>(i));
  EXPECT_EQ(relay.Open(), std::nullopt);
  EXPECT_TRUE(relay.WantsInput()) << "what so many clients are told bounds nothing";
  relay.Close(77);
  EXPECT_EQ(relay.Open(), std::nullopt);
  Feed(relay, Head(kClosed, 77, 0));
  EXPECT_EQ(relay.Open(), std::optional<ClientNumber>(77));
}

// ---- windows

TEST(MuxTest, NoMoreIsUnderWayThanTheWindow) {
  Mux relay = Greeted(Mux::End::kRelay);
  Mux store = Greeted(Mux::End::kStore);
  const ClientNumber client = *relay.Open();
  Feed(store, TakeOutput(relay));
  size_t sent = 0;
  for (size_t room = relay.Room(client); room > 0; room = relay.Room(client)) {
    EXPECT_LE(room, Mux::kOutputBytes);
    relay.Send(client, std::string(room, 'x'));
    sent += room;
    Feed(store, TakeOutput(relay));
  }
  EXPECT_EQ(sent, Mux::kWindowBytes);
  // Told when half of it is taken, and not before.
  store.Taken(client, Mux::kWindowBytes / 2 - 1);
  EXPECT_EQ(store.Output(), "");
  store.Taken(client, 1);
  EXPECT_EQ(store.Output(), Head(kTaken, client, Mux::kWindowBytes / 2));
  EXPECT_EQ(Feed(relay, TakeOutput(store)), (std::vector<Seen>{{Kind::kTaken, client, ""}}));
  EXPECT_EQ(relay.Room(client), Mux::kOutputBytes);
  relay.Send(client, std::string(relay.Room(client), 'y'));
  EXPECT_EQ(Feed(store, TakeOutput(relay)).size(), 1u);
  EXPECT_EQ(store.violation(), nullptr);
}

TEST(MuxTest, OneClientsWindowIsItsOwn) {
  Mux relay = Greeted(Mux::End::kRelay);
  const ClientNumber full = *relay.Open();
  const ClientNumber other = *relay.Open();
  while (relay.Room(full) > 0) {
    relay.Send(full, std::string(relay.Room(full), 'x'));
    TakeOutput(relay);
  }
  EXPECT_EQ(relay.Room(other), Mux::kOutputBytes);
}

TEST(MuxTest, WhatWaitsToGoIsBounded) {
  Mux relay = Greeted(Mux::End::kRelay);
  const ClientNumber a = *relay.Open();
  const ClientNumber b = *relay.Open();
  relay.Send(a, std::string(relay.Room(a), 'x'));
  EXPECT_FALSE(relay.HasRoom());
  EXPECT_EQ(relay.Room(b), 0u);
  EXPECT_LE(relay.Output().size(), Mux::kOutputBytes + 3 * Mux::kHeadBytes);
  relay.Sent(1000);
  EXPECT_TRUE(relay.HasRoom());
  EXPECT_GT(relay.Room(b), 0u);
  EXPECT_LE(relay.Room(b), 1000u);
}

// Of the other end alone: it opens and closes without end, and takes none of what that has it told.
TEST(MuxTest, WhoTakesNothingOfWhatItIsToldIsNotListenedTo) {
  Mux store = Greeted(Mux::End::kStore);
  size_t rounds = 0;
  for (; store.WantsInput(); ++rounds) {
    ASSERT_LT(rounds, 1'000'000u);
    Feed(store, Head(kOpen, 0, 0) + Head(kClosed, 0, 0));
    store.Close(0);
  }
  EXPECT_EQ(store.Output().size(), Mux::kOutputMaxBytes);
  store.Sent(8);
  EXPECT_TRUE(store.WantsInput());
}

TEST(MuxTest, APieceAtATimeArrivesWhole) {
  Mux relay = Greeted(Mux::End::kRelay);
  Mux store = Greeted(Mux::End::kStore);
  const ClientNumber client = *relay.Open();
  std::string all;
  for (int i = 0; i < 2000; ++i) {
    relay.Send(client, std::string(std::min<size_t>(relay.Room(client), 1000), static_cast<char>(i)));
    const std::string piece(relay.Output().substr(0, 999));
    relay.Sent(piece.size());
    for (const Seen& seen : Feed(store, piece)) {
      if (seen.kind != Kind::kBytes) continue;
      all += seen.bytes;
      store.Taken(client, seen.bytes.size());
    }
    Feed(relay, TakeOutput(store));
  }
  EXPECT_GT(all.size(), 1'900'000u);
  EXPECT_TRUE(std::is_sorted(all.begin(), all.begin() + 100'000,
                             [](char a, char b) { return static_cast<uint8_t>(a) < static_cast<uint8_t>(b); }));
}

// ---- violations

TEST(MuxTest, ViolationsAreThoseOfThePage) {
  const std::string open = Head(kOpen, 0, 0);
  const std::string too_much = Head(kBytes, 0, Mux::kWindowBytes) + std::string(Mux::kWindowBytes, 'x');
  struct Case {
    Mux::End end;
    std::string bytes;
    const char* why;
  };
  std::string with_byte_1 = open;
  with_byte_1[1] = 1;
  const Mux::End relay = Mux::End::kRelay;  // which has client 0
  const Mux::End store = Mux::End::kStore;
  const Case cases[] = {
      {store, Head(0, 0, 0), "unknown kind"},
      {store, Head(5, 0, 0), "unknown kind"},
      {store, with_byte_1, "unknown kind"},
      {store, Head(kOpen, 0, 1), "amount that it cannot have"},
      {store, open + Head(kBytes, 0, 0), "amount that it cannot have"},
      {store, open + Head(kBytes, 0, Mux::kWindowBytes + 1), "amount that it cannot have"},
      {store, open + Head(kTaken, 0, 0), "amount that it cannot have"},
      {store, open + Head(kTaken, 0, UINT32_MAX), "amount that it cannot have"},
      {store, open + Head(kClosed, 0, 8), "amount that it cannot have"},
      {relay, Head(kOpen, 1, 0), "a store that opens"},
      {store, Head(kOpen, 1, 0), "not the next one"},
      {store, open + Head(kOpen, 65'535, 0), "not the next one"},
      {store, open + open, "open already"},
      {store, open + Head(kClosed, 0, 0) + open, "open already"},  // the store has not closed it
      {store, Head(kBytes, 0, 1) + "x", "not open"},
      {relay, Head(kClosed, 1, 0), "not open"},
      {store, open + Head(kClosed, 0, 0) + Head(kClosed, 0, 0), "not open"},
      {store, open + Head(kClosed, 0, 0) + Head(kBytes, 0, 1) + "x", "not open"},
      {store, open + too_much + Head(kBytes, 0, 1), "more of a client than its window"},
      {relay, Head(kTaken, 0, 1), "more taken than was sent"},
  };
  for (const Case& c : cases) {
    const char* why = WhyBroken(c.end, c.bytes);
    ASSERT_NE(why, nullptr);
    EXPECT_NE(std::string_view(why).find(c.why), std::string_view::npos) << why << ", not " << c.why;
  }
}

}  // namespace
}  // namespace phalanx::store

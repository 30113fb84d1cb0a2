#include "store/engine.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "store/client_bytes.h"

namespace phalanx::store {
namespace {

const std::string kGo(1, '\0');    // released, or: all present
const std::string kStop(1, '\1');  // cancelled, or: not all present
const std::string kClosed = "<closed>";

std::string FromHex(std::string_view hex) {
  std::string bytes;
  std::string digits;
  for (const char c : hex) {
    if (c == ' ') continue;
    digits += c;
    if (digits.size() < 2) continue;
    bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
    digits.clear();
  }
  return bytes;
}

std::string I64(int64_t n) { return Bytes(n); }

// An engine with clients that take their output at once.
class Store {
 public:
  explicit Store(const EngineOptions& options = {}) : engine_(options) {}

  ConnectionId Stranger() {
    const ConnectionId id = engine_.Open();
    read_.erase(id);  // of who had this id before
    return id;
  }
  ConnectionId Client() {
    const ConnectionId id = Stranger();
    EXPECT_EQ(Tell(id, Hello()), "");
    return id;
  }
  // What this client reads after it has sent `bytes`; kClosed behind it where the engine closes.
  std::string Tell(ConnectionId id, std::string_view bytes) {
    engine_.Receive(id, bytes);
    return Read(id);
  }
  std::string Read(ConnectionId id) {
    Pump();
    return std::exchange(read_[id], "");
  }
  void Leave(ConnectionId id) {
    engine_.Close(id);
    read_[id].clear();
  }
  Engine& engine() { return engine_; }

 private:
  void Pump() {
    std::vector<ConnectionId> changed;
    for (engine_.TakeChanged(&changed); !changed.empty(); engine_.TakeChanged(&changed)) {
      for (const ConnectionId id : changed) {
        if (!engine_.IsOpen(id)) continue;
        do {
          read_[id] += engine_.Output(id);
          engine_.Sent(id, engine_.Output(id).size());
          if (engine_.HasBacklog(id)) engine_.Resume(id);
        } while (!engine_.Output(id).empty());
        if (engine_.violation(id) == nullptr) continue;
        engine_.Close(id);
        read_[id] += kClosed;
      }
    }
  }

  Engine engine_;
  std::map<ConnectionId, std::string> read_;
};

struct Exchange {
  const char* what;
  std::string send;
  std::string reply;
};

// One client after another request; the whole conversation is also used for fragmentation.
std::vector<Exchange> Conversation() {
  const std::string nul("\0\xff\n", 3);
  return {
      {"ping", FromHex("0d 78563412"), FromHex("78563412")},
      {"join", FromHex("04 0500000000000000 696e69742f 0100000000000000"), I64(1)},
      {"set", FromHex("01 0200000000000000 2f61 0500000000000000 68656c6c6f"), ""},
      {"check", FromHex("05 0100000000000000 0200000000000000 2f61"), kGo},
      {"check missing", Check({"/a", "/no"}), kStop},
      {"check nothing", Check({}), kGo},
      {"get", Get("/a"), Blob("hello")},
      {"get missing", Get("/no"), Blob("")},
      {"barrier of one", FromHex("12 0200000000000000 2f62 0100000000000000"), kGo},
      {"barrier counts in the open", Get("/b"), Blob("1")},
      {"barrier never resets", Barrier("/b", 2), kGo},
      {"add to set text", Set("/n", "12") + Add("/n", 1), I64(13)},
      {"add negative", Add("/n", -20), I64(-7)},
      {"add zero", Add("/n", 0), I64(-7)},
      {"sum is text", Get("/n"), Blob("-7")},
      {"blanks and junk", Set("/n", " \t+41 apples") + Add("/n", 1), I64(42)},
      {"compare_set missing, empty expected", CompareSet("/c", "", "x"), Blob("x")},
      {"compare_set equal", CompareSet("/c", "x", "y"), Blob("y")},
      {"compare_set other", CompareSet("/c", "x", "z"), Blob("y")},
      {"compare_set missing, text expected", CompareSet("/c2", "x", "z"), Blob("x")},
      {"which stored nothing", Check({"/c2"}), kStop},
      {"append to missing", Append("/ap", "one") + Get("/ap"), Blob("one")},
      {"append", Append("/ap", "two") + Get("/ap"), Blob("onetwo")},
      {"multi_set", MultiSet({{"/m1", "1"}, {"/m2", ""}, {"/m1", nul}}), ""},
      {"multi_get has no count", MultiGet({"/m2", "/m1", "/no"}), Blob("") + Blob(nul) + Blob("")},
      {"multi_* of nothing", MultiSet({}) + MultiGet({}), ""},
      {"empty key", Set("", "v") + Get(""), Blob("v")},
      {"number of keys", NumKeys(), I64(9)},
      {"delete", DeleteKey("/m1"), I64(1)},
      {"delete again", DeleteKey("/m1"), I64(0)},
      {"queue length", QueueLen("/q"), I64(0)},
      {"pop nothing", Pop("/q"), I64(0)},
      {"push", Push("/q", "i1") + Push("/q", "i2") + QueueLen("/q"), I64(2)},
      {"a queue is present", Check({"/q"}) + Wait({"/q"}), kGo + kGo},
      {"but no key", Get("/q") + NumKeys() + DeleteKey("/q"), Blob("") + I64(8) + I64(0)},
      {"pop", Pop("/q"), I64(2) + Blob("i1")},
      {"pop the last", Pop("/q"), I64(1) + Blob("i2")},
      {"empty queue is absent", Check({"/q"}), kStop},
      {"wait for nothing", Wait({}), kGo},
      {"wait for what is there", Wait({"/a", "/n", "/a"}), kGo},
      {"cancel without a wait", CancelWait(), kStop},
      {"wait and cancel", Wait({"/no"}) + CancelWait(), kStop},
      {"keys", ListKeys(),
       I64(8) + Blob("") + Blob("/a") + Blob("/ap") + Blob("/b") + Blob("/c") + Blob("/m2") + Blob("/n") +
           Blob("init/")},
  };
}

TEST(EngineTest, Conversation) {
  Store store;
  const ConnectionId c = store.Client();
  for (const Exchange& exchange : Conversation())
    EXPECT_EQ(store.Tell(c, exchange.send), exchange.reply) << exchange.what;
}

TEST(EngineTest, ConversationInFragments) {
  std::string all = Hello();
  std::string expected;
  for (const Exchange& exchange : Conversation()) {
    all += exchange.send;
    expected += exchange.reply;
  }
  // Cut once at every byte; then in pieces of 1 and 3 bytes, and whole.
  for (size_t cut = 1; cut < all.size(); ++cut) {
    Store store;
    const ConnectionId c = store.Stranger();
    std::string got = store.Tell(c, std::string_view(all).substr(0, cut));
    got += store.Tell(c, std::string_view(all).substr(cut));
    ASSERT_EQ(got, expected) << "cut at " << cut;
  }
  for (const size_t piece : {size_t{1}, size_t{3}, all.size()}) {
    Store store;
    const ConnectionId c = store.Stranger();
    std::string got;
    for (size_t at = 0; at < all.size(); at += piece) got += store.Tell(c, std::string_view(all).substr(at, piece));
    EXPECT_EQ(got, expected) << "pieces of " << piece;
  }
}

TEST(EngineTest, HalfAMultiSetSetsNothing) {
  Store store;
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  EXPECT_EQ(store.Tell(b, Wait({"/1"})), "");
  const std::string bytes = MultiSet({{"/1", "x"}, {"/2", "y"}});
  EXPECT_EQ(store.Tell(a, bytes.substr(0, bytes.size() - 1)), "");
  EXPECT_EQ(store.Read(b), "");
  EXPECT_EQ(store.engine().stats().keys, 0u);
  EXPECT_EQ(store.Tell(a, bytes.substr(bytes.size() - 1)), "");
  EXPECT_EQ(store.Read(b), kGo);
  EXPECT_EQ(store.engine().stats().keys, 2u);
}

// ---- waits

TEST(EngineTest, EveryWakerWakes) {
  const std::vector<Exchange> wakers = {
      {"set", Set("/k", ""), ""},
      {"add", Add("/k", 0), I64(0)},
      {"append", Append("/k", "x"), ""},
      {"multi_set", MultiSet({{"/other", "1"}, {"/k", "1"}}), ""},
      {"compare_set", CompareSet("/k", "", "x"), Blob("x")},
      {"push", Push("/k", "x"), ""},
      {"barrier", Barrier("/k", 1), kGo},
  };
  for (const Exchange& waker : wakers) {
    Store store;
    const ConnectionId a = store.Client();
    const ConnectionId b = store.Client();
    EXPECT_EQ(store.Tell(a, Wait({"/k"})), "") << waker.what;
    EXPECT_EQ(store.engine().stats().waiting, 1u);
    EXPECT_EQ(store.Tell(b, waker.send), waker.reply) << waker.what;
    EXPECT_EQ(store.Read(a), kGo) << waker.what;
    EXPECT_EQ(store.engine().stats().waiting, 0u);
    EXPECT_EQ(store.Tell(b, Set("/k", "again")), "");
    EXPECT_EQ(store.Read(a), "") << waker.what << ": released twice";
  }
}

TEST(EngineTest, WhatStoresNothingWakesNobody) {
  Store store;
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  EXPECT_EQ(store.Tell(a, Wait({"/k"})), "");
  EXPECT_EQ(store.Tell(b, CompareSet("/k", "expected", "x")), Blob("expected"));
  EXPECT_EQ(store.Tell(b, Get("/k") + DeleteKey("/k") + Check({"/k"})), Blob("") + I64(0) + kStop);
  EXPECT_EQ(store.Read(a), "");
}

TEST(EngineTest, WaitForSeveralKeysCountsThemDown) {
  Store store;
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  EXPECT_EQ(store.Tell(b, Set("/0", "")), "");
  EXPECT_EQ(store.Tell(a, Wait({"/0", "/1", "/2", "/1"})), "");
  EXPECT_EQ(store.Tell(b, Set("/1", "") + DeleteKey("/1")), I64(1));  // arrived, though gone again
  EXPECT_EQ(store.Read(a), "");
  EXPECT_EQ(store.Tell(b, Set("/2", "")), "");
  EXPECT_EQ(store.Read(a), kGo);
}

TEST(EngineTest, AClientMayAskWhileItWaits) {
  Store store;
  const ConnectionId a = store.Client();
  EXPECT_EQ(store.Tell(a, Wait({"/k"}) + Add("/n", 1)), I64(1));
  EXPECT_EQ(store.Tell(a, Set("/k", "")), kGo);
}

TEST(EngineTest, ASecondWaitWhileOneIsPendingCloses) {
  Store store;
  const ConnectionId b = store.Client();
  for (const std::string& second : {Wait({"/y"}), Barrier("/y", 2)}) {
    const ConnectionId a = store.Client();
    EXPECT_EQ(store.Tell(a, Wait({"/x"})), "");
    EXPECT_EQ(store.Tell(a, second), kClosed);
  }
  EXPECT_EQ(store.engine().stats().waiting, 0u);
  EXPECT_EQ(store.Tell(b, Set("/x", "") + Ping(7)), Bytes<uint32_t>(7));
}

TEST(EngineTest, CancelRaces) {
  Store store;
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  // Cancelled first: the key comes too late and releases nobody.
  EXPECT_EQ(store.Tell(a, Wait({"/1", "/2"})), "");
  EXPECT_EQ(store.Tell(a, CancelWait()), kStop);
  EXPECT_EQ(store.Tell(b, MultiSet({{"/1", ""}, {"/2", ""}})), "");
  EXPECT_EQ(store.Read(a), "");
  // Released first: both answers, in this order.
  EXPECT_EQ(store.Tell(a, Wait({"/3"})), "");
  EXPECT_EQ(store.Tell(b, Set("/3", "")), "");
  EXPECT_EQ(store.Tell(a, CancelWait()), kGo + kStop);
  // The next wait is not disturbed by either.
  EXPECT_EQ(store.Tell(a, Wait({"/4"})), "");
  EXPECT_EQ(store.Tell(b, Set("/1", "") + Set("/3", "")), "");
  EXPECT_EQ(store.Read(a), "");
  EXPECT_EQ(store.Tell(b, Set("/4", "")), "");
  EXPECT_EQ(store.Read(a), kGo);
}

TEST(EngineTest, WhoLeavesWaitsNoMore) {
  Store store;
  const uint64_t empty_bytes = store.engine().stats().store_bytes;
  const ConnectionId a = store.Client();
  EXPECT_EQ(store.Tell(a, Wait({"/1", "/2", "/1"})), "");
  EXPECT_GT(store.engine().stats().store_bytes, empty_bytes);
  store.Leave(a);
  EXPECT_EQ(store.engine().stats().store_bytes, empty_bytes);
  EXPECT_EQ(store.engine().stats().waiting, 0u);
  const ConnectionId b = store.Client();  // has the id of a
  EXPECT_EQ(a, b);
  EXPECT_EQ(store.Tell(b, Set("/1", "") + Set("/2", "")), "");
}

TEST(EngineTest, BarrierReleasesAllAtTheLast) {
  Store store;
  const ConnectionId waiter = store.Client();
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  const ConnectionId c = store.Client();
  EXPECT_EQ(store.Tell(waiter, Wait({"/b"})), "");
  EXPECT_EQ(store.Tell(a, Barrier("/b", 3)), "");
  EXPECT_EQ(store.Tell(b, Barrier("/b", 3)), "");
  EXPECT_EQ(store.Read(waiter), "") << "an arrival is no wake-up";
  EXPECT_EQ(store.Tell(c, Check({"/b"}) + Add("/b", 0)), kGo + I64(2));
  EXPECT_EQ(store.Read(waiter), kGo) << "ADD is one";
  EXPECT_EQ(store.Read(a) + store.Read(b), "") << "looking at the counter must not open the barrier";
  EXPECT_EQ(store.Tell(c, Barrier("/b", 3)), kGo);
  EXPECT_EQ(store.Read(a), kGo);
  EXPECT_EQ(store.Read(b), kGo);
}

TEST(EngineTest, ACancelledParticipantStaysCounted) {
  Store store;
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  EXPECT_EQ(store.Tell(a, Barrier("/b", 2)), "");
  EXPECT_EQ(store.Tell(a, CancelWait()), kStop);
  EXPECT_EQ(store.Tell(b, Barrier("/b", 2)), kGo);
  EXPECT_EQ(store.Read(a), "");
}

TEST(EngineTest, APushReleasesTheOldestWaiterAlone) {
  Store store;
  const ConnectionId a = store.Client();
  const ConnectionId b = store.Client();
  const ConnectionId c = store.Client();
  EXPECT_EQ(store.Tell(a, Wait({"/q"})), "");
  EXPECT_EQ(store.Tell(b, Wait({"/q"})), "");
  EXPECT_EQ(store.Tell(c, Push("/q", "1")), "");
  EXPECT_EQ(store.Read(a), kGo);
  EXPECT_EQ(store.Tell(a, Pop("/q")), I64(1) + Blob("1"));
  EXPECT_EQ(store.Read(b), "");
  // The released client waits for something else: the next push is not its business.
  EXPECT_EQ(store.Tell(a, Wait({"/other"})), "");
  EXPECT_EQ(store.Tell(c, Push("/q", "2")), "");
  EXPECT_EQ(store.Read(a), "");
  EXPECT_EQ(store.Read(b), kGo);
}

TEST(EngineTest, AnItemThatItsWaiterDoesNotTakeGoesToTheNext) {
  const std::string moves_on = CancelWait();
  for (const bool leaves : {true, false}) {
    Store store;
    const ConnectionId a = store.Client();
    const ConnectionId b = store.Client();
    const ConnectionId c = store.Client();
    EXPECT_EQ(store.Tell(a, Wait({"/q"})), "");
    EXPECT_EQ(store.Tell(b, Wait({"/q"})), "");
    EXPECT_EQ(store.Tell(c, Push("/q", "1")), "");
    EXPECT_EQ(store.Read(a), kGo);
    EXPECT_EQ(store.Read(b), "");
    if (leaves) {
      store.Leave(a);
    } else {
      EXPECT_EQ(store.Tell(a, moves_on), kStop);
    }
    EXPECT_EQ(store.Read(b), kGo);
    EXPECT_EQ(store.Tell(b, Pop("/q")), I64(1) + Blob("1"));
  }
}

// ---- violations

TEST(EngineTest, ViolationsCloseTheirConnectionAlone) {
  const std::string long_key(8193, 'k');
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"unknown opcode", FromHex("13")},
      {"opcode 255", FromHex("ff")},
      {"second VALIDATE", Hello()},
      {"key too long", Ask(Op::kGet, Bytes<uint64_t>(8193))},
      {"length of 2^64-1", Ask(Op::kSet, Bytes<uint64_t>(UINT64_MAX))},
      {"value too long", Ask(Op::kSet, Blob("/k") + Bytes<uint64_t>((8 << 20) + 1))},
      {"too many keys", Ask(Op::kWait, Bytes<uint64_t>(131073))},
      {"too many pairs", Ask(Op::kMultiSet, Bytes<uint64_t>(UINT64_MAX))},
      {"add on text", Set("/text", "abc") + Add("/text", 1)},
      {"add on nothing", Set("/text", "") + Add("/text", 1)},
      {"add on a sign", Set("/text", "+-1") + Add("/text", 1)},
      {"add on too large a number", Set("/text", "9223372036854775808") + Add("/text", 1)},
      {"add past the end", Set("/text", "9223372036854775807") + Add("/text", 1)},
      {"barrier on text", Set("/text", "abc") + Barrier("/text", 2)},
  };
  Store store;
  const ConnectionId other = store.Client();
  EXPECT_EQ(store.Tell(other, Wait({"/later"})), "");
  uint64_t closed = 0;
  for (const auto& [what, bytes] : cases) {
    const ConnectionId c = store.Client();
    EXPECT_EQ(store.Tell(c, Ping(1) + bytes + Ping(2)), Bytes<uint32_t>(1) + kClosed) << what;
    EXPECT_EQ(store.engine().stats().violations, ++closed) << what;
  }
  EXPECT_EQ(store.Tell(store.Client(), Set("/later", "")), "");
  EXPECT_EQ(store.Read(other), kGo);
  EXPECT_EQ(store.engine().stats().buffer_bytes, 0u);
}

TEST(EngineTest, StrangersAreClosedAtTheFirstWrongByte) {
  Store store;
  for (const std::string& first : {std::string("G"), Ping(1), FromHex("00 cef7853d"), FromHex("0d")}) {
    EXPECT_EQ(store.Tell(store.Stranger(), first), kClosed);
  }
  const ConnectionId slow = store.Stranger();
  for (const char byte : Hello()) EXPECT_EQ(store.Tell(slow, std::string(1, byte)), "");
  EXPECT_EQ(store.Tell(slow, Ping(5)), Bytes<uint32_t>(5));
}

TEST(EngineTest, LimitsAreInclusive) {
  Store store;
  const ConnectionId c = store.Client();
  const std::string key(8192, 'k');
  const std::string value(8 << 20, 'v');
  EXPECT_EQ(store.Tell(c, Set(key, value) + Check({key})), kGo);
  EXPECT_EQ(store.Tell(c, Get(key)), Blob(value));
  EXPECT_EQ(store.Tell(c, Append(key, "more") + Get(key)), Blob(value + "more"));
  const std::vector<std::string> many(131072, "/x");
  EXPECT_EQ(store.Tell(c, Check(many)), kStop);
  EXPECT_EQ(store.Tell(c, Wait(many)), "");
  EXPECT_EQ(store.Tell(store.Client(), Set("/x", "")), "");
  EXPECT_EQ(store.Read(c), kGo);
}

TEST(EngineTest, AnnouncedBytesCostNothing) {
  Store store;
  for (int i = 0; i < 4000; ++i) {  // 32 GB announced
    EXPECT_EQ(store.Tell(store.Client(), Ask(Op::kSet, Blob("/k") + Bytes<uint64_t>(8 << 20) + "x")), "");
  }
  EXPECT_LT(store.engine().stats().buffer_bytes, 4000u * 200);
}

// ---- memory

TEST(EngineTest, TheStoreIsBounded) {
  EngineOptions options;
  options.max_store_bytes = 4096;
  const std::string big(3000, 'b');
  const std::vector<std::pair<const char*, std::string>> cases = {
      {"set", Set("/2", big)},
      {"grow", Set("/1", big + big)},
      {"append", Append("/1", big)},
      {"compare_set", CompareSet("/2", "", big)},
      {"push", Push("/2", big)},
      {"multi_set", MultiSet({{"/2", "x"}, {"/3", big}})},
      {"wait", Wait({std::string(3000, 'k')})},
  };
  for (const auto& [what, bytes] : cases) {
    Store store(options);
    const ConnectionId other = store.Client();
    EXPECT_EQ(store.Tell(other, Set("/1", big)), "");
    EXPECT_EQ(store.Tell(store.Client(), bytes), kClosed) << what;
    EXPECT_EQ(store.Tell(other, Get("/1") + NumKeys()), Blob(big) + I64(1)) << what;
    EXPECT_EQ(store.engine().stats().waiting, 0u) << what;
    EXPECT_EQ(store.Tell(other, DeleteKey("/1") + Set("/2", big) + Ping(1)), I64(1) + Bytes<uint32_t>(1)) << what;
  }
}

TEST(EngineTest, WhatIsTakenOutIsCreditedBack) {
  Store store;
  const ConnectionId c = store.Client();
  const ConnectionId d = store.Client();
  const std::string big(5000, 'b');
  EXPECT_EQ(store.Tell(d, Wait({"/x", "/y"})), "");
  store.Tell(c, Set("/1", "a") + Set("/1", big) + Set("/1", "") + Append("/1", big) + Add("/n", 1));
  store.Tell(c, Push("/q", big) + Push("/q", "x") + CompareSet("/1", big, "y") + Barrier("/bar", 1));
  store.Tell(c, MultiSet({{"/x", big}, {"/y", "1"}}));
  EXPECT_EQ(store.Read(d), kGo);
  store.Tell(c, Pop("/q") + Pop("/q"));
  for (const char* key : {"/1", "/n", "/bar", "/x", "/y"}) EXPECT_EQ(store.Tell(c, DeleteKey(key)), I64(1)) << key;
  EXPECT_EQ(store.engine().stats().store_bytes, 0u);
  EXPECT_EQ(store.engine().stats().buffer_bytes, 0u);
  EXPECT_EQ(store.Tell(c, ListKeys()), I64(0));
}

TEST(EngineTest, ARequestIsBounded) {
  EngineOptions options;
  options.request.max_request_bytes = 1000;
  Store store(options);
  EXPECT_EQ(store.Tell(store.Client(), MultiSet({{"/1", std::string(400, 'x')}})), "");
  // Closed by the length, before the bytes.
  EXPECT_EQ(store.Tell(store.Client(), Ask(Op::kSet, Blob("/1") + Bytes<uint64_t>(900))), kClosed);
  // Many empty values count as well.
  EXPECT_EQ(store.Tell(store.Client(), Check(std::vector<std::string>(16, ""))), kClosed);
}

TEST(EngineTest, AReplyIsBounded) {
  EngineOptions options;
  options.max_reply_bytes = 1000;
  Store store(options);
  const ConnectionId c = store.Client();
  EXPECT_EQ(store.Tell(c, Set("/k", std::string(900, 'x')) + Get("/k")).size(), 908u);
  EXPECT_EQ(store.Tell(store.Client(), MultiGet({"/k", "/k"})), kClosed);
  EXPECT_EQ(store.Tell(c, Append("/k", std::string(200, 'x'))), "");
  EXPECT_EQ(store.Tell(store.Client(), Get("/k")), kClosed);
  EXPECT_EQ(store.Tell(store.Client(), CompareSet("/k", "a", "b")), kClosed);
  EXPECT_EQ(store.Tell(c, Push("/q", std::string(1000, 'x'))), "");
  EXPECT_EQ(store.Tell(store.Client(), Pop("/q")), kClosed);
  EXPECT_EQ(store.Tell(c, QueueLen("/q")), I64(1));
  EXPECT_EQ(store.Tell(c, Set(std::string(1000, 'k'), "")), "");
  EXPECT_EQ(store.Tell(store.Client(), ListKeys()), kClosed);
}

TEST(EngineTest, ASlowReaderIsNotServedFurther) {
  EngineOptions options;
  options.output_pause_bytes = 1000;
  Store store(options);
  const ConnectionId c = store.Client();
  store.Tell(c, Set("/k", std::string(600, 'x')));
  Engine& engine = store.engine();
  std::string many;
  for (int i = 0; i < 100; ++i) many += Get("/k");
  many += Add("/n", 1);
  engine.Receive(c, many);
  EXPECT_EQ(engine.Output(c).size(), 2u * 608);
  EXPECT_FALSE(engine.WantsInput(c));
  EXPECT_TRUE(engine.HasBacklog(c));
  EXPECT_EQ(engine.stats().keys, 1u);
  EXPECT_GT(engine.stats().buffer_bytes, 1000u);
  // Others are served, and a pending release still gets through to the slow one.
  EXPECT_EQ(store.Tell(store.Client(), Ping(3)), Bytes<uint32_t>(3));
  EXPECT_EQ(store.Read(c).size(), 100u * 608 + 8);
  EXPECT_TRUE(engine.WantsInput(c));
  EXPECT_EQ(engine.stats().buffer_bytes, 0u);
}

TEST(EngineTest, AReaderThatIsNeverQuiteUpToDateCostsNoMore) {
  Store store;
  const ConnectionId c = store.Client();
  store.Tell(c, Set("/k", std::string(100'000, 'x')));
  Engine& engine = store.engine();
  engine.Receive(c, Get("/k"));
  for (int i = 0; i < 1000; ++i) {
    engine.Receive(c, Get("/k"));
    engine.Sent(c, 100'008);
  }
  EXPECT_EQ(engine.Output(c).size(), 100'008u);
  EXPECT_LT(engine.stats().buffer_bytes, 500'000u);
}

TEST(EngineTest, AllBuffersTogetherAreBounded) {
  EngineOptions options;
  options.max_buffer_bytes = 10'000;
  Store store(options);
  const ConnectionId c = store.Client();
  store.Tell(c, Set("/k", std::string(1000, 'x')));
  int closed = 0;
  for (int i = 0; i < 20; ++i) {
    const ConnectionId slow = store.Client();
    store.engine().Receive(slow, Get("/k"));
    if (store.engine().violation(slow) != nullptr) ++closed;
    const std::string half = Ask(Op::kSet, Blob("/k") + Bytes<uint64_t>(2000) + std::string(1000, 'x'));
    const ConnectionId writer = store.Client();
    store.engine().Receive(writer, half);
    if (store.engine().violation(writer) != nullptr) ++closed;
    ASSERT_LE(store.engine().stats().buffer_bytes, 10'000u);
  }
  EXPECT_GT(closed, 20);
  EXPECT_EQ(store.Tell(c, Ping(1)), Bytes<uint32_t>(1)) << "who needs nothing much goes on";
}

TEST(EngineTest, LeavingCostsItsOwnWaitsAlone) {
  // 30,000 waiters on one key leave one by one: quadratic work would take minutes.
  Store store;
  std::vector<ConnectionId> ids;
  for (int i = 0; i < 30'000; ++i) {
    ids.push_back(store.engine().Open());
    store.engine().Receive(ids.back(), Hello() + Wait({"/k"}));
  }
  for (const ConnectionId id : ids) store.engine().Receive(id, CancelWait() + Wait({"/k"}));
  for (const ConnectionId id : ids) store.Leave(id);
  EXPECT_EQ(store.engine().stats().waiting, 0u);
  EXPECT_EQ(store.engine().stats().store_bytes, 0u);
}

}  // namespace
}  // namespace phalanx::store

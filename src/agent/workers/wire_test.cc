#include "agent/workers/wire.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "base/test_seeds.h"

namespace phalanx::agent {
namespace {

std::string Frame(const std::string& json) {
  std::string bytes;
  for (size_t i = 0; i < 4; ++i) bytes += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  return bytes + json;
}

TEST(FrameReader, CutsAnyPiecesIntoMessages) {
  const std::string stream = Frame("{}") + Frame("") + Frame(std::string(70'000, 'x'));
  for (const size_t piece : {size_t{1}, size_t{3}, size_t{5000}, stream.size()}) {
    FrameReader reader;
    std::vector<std::string> texts;
    for (size_t at = 0; at < stream.size(); at += piece) {
      reader.Feed(std::string_view(stream).substr(at, piece));
      while (true) {
        auto text = reader.Next();
        ASSERT_TRUE(text.ok());
        if (!text->has_value()) break;
        texts.push_back(**text);
      }
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"{}", "", std::string(70'000, 'x')}));
  }
}

TEST(FrameReader, TakesTheSeedsOfItsFuzzer) {
  for (const auto& [name, bytes] : SeedsIn("agent/workers/corpus/wire_fuzzer")) {
    FrameReader reader;
    reader.Feed(bytes);
    size_t taken = 0;
    while (true) {
      const auto text = reader.Next();
      ASSERT_TRUE(text.ok()) << name << ": " << text.status();
      if (!text->has_value()) break;
      taken += 4 + (*text)->size();
      const StatusOr<PeerMessage> message = ParsePeerMessage(**text);
      EXPECT_TRUE(message.ok()) << name << ": " << message.status();
    }
    EXPECT_EQ(taken, bytes.size()) << name;
  }
}

TEST(FrameReader, RefusesTooLong) {
  FrameReader reader;
  reader.Feed(std::string_view("\x01\x00\x80\x00", 4));  // 8 MiB + 1
  EXPECT_FALSE(reader.Next().ok());
}

TEST(PeerMessage, ReadsEachType) {
  EXPECT_EQ(std::get<ZygoteReady>(*ParsePeerMessage(R"({"type":"ready","pid":7,"modules":900,"ms":1500,"new":1})")).ms,
            1500);
  EXPECT_EQ(std::get<ZygoteTainted>(*ParsePeerMessage(R"({"type":"tainted","module":"a.b","why":"socket"})")).module,
            "a.b");
  EXPECT_EQ(std::get<ZygoteFailed>(*ParsePeerMessage(R"({"type":"failed","reason":"no"})")).reason, "no");
  EXPECT_EQ(std::get<ForkFailed>(*ParsePeerMessage(R"({"type":"fork_failed","id":3,"reason":"no"})")).id, 3u);
  EXPECT_EQ(std::get<SpareWaits>(*ParsePeerMessage(R"({"type":"spare","pid":12})")).pid, 12);
  EXPECT_EQ(std::get<ScriptStarted>(*ParsePeerMessage(R"({"type":"started"})")).cold, "");
  EXPECT_EQ(std::get<ScriptStarted>(*ParsePeerMessage(R"({"type":"started","cold":"why"})")).cold, "why");
  EXPECT_FALSE(ParsePeerMessage(R"({"type":"started","cold":7})").ok());
  EXPECT_EQ(std::get<ScriptStarted>(*ParsePeerMessage(R"({"type":"started","cold":"why"})")).deny, "");
  EXPECT_EQ(std::get<ScriptStarted>(*ParsePeerMessage(R"({"type":"started","cold":"why","deny":"a.b"})")).deny, "a.b");
  EXPECT_FALSE(ParsePeerMessage(R"({"type":"started","deny":["a"]})").ok());
  const auto step = std::get<FirstStep>(*ParsePeerMessage(R"({"type":"first_step","step":4,"modules":["a","","b"]})"));
  EXPECT_EQ(step.step, 4);
  EXPECT_EQ(step.modules, (std::vector<std::string>{"a", "b"}));
  const auto lost = std::get<LogLost>(*ParsePeerMessage(R"({"type":"log_lost","stream":2,"errno":28})"));
  EXPECT_EQ(lost.stream, 2);
  EXPECT_EQ(lost.error, ENOSPC);
}

TEST(PeerMessage, RefusesTheRest) {
  for (const char* text : {"",
                           "null",
                           "[]",
                           "{",
                           "{}",
                           R"({"type":7})",
                           R"({"type":"run"})",
                           R"({"type":"spare"})",
                           R"({"type":"spare","pid":"1"})",
                           R"({"type":"spare","pid":1.5})",
                           R"({"type":"spare","pid":18446744073709551615})",
                           R"({"type":"ready","pid":1,"modules":2})",
                           R"({"type":"first_step","step":1,"modules":"a"})",
                           R"({"type":"first_step","step":1,"modules":[1]})",
                           R"({"type":"log_lost","stream":0,"errno":28})",
                           R"({"type":"log_lost","stream":3,"errno":28})",
                           R"({"type":"log_lost","stream":1,"errno":0})",
                           R"({"type":"log_lost","stream":1,"errno":99999})",
                           R"({"type":"log_lost","stream":1})",
                           R"({"type":"fork_failed","id":-1,"reason":""})",
                           R"({"type":"tainted","module":1,"why":""})",
                           "{\"type\":\"started\"} x",
                           "{\"type\":\"\xff\"}"}) {
    EXPECT_FALSE(ParsePeerMessage(text).ok()) << text;
  }
}

TEST(PeerMessage, IsBounded) {
  std::string modules = "\"m\"";
  for (size_t i = 0; i < 2 * kModulesMax; ++i) modules += ",\"m\"";
  const auto step = ParsePeerMessage(R"({"type":"first_step","step":1,"modules":[)" + modules + "]}");
  ASSERT_TRUE(step.ok());
  EXPECT_EQ(std::get<FirstStep>(*step).modules.size(), kModulesMax);
  const std::string deep = std::string(200'000, '[');
  EXPECT_FALSE(ParsePeerMessage(R"({"type":"started","x":)" + deep).ok());
}

TEST(JsonObject, WritesWhatAReaderReads) {
  JsonObject inner;
  inner.Add("path", "/dev/shm/x").Add("slot", 3);
  JsonObject object;
  object.Add("type", "run").Add("args", std::vector<std::string>{"a \"b\"\n", "\\", "\x01"});
  object.Add("env", std::map<std::string, std::string>{{"A", "1"}, {"B", ""}}).Add("board", inner).AddNull("none");
  object.Add("empty", std::vector<std::string>{});
  const nlohmann::json json = nlohmann::json::parse(object.Text(), nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << object.Text();
  EXPECT_EQ(json["args"][0], "a \"b\"\n");
  EXPECT_EQ(json["args"][1], "\\");
  EXPECT_EQ(json["args"][2], "\x01");
  EXPECT_EQ(json["env"]["B"], "");
  EXPECT_EQ(json["board"]["slot"], 3);
  EXPECT_TRUE(json["none"].is_null());
  EXPECT_TRUE(json["empty"].is_array());
  EXPECT_NE(JsonObject().Add("x", "\xff").Text().find('\xff'), std::string::npos);  // bytes, as they are
}

class ChannelTest : public testing::Test {
 protected:
  void SetUp() override {
    auto pair = Channel::MakePair();
    ASSERT_TRUE(pair.ok());
    theirs_ = std::move(pair->second);
    Channel::Events events;
    events.on_message = [this](PeerMessage message) {
      messages_.push_back(std::move(message));
      loop_.Stop();
    };
    events.on_closed = [this](const Status& why) {
      closed_ = Message(why);
      channel_.reset();
      loop_.Stop();
    };
    channel_ = std::make_unique<Channel>(loop_, std::move(pair->first), std::move(events));
  }

  void TheySay(const std::string& bytes) {
    ASSERT_EQ(send(theirs_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  EventLoop loop_;
  Fd theirs_;
  std::unique_ptr<Channel> channel_;
  std::vector<PeerMessage> messages_;
  std::string closed_;
};

TEST_F(ChannelTest, DeliversMessagesAndTheEnd) {
  TheySay(Frame(R"({"type":"spare","pid":5})"));
  loop_.Run();
  ASSERT_EQ(messages_.size(), 1u);
  TheySay(Frame(R"({"type":"started"})"));
  theirs_.Reset();
  channel_->ReceiveNow();
  EXPECT_EQ(messages_.size(), 2u);
}

TEST_F(ChannelTest, ClosesOnWhatNobodyCanRead) {
  TheySay(Frame("garbage"));
  loop_.Run();
  EXPECT_EQ(closed_, "a message that is no JSON object with a type");
  char byte = 0;
  EXPECT_EQ(recv(theirs_.get(), &byte, 1, 0), 0);
}

TEST_F(ChannelTest, ClosesAtEndOfFile) {
  theirs_.Reset();
  loop_.Run();
  EXPECT_EQ(closed_, "end of file");
}

TEST_F(ChannelTest, SendsDescriptorsWithTheFirstByteAndWaitsForRoom) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd reader(fds[0]);
  std::vector<Fd> gift;
  gift.emplace_back(fds[1]);
  const std::string big =
      JsonObject().Add("x", std::string(2 << 20, 'y')).Text();  // more than the socket takes at once
  channel_->Send(big, std::move(gift));
  channel_->Send("{}");

  std::string got;
  Fd received;
  loop_.Watch(theirs_.get(), EPOLLIN, [&](uint32_t) {
    char buffer[64 << 10];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    iovec piece{buffer, sizeof buffer};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t n = recvmsg(theirs_.get(), &header, MSG_CMSG_CLOEXEC);
    if (CMSG_FIRSTHDR(&header) != nullptr) {
      EXPECT_TRUE(got.empty());
      int fd = -1;
      memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
      received.Reset(fd);
    }
    if (n > 0) got.append(buffer, static_cast<size_t>(n));
    if (got.size() == big.size() + 4 + 6) loop_.Stop();
  });
  loop_.Run();
  loop_.Unwatch(theirs_.get());
  EXPECT_EQ(got, Frame(big) + Frame("{}"));
  ASSERT_TRUE(received.valid());
  EXPECT_EQ(write(received.get(), "z", 1), 1);
  received.Reset();
  char buffer[2];
  EXPECT_EQ(read(reader.get(), buffer, 2), 1);
  EXPECT_EQ(read(reader.get(), buffer, 2), 0);  // ours was closed when it had been sent
}

TEST_F(ChannelTest, SendingToOneThatIsGoneIsHarmless) {
  TheySay(Frame(R"({"type":"started"})"));
  theirs_.Reset();
  channel_->Send("{}");
  loop_.Run();
  EXPECT_EQ(messages_.size(), 1u);  // what it said before it went is heard
  loop_.Run();
  EXPECT_EQ(closed_, "end of file");
}

}  // namespace
}  // namespace phalanx::agent

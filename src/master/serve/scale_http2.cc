// HTTP/2 (RFC 9113) as far as one gRPC call on each connection needs it. Headers that the server sends are not decoded:
// the call's end says all that matters here.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/fd.h"
#include "master/serve/scale_line.h"
#include "master/serve/scale_link.h"

namespace phalanx::master {
namespace {

// RFC 9113, section 6.
enum Frame : uint8_t { kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7, kWindowUpdate = 8 };
constexpr uint8_t kEndStream = 0x1;
constexpr uint8_t kAck = 0x1;
constexpr uint8_t kEndHeaders = 0x4;
constexpr uint8_t kPadded = 0x8;
constexpr uint16_t kInitialWindowSize = 4;
constexpr size_t kFrameHeaderBytes = 9;
constexpr int64_t kFirstWindow = 65'535;
constexpr uint32_t kLargestWindow = (1U << 31) - 1;
constexpr uint32_t kCall = 1;  // the stream of the only call
// Of a gRPC message: whether it is compressed, and its length.
constexpr size_t kPrefixBytes = 5;

std::string BigEndian(uint32_t value, size_t bytes) {
  std::string text;
  for (size_t i = bytes; i-- > 0;) text += static_cast<char>(value >> (8 * i));
  return text;
}

uint32_t ReadBigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

std::string FrameOf(Frame type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string frame = BigEndian(static_cast<uint32_t>(payload.size()), 3);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  frame += BigEndian(stream, 4);
  frame += payload;
  return frame;
}

// RFC 7541, 6.2.2: a literal that no table keeps; neither Huffman's code nor lengths of more than a byte.
std::string Literal(std::string_view text) {
  PHX_CHECK(text.size() < 127, "a short text");
  return static_cast<char>(text.size()) + std::string(text);
}

std::string Preface(const std::string& authority, bool encrypted) {
  // Of the static table (RFC 7541, appendix A): 3 is ":method: POST", 6 ":scheme: http", 7 "https", 1 ":authority",
  // 4 ":path".
  std::string headers = encrypted ? "\x83\x87" : "\x83\x86";
  headers += '\x01' + Literal(authority);
  headers += '\x04' + Literal("/phalanx.v1.AgentLink/Attach");
  headers += std::string(1, '\0') + Literal("content-type") + Literal("application/grpc");
  headers += std::string(1, '\0') + Literal("te") + Literal("trailers");
  const std::string settings = BigEndian(kInitialWindowSize, 2) + BigEndian(kLargestWindow, 4);
  return "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + FrameOf(kSettings, 0, 0, settings) +
         FrameOf(kWindowUpdate, 0, 0, BigEndian(kLargestWindow - kFirstWindow, 4)) +
         FrameOf(kHeaders, kEndHeaders, kCall, headers);
}

class Http2Stream final : public ScaleStream {
 public:
  Http2Stream(int epoll, ScaleLine line, std::string preface, ScaleSpeaker* speaker)
      : epoll_(epoll), speaker_(speaker), line_(std::move(line)), outgoing_(std::move(preface)) {
    Watch(EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
  }

  void Send(const v1::AgentMessage& message) override {
    const std::string bytes = message.SerializeAsString();
    const std::string body = std::string(1, '\0') + BigEndian(static_cast<uint32_t>(bytes.size()), 4) + bytes;
    for (int64_t& window : windows_) {
      window -= static_cast<int64_t>(body.size());
      PHX_CHECK(window >= 0, "more than the master lets an agent send at once");
    }
    outgoing_ += FrameOf(kData, 0, kCall, body);
    if (is_open_) Flush();
  }

  void OnReady(uint32_t events) {
    if ((events & EPOLLOUT) != 0 && !is_open_) {
      is_open_ = true;
      speaker_->OnOpen();
    }
    if ((events & ~EPOLLOUT) != 0) {
      while (speaker_ != nullptr && Read()) {
      }
    }
    // Also behind what was read: TLS may have waited for that before it sends.
    if (speaker_ != nullptr) Flush();
  }

 private:
  void Watch(int operation, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = this;
    PHX_CHECK(epoll_ctl(epoll_, operation, line_.fd(), &event) == 0, "epoll_ctl");
    is_writing_ = (events & EPOLLOUT) != 0;
  }

  void Flush() {
    for (size_t sent = 1; sent > 0 && !outgoing_.empty(); outgoing_.erase(0, sent)) {
      const std::optional<size_t> taken = line_.Send(outgoing_);
      if (!taken) return Close("the connection is broken");
      sent = *taken;
    }
    const bool waits = line_.waits_to_send();
    if (is_writing_ != waits) Watch(EPOLL_CTL_MOD, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }

  // Whether there may be more.
  bool Read() {
    std::array<char, 16'384> bytes;
    const std::optional<size_t> n = line_.Receive(bytes.data(), bytes.size());
    if (!n) {
      Close("the master closed the connection");
      return false;
    }
    incoming_.append(bytes.data(), *n);
    std::string_view rest = incoming_;
    while (speaker_ != nullptr && rest.size() >= kFrameHeaderBytes) {
      const size_t length = ReadBigEndian(rest.substr(0, 3));
      if (rest.size() < kFrameHeaderBytes + length) break;
      const size_t stream = ReadBigEndian(rest.substr(5, 4));
      OnFrame(static_cast<uint8_t>(rest[3]), static_cast<uint8_t>(rest[4]), stream,
              rest.substr(kFrameHeaderBytes, length));
      rest.remove_prefix(kFrameHeaderBytes + length);
    }
    incoming_.erase(0, incoming_.size() - rest.size());
    return line_.may_have_more(*n, bytes.size());
  }

  void OnFrame(uint8_t type, uint8_t flags, size_t stream, std::string_view payload) {
    switch (type) {
      case kData:
        PHX_CHECK((flags & kPadded) == 0, "gRPC pads no data");
        return OnData(payload);
      case kSettings:
        return (flags & kAck) != 0 ? void() : Answer(FrameOf(kSettings, kAck, 0, {}));
      case kPing:
        return (flags & kAck) != 0 ? void() : Answer(FrameOf(kPing, kAck, 0, payload));
      case kWindowUpdate:
        windows_.at(stream) += ReadBigEndian(payload);
        return;
      case kHeaders:
        return (flags & kEndStream) != 0 ? Close("the master ended the stream") : void();
      case kReset:
        return Close("the master reset the stream");
      case kGoAway:
        return Close("the master said goodbye");
      default:
        return;
    }
  }

  void OnData(std::string_view payload) {
    message_ += payload;
    while (speaker_ != nullptr && message_.size() >= kPrefixBytes) {
      const size_t length = ReadBigEndian(std::string_view(message_).substr(1, 4));
      if (message_.size() < kPrefixBytes + length) return;
      v1::MasterMessage message;
      PHX_CHECK(message_[0] == 0 && message.ParseFromArray(message_.data() + kPrefixBytes, static_cast<int>(length)),
                "a message of the master");
      message_.erase(0, kPrefixBytes + length);
      speaker_->OnMessage(message);
    }
  }

  void Answer(const std::string& frame) {
    outgoing_ += frame;
    Flush();
  }

  void Close(const std::string& why) {
    if (ScaleSpeaker* const speaker = std::exchange(speaker_, nullptr)) speaker->OnClosed(why);
  }

  const int epoll_;
  ScaleSpeaker* speaker_;  // null: closed
  ScaleLine line_;
  bool is_open_ = false;
  bool is_writing_ = false;
  std::array<int64_t, 2> windows_ = {kFirstWindow, kFirstWindow};  // of the connection (stream 0) and of the call
  std::string outgoing_;
  std::string incoming_;
  std::string message_;  // begun, and not all here
};

class Http2Network final : public ScaleNetwork {
 public:
  Http2Network(uint16_t port, const std::string& token)
      : epoll_(epoll_create1(EPOLL_CLOEXEC)), preface_(Preface(fmt::format("127.0.0.1:{}", port), !token.empty())) {
    if (!token.empty()) tls_.emplace(token);
    master_.sin_family = AF_INET;
    master_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    master_.sin_port = htons(port);
  }

  std::unique_ptr<ScaleStream> Open(ScaleSpeaker* speaker) override {
    return std::make_unique<Http2Stream>(epoll_.get(), ScaleLine(master_, tls_ ? &*tls_ : nullptr), preface_, speaker);
  }

  void Serve(int64_t wait_ms) override {
    std::array<epoll_event, 256> events;
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), static_cast<int>(wait_ms));
    for (int i = 0; i < count; ++i) static_cast<Http2Stream*>(events[i].data.ptr)->OnReady(events[i].events);
  }

 private:
  const Fd epoll_;
  const std::string preface_;
  std::optional<ScaleTls> tls_;
  sockaddr_in master_{};
};

}  // namespace

std::unique_ptr<ScaleNetwork> NetworkTo(uint16_t port, const std::string& token) {
  return std::make_unique<Http2Network>(port, token);
}

}  // namespace phalanx::master

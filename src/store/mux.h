// One end of the connection between a relay and a store, as a pure machine: frames in, frames out, and a window for
// each client in each direction. No I/O, no clock. docs/formats/store-relay.md says what the bytes mean.
//
//   std::string_view input = bytes;                  // as they have come, cut anywhere
//   for (Mux::Event e = mux.Take(input); e.kind != Mux::Event::Kind::kMore; e = mux.Take(input)) {
//     ...                                            // mux.Taken(e.client, n) when n of e.bytes are gone from here
//   }
//   mux.Send(client, bytes.substr(0, mux.Room(client)));
//   send(mux.Output()); mux.Sent(n);
//
// Nothing that has come is kept: bytes of a client are handed on as they are. What is to go is bounded by Room().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::store {

// A client within one connection; given again when both ends have closed it.
using ClientNumber = uint16_t;

class Mux {
 public:
  enum class End { kRelay, kStore };

  // The first byte of a relay. No client of torch's and no text begins with it.
  static constexpr char kFirstByte = '\xf0';
  static constexpr size_t kGreetingBytes = 16;
  static constexpr size_t kHeadBytes = 8;
  static constexpr uint32_t kWindowBytes = 256 << 10;
  static constexpr size_t kClientsMax = 1 << 16;
  // Bytes of clients are added to what waits to be sent only below this.
  static constexpr size_t kOutputBytes = 64 << 10;
  // An end that takes nothing of what it is told is not listened to. More than what 65,536 clients can be told at a
  // time if the other end keeps to its word.
  static constexpr size_t kOutputMaxBytes = 4 << 20;

  struct Event {
    enum class Kind {
      kMore,       // the input is used up
      kGreeted,    // the other end is what it should be; once
      kOpened,     // only at a store: Close() it when it is done with
      kBytes,      // some more of `client`, never none
      kTaken,      // Room(client) may have grown
      kClosed,     // nothing more comes of `client`; Close() it when it is done with
      kViolation,  // nothing more comes at all: violation() says why
    };
    Kind kind = Kind::kMore;
    ClientNumber client = 0;
    std::string_view bytes;  // into the input
  };

  Mux(End end, uint64_t epoch);

  // Removes from the front of `input` what makes up the next event, or all of it.
  Event Take(std::string_view& input);
  bool greeted() const { return greeted_; }
  // A literal, or nullptr.
  const char* violation() const { return violation_; }

  // A relay's: the number of a client that has come. Absent: all are in use.
  std::optional<ClientNumber> Open();
  // So many bytes of `client` may be sent now; 0 once it is closed here.
  size_t Room(ClientNumber client) const;
  // At most Room(client) bytes.
  void Send(ClientNumber client, std::string_view bytes);
  // `bytes` of those that have come of `client` are no longer kept here.
  void Taken(ClientNumber client, size_t bytes);
  // Nothing more goes or comes of it. Once for each client.
  void Close(ClientNumber client);
  bool IsOpen(ClientNumber client) const { return client < channels_.size() && channels_[client].open_here; }

  std::string_view Output() const { return std::string_view(out_).substr(out_sent_); }
  // The first `bytes` of Output() are sent.
  void Sent(size_t bytes);
  // Whether bytes of clients have room in Output().
  bool HasRoom() const { return out_.size() - out_sent_ < kOutputBytes; }
  // False: what this end has said must be taken before it listens on.
  bool WantsInput() const { return violation_ == nullptr && out_.size() - out_sent_ < kOutputMaxBytes; }

 private:
  enum class Kind : uint8_t { kOpen = 1, kBytes = 2, kTaken = 3, kClosed = 4 };
  struct Channel {
    bool open_here = false;
    bool open_there = false;
    uint32_t under_way = 0;  // sent, and not told as taken
    uint32_t come = 0;       // ... in the other direction
    uint32_t untold = 0;     // of `come`: taken here
    bool used() const { return open_here || open_there; }
  };
  struct Head {
    Kind kind;
    ClientNumber client;
    uint32_t amount;
  };

  std::optional<Event> TakeGreeting(std::string_view& input);
  // Absent: the rest of it is to come, or the frame says nothing to the owner.
  std::optional<Event> TakeHead(std::string_view& input);
  std::optional<Event> TakeBytes(std::string_view& input);
  std::optional<Event> On(const Head& head);
  std::optional<Event> OnOpen(const Head& head);
  std::optional<Event> OnClosed(const Head& head);
  Event Break(const char* why);
  const char* WhyWrong(const Head& head) const;
  void Say(Kind kind, ClientNumber client, size_t amount);
  void FreeIfClosed(ClientNumber client);

  const End end_;
  const std::string greeting_;
  bool greeted_ = false;
  const char* violation_ = nullptr;
  std::array<char, kHeadBytes> head_{};
  size_t have_ = 0;            // of the greeting, then of head_
  uint32_t bytes_left_ = 0;    // of the frame that is being handed on
  ClientNumber bytes_of_ = 0;  // whose they are
  std::vector<Channel> channels_;
  std::vector<ClientNumber> free_;  // at a relay
  std::string out_;
  size_t out_sent_ = 0;
};

}  // namespace phalanx::store

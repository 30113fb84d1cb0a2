// The agent's side of the sockets to its Python processes: docs/formats/worker-socket.md.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/status.h"

namespace phalanx::agent {

constexpr size_t kMessageBytesMax = 8 << 20;
// Bounds of what the other end may claim.
constexpr size_t kModulesMax = 10'000;
constexpr size_t kModuleNameMax = 500;

// --- what Python says ---------------------------------------------------------------------------------------------

struct ZygoteReady {
  int64_t pid = 0;
  int64_t modules = 0;
  int64_t ms = 0;
};
struct ZygoteTainted {
  std::string module;
  std::string why;
};
struct ZygoteFailed {
  std::string reason;
};
struct ForkFailed {
  uint64_t id = 0;
  std::string reason;
};
struct SpareWaits {
  int64_t pid = 0;
};
struct ScriptStarted {
  std::string cold;  // why a spare had to start afresh; empty: it did not
  std::string deny;  // what no later life of this script shall find imported; empty: nothing
};
struct FirstStep {
  int64_t step = 0;
  std::vector<std::string> modules;
};
struct SafePointReached {
  int64_t step = 0;
};
struct LogLost {
  int stream = 1;  // 1: stdout, 2: stderr
  int error = 0;   // errno
};
using PeerMessage = std::variant<ZygoteReady, ZygoteTainted, ZygoteFailed, ForkFailed, SpareWaits, ScriptStarted,
                                 FirstStep, LogLost, SafePointReached>;

// Reads one message's text. Unknown types and missing or ill-typed fields are errors. Pure.
StatusOr<PeerMessage> ParsePeerMessage(std::string_view json);

// Cuts a stream of bytes into messages' texts. Pure.
class FrameReader {
 public:
  void Feed(std::string_view bytes) { buffer_.append(bytes); }
  // The next whole text; none yet; or an error, after which the stream is of no more use.
  StatusOr<std::optional<std::string>> Next();

 private:
  std::string buffer_;
};

// --- what the agent says ------------------------------------------------------------------------------------------

// A flat writer of JSON objects. Bytes of arguments and environment need not be UTF-8: they go out as they are, and
// Python reads them with surrogateescape, as it does its own environment.
class JsonObject {
 public:
  JsonObject& Add(std::string_view key, std::string_view value);
  JsonObject& Add(std::string_view key, int64_t value);
  JsonObject& Add(std::string_view key, const std::vector<std::string>& values);
  JsonObject& Add(std::string_view key, const std::map<std::string, std::string>& values);
  JsonObject& Add(std::string_view key, const JsonObject& value);
  JsonObject& AddNull(std::string_view key);
  JsonObject& AddTrue(std::string_view key);
  std::string Text() const { return text_ + "}"; }

 private:
  void Key(std::string_view key);
  std::string text_ = "{";
};

// --- the socket ---------------------------------------------------------------------------------------------------

// Our end of a socket pair, non-blocking. On the loop's thread.
class Channel {
 public:
  struct Events {
    std::function<void(PeerMessage)> on_message;
    // End of file, an error, or what nobody can read. Nothing follows; the channel may be destroyed from within.
    std::function<void(const Status& why)> on_closed;
  };

  Channel(EventLoop& loop, Fd socket, Events events);
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;
  ~Channel();

  // From now on others are told.
  void SetEvents(Events events) { events_ = std::move(events); }

  // Sends now what fits and the rest when there is room. `fds` go with the first byte and are closed here when sent.
  void Send(const std::string& json, std::vector<Fd> fds = {});

  // Serves what has arrived by now, without waiting for the loop. The channel must survive its callbacks then.
  void ReceiveNow();

  // {ours, theirs}; the latter is to be inherited or sent.
  static StatusOr<std::pair<Fd, Fd>> MakePair();

 private:
  struct Outgoing {
    std::string bytes;
    size_t sent = 0;
    std::vector<Fd> fds;
  };

  void OnEvents(uint32_t epoll_events);
  bool Receive();
  bool Deliver();
  void Flush();
  void WatchFor(bool writable);
  void Close(const Status& why);

  EventLoop& loop_;
  Fd socket_;
  Events events_;
  FrameReader reader_;
  std::deque<Outgoing> outgoing_;
  bool waits_for_room_ = false;
  bool closed_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace phalanx::agent

// One client of the workers' store, carried from the job's endpoint to where the live round's store is. Bytes are
// passed on as they come; none is looked at. Belongs to the loop's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/socket_address.h"

namespace phalanx::master {

class Relay {
 public:
  // Bytes that wait for one side at most; the other is not read meanwhile.
  static constexpr size_t kMaxWaiting = 1 << 20;
  // The store's machine has so long to take the connection.
  static constexpr int64_t kConnectMs = 10'000;

  // `client`: non-blocking. `on_over` is called once, last of all, when one side has ended and what it sent is passed
  // on, or either is broken; the relay may be destroyed in it. Nothing is called back once it is destroyed.
  Relay(EventLoop& loop, Fd client, std::function<void()> on_over);
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  // Closes both.
  ~Relay();

  // Connects to `store`, from `from` where that is no wildcard. False: the system refuses, and errno says why.
  bool Start(const SocketAddress& store, const SocketAddress& from);

 private:
  // One direction of the two.
  struct Side {
    Fd fd;
    std::string waiting;  // for this side to take
    bool ended = false;   // it sends nothing more
    uint32_t events = 0;  // watched
  };

  void OnConnecting();
  void OnEvents(Side& side, Side& other, uint32_t epoll_events);
  // False: broken, and over.
  bool Receive(Side& from, Side& to);
  bool Send(Side& side);
  void UpdateInterest(Side& side, const Side& other);
  void Over();

  EventLoop& loop_;
  std::function<void()> on_over_;
  Side client_;
  Side store_;
  EventLoop::TimerId connect_timer_{};
};

}  // namespace phalanx::master

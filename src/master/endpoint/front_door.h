// The job's endpoint: one port, where agents and commands find the master's gRPC server and ranks the store of the live
// round (docs/formats/endpoint.md). Accepts, tells callers apart by their first bytes, hands gRPC its connections
// untouched, and relays the others.
//
// Serves on a thread of its own from Start to destruction.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/local_peer.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "master/endpoint/relay.h"
#include "master/endpoint/room.h"

namespace phalanx::master {

class FrontDoor {
 public:
  // Who has not said who it is after this is closed.
  static constexpr int64_t kFirstBytesMs = 10'000;
  // Who has not proved by then that it belongs to the job is counted as turned away. gRPC closes it.
  static constexpr int64_t kProofMs = 10'000;
  // So many are watched for that at a time; further ones are not counted.
  static constexpr size_t kProvingMax = 4'096;

  struct Events {
    // A connection for gRPC, non-blocking, of which nothing has been read: in TLS, or in clear. On the door's thread.
    // Empty: who calls so is turned away.
    std::function<void(Fd)> on_tls;
    std::function<void(Fd)> on_plain;
    // One sentence on a caller that was turned away. On the door's thread.
    std::function<void(const std::string&)> on_refused;
  };

  // Binds and listens on `port` (0: any free one, the same on all hosts) of these IPs; a wildcard stands for both
  // families. AlreadyExists: the port is taken. InvalidArgument: no IP of this machine.
  static StatusOr<std::unique_ptr<FrontDoor>> Listen(const std::vector<std::string>& hosts, uint16_t port);
  FrontDoor(const FrontDoor&) = delete;
  FrontDoor& operator=(const FrontDoor&) = delete;
  // Closes every connection that is not gRPC's.
  ~FrontDoor();

  uint16_t port() const { return port_; }

  // Once.
  Status Start(Events events);

  // The rest: any thread, carried out in order. What had connected before is judged by what counted before.

  // The live round's store is at this IP and port; nobody is let in yet. Every client of another store is closed.
  void ServeStore(const std::string& ip, uint16_t store_port);
  // No round lives.
  void ServeNoStore();
  // Ranks may come from these addresses, or may not any longer (those that are in stay).
  void LetIn(std::vector<std::string> ips, bool allowed);
  // ... and from this machine by whatever address.
  void LetInLocal();
  // The caller from that address ("127.0.0.1:4711"), whom on_tls was given, belongs to the job.
  void Proved(const std::string& peer);
  // So many files of this process may be open when one more caller comes; at first as many as may be. Those that are in
  // stay.
  void SetRoom(EndpointRoom room);

 private:
  struct Visitor {  // who has not said who it is
    Fd fd;
    SocketAddress peer;
    // As a client of the store: judged when it came. What it sends later may be all that is left of it.
    std::string why_not;
    std::string why_foreign;  // another user of this machine, who may come by TLS alone
    uint64_t turn = 0;
    EventLoop::TimerId timer;
  };

  explicit FrontDoor(uint16_t port) : port_(port) {}
  void Post(std::function<void()> task);
  void ListenAgain();
  void AcceptAll();
  bool AcceptOne(int listener);
  void Look(uint64_t id, bool ended);
  void Admit(uint64_t id);
  // The connection, as whoever serves it expects it; the visitor is gone.
  Fd TakeOver(uint64_t id);
  void Drop(uint64_t id);
  void TurnAway(uint64_t id, const std::string& why);
  void AwaitProof(const std::string& peer);
  void NotProved(const std::string& peer);
  // Tells gRPC at the other end to go, in its own words.
  void SendAway(uint64_t id, const std::string& why);
  std::string WhyNot(const Visitor& visitor) const;
  void CloseRelays();

  const uint16_t port_;
  std::vector<Fd> listeners_;
  SocketAddress bound_to_;  // where there is one host: what relays leave by

  // Belong to the thread.
  EventLoop loop_;
  LocalPeers local_peers_;
  Events events_;
  std::map<uint64_t, Visitor> visitors_;
  std::map<std::string, EventLoop::TimerId> proving_;  // by address
  std::map<uint64_t, std::unique_ptr<Relay>> relays_;
  uint64_t next_id_ = 1;
  EventLoop::TimerId listen_again_{};
  bool serving_ = false;
  uint64_t turn_ = 0;  // of stores; counts them
  SocketAddress store_;
  std::set<IpBytes> let_in_;
  bool local_let_in_ = false;
  EndpointRoom room_{UINT64_MAX, ""};

  std::thread thread_;
};

}  // namespace phalanx::master

// What stands at the job's endpoint: the front door, gRPC behind it, and who of the live round's ranks is let in.
// Follows the job's state; belongs to the master's sequence, but for what the front door does on its own thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/grpc_peer.h"
#include "base/status.h"
#include "master/core/convert.h"
#include "master/core/core.h"
#include "master/endpoint/front_door.h"
#include "master/endpoint/live_clients.h"
#include "master/endpoint/refusals.h"
#include "master/endpoint/room.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

class Endpoint {
 public:
  // As FrontDoor::Listen.
  static StatusOr<std::unique_ptr<Endpoint>> Listen(const std::vector<std::string>& hosts, uint16_t port, bool verbose);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  uint16_t port() const { return door_->port(); }

  // Connections are given to the server that `builder` makes, from Start on. It must outlive this object, or be shut
  // down after it. Connections over TLS where there are credentials for them; those in clear where `plain`.
  void Offer(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& tls, bool plain);
  Status Start();

  // The store of a round is there. Of the live one, or of one that Follow is about to hear of.
  void OnStore(uint64_t epoch, const std::string& ip, uint32_t port);
  // Who is at the other end of a connection ("ipv4:127.0.0.1:4711", as gRPC has it) has shown a certificate.
  void Proved(const std::string& grpc_peer) { door_->Proved(PeerHostPort(grpc_peer)); }
  const Refusals& refusals() const { return refusals_; }
  // Somebody was turned away behind this door.
  void CountRefused(Refusals::Door door, const std::string& sentence) { refusals_.Add(door, sentence); }

  // After each step of the core: a round may have begun, or ended.
  void Follow(const JobState& state);
  // A node has attached: it may be a member of the live round, and may know its store.
  void OnHello(const JobState& state, uint64_t session, const v1::Hello& hello);
  // A message of a node: those that name the round whose ranks it runs say that older ones are gone.
  void OnMessage(const JobState& state, uint64_t session, const v1::AgentMessage& message);

 private:
  struct Store {
    uint64_t epoch = 0;
    std::string ip;
    uint16_t port = 0;
  };

  Endpoint(std::unique_ptr<FrontDoor> door, bool verbose) : verbose_(verbose), door_(std::move(door)) { MakeRoom({}); }
  void MakeRoom(const EndpointWorld& world);
  void Join(const JobState& state, uint64_t session);
  void Refused(const std::string& sentence);

  const bool verbose_;
  using Acceptor = std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor>;

  Acceptor plain_;  // null: connections in clear are not taken
  Acceptor tls_;
  LiveClients clients_;
  Store store_;
  bool all_let_in_ = false;
  EndpointWorld world_;
  Refusals refusals_;
  uint64_t refusals_told_ = 0;  // the door's thread only, as is when the first of them was
  Instant refusals_since_ = 0;
  std::unique_ptr<FrontDoor> door_;  // last: its thread ends before what it uses goes
};

}  // namespace phalanx::master

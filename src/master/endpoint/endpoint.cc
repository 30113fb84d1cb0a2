#include "master/endpoint/endpoint.h"

#include <set>
#include <utility>

#include "base/log.h"
#include "base/process/process.h"

namespace phalanx::master {
namespace {

// A scanner, or a rank that knocks again and again, must not fill the disk.
constexpr uint64_t kRefusalsTold = 32;
constexpr int64_t kRefusalsWithinMs = 60'000;

void GiveTo(grpc::experimental::ExternalConnectionAcceptor& acceptor, Fd fd) {
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.fd = fd.Release();
  acceptor.HandleNewConnection(&connection);
}

// Of the round whose ranks live on the node that says it; 0: the message does not say.
uint64_t EpochOf(const v1::AgentMessage& message) {
  if (message.has_beat()) return message.beat().epoch();
  if (message.has_first_step()) return message.first_step().epoch();
  return message.has_worker_exited() ? message.worker_exited().epoch() : 0;
}

}  // namespace

StatusOr<std::unique_ptr<Endpoint>> Endpoint::Listen(const std::vector<std::string>& hosts, uint16_t port,
                                                     bool verbose) {
  PHX_ASSIGN_OR_RETURN(std::unique_ptr<FrontDoor> door, FrontDoor::Listen(hosts, port));
  return std::unique_ptr<Endpoint>(new Endpoint(std::move(door), verbose));
}

void Endpoint::Offer(grpc::ServerBuilder& builder, const std::shared_ptr<grpc::ServerCredentials>& tls, bool plain) {
  using Type = grpc::ServerBuilder::experimental_type::ExternalConnectionType;
  if (plain) {
    plain_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, grpc::InsecureServerCredentials());
  }
  if (tls) tls_ = builder.experimental().AddExternalConnectionAcceptor(Type::FROM_FD, tls);
}

Status Endpoint::Start() {
  FrontDoor::Events events;
  if (plain_) events.on_plain = [this](Fd fd) { GiveTo(*plain_, std::move(fd)); };
  if (tls_) events.on_tls = [this](Fd fd) { GiveTo(*tls_, std::move(fd)); };
  events.on_refused = [this](const std::string& sentence) { Refused(sentence); };
  return door_->Start(std::move(events));
}

void Endpoint::Refused(const std::string& sentence) {
  refusals_.Add(Refusals::Door::kEndpoint, sentence);
  const Instant now = MonotonicMs();
  if (verbose_ && now - refusals_since_ >= kRefusalsWithinMs) {
    refusals_since_ = now;
    refusals_told_ = 0;
  }
  if (++refusals_told_ > kRefusalsTold) return;
  const char* last = verbose_ ? "; others within this minute are not told" : "; others are not told";
  Log(LogLevel::kInfo, "endpoint", {{"what", sentence + (refusals_told_ == kRefusalsTold ? last : "")}});
}

void Endpoint::OnStore(uint64_t epoch, const std::string& ip, uint32_t port) {
  if (epoch <= store_.epoch) return;
  store_ = {epoch, ip, static_cast<uint16_t>(port)};
  if (clients_.epoch() == epoch) door_->ServeStore(store_.ip, store_.port);  // of a master that was started anew
}

void Endpoint::Follow(const JobState& state) {
  const bool lives = state.phase == Phase::kRunning && state.round.has_value();
  const uint64_t epoch = lives ? state.round->epoch : 0;
  const EndpointWorld world = {state.spec ? state.spec->max_nodes() + kMaxSpares : 0,
                               lives ? state.round->world_size : 0};
  if (world != world_) MakeRoom(world);
  if (epoch == clients_.epoch()) return;
  all_let_in_ = false;
  if (!lives) {
    clients_.End();
    return door_->ServeNoStore();
  }
  size_t members = 0;
  for (const Slot& slot : state.round->slots) members += slot.session != 0 || slot.away ? 1 : 0;
  clients_.Begin(epoch, members);
  if (store_.epoch == epoch) {
    door_->ServeStore(store_.ip, store_.port);
  } else {
    door_->ServeNoStore();
  }
  for (const Slot& slot : state.round->slots) {
    if (slot.session != 0) Join(state, slot.session);
  }
}

void Endpoint::MakeRoom(const EndpointWorld& world) {
  world_ = world;
  door_->SetRoom(RoomFor(OpenFilesLimit(), world));
}

void Endpoint::Join(const JobState& state, uint64_t session) {
  const auto at = state.nodes.find(session);
  if (at == state.nodes.end()) return;
  const v1::Hello& hello = at->second.hello;
  const std::string& peer_address = at->second.peer_address;
  std::set<std::string> addresses(hello.interface_addresses().begin(), hello.interface_addresses().end());
  addresses.insert(hello.address());
  if (!peer_address.empty()) addresses.insert(peer_address);
  std::vector<std::string> closed = clients_.Join(hello.node_id(), addresses);
  if (!closed.empty()) door_->LetIn(std::move(closed), false);
}

void Endpoint::OnHello(const JobState& state, uint64_t session, const v1::Hello& hello) {
  const auto at = state.nodes.find(session);
  if (at == state.nodes.end()) return;  // it was refused
  if (hello.has_live_round()) {
    const v1::StartRound& round = hello.live_round();
    if (round.epoch() == clients_.epoch()) OnStore(round.epoch(), round.store_address(), round.store_port());
  }
  if (at->second.group_rank >= 0) Join(state, session);
}

void Endpoint::OnMessage(const JobState& state, uint64_t session, const v1::AgentMessage& message) {
  const uint64_t epoch = EpochOf(message);
  const auto at = state.nodes.find(session);
  if (epoch == 0 || epoch != clients_.epoch() || at == state.nodes.end()) return;
  std::vector<std::string> opened = clients_.Began(at->second.hello.node_id(), epoch);
  if (!opened.empty()) door_->LetIn(std::move(opened), true);
  if (clients_.all() && !std::exchange(all_let_in_, true)) door_->LetInLocal();
}

}  // namespace phalanx::master

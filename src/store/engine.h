// The c10d store as a pure machine: bytes of each connection in, bytes for this and other connections out. No I/O, no
// clock, no thread of its own: everything belongs to one caller. docs/formats/c10d-store.md says what the bytes mean.
//
//   const ConnectionId id = engine.Open();
//   engine.Receive(id, bytes);
//   engine.TakeChanged(&changed);            // `id`, and all whose WAIT it released
//   for (ConnectionId c : changed) {
//     send(engine.Output(c)); engine.Sent(c, n);
//     if (engine.violation(c) != nullptr) engine.Close(c);
//   }
//
// A breach of the protocol or of a limit closes the connection it came from and touches nobody else: the machine stops
// listening to it, and the caller sends what is left of its output and closes it.
//
// Every limit is a bound on memory. A connection whose replies are not taken is not served further once
// output_pause_bytes wait (WantsInput() turns false) until they are taken: its requests wait, here or in its socket.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "store/request.h"

namespace phalanx::store {

// Index of a connection; given again after Close().
using ConnectionId = uint32_t;

struct EngineOptions {
  RequestLimits request;
  // Keys, values, queues and registered waits, with a fixed charge for each.
  uint64_t max_store_bytes = 1ull << 30;
  // Half-read requests and unsent replies of all connections together.
  uint64_t max_buffer_bytes = 1ull << 30;
  uint64_t max_reply_bytes = 256ull << 20;
  uint64_t output_pause_bytes = 1ull << 20;
};

struct EngineStats {
  uint64_t connections = 0;  // open now
  uint64_t requests = 0;     // since the start
  uint64_t keys = 0;
  uint64_t queues = 0;   // that are not empty
  uint64_t waiting = 0;  // connections with a WAIT or BARRIER pending
  uint64_t store_bytes = 0;
  uint64_t buffer_bytes = 0;
  uint64_t violations = 0;  // connections refused since the start
};

class Engine {
 public:
  explicit Engine(const EngineOptions& options);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  ~Engine();

  ConnectionId Open();
  // Forgets the connection and its wait, at a cost that depends on its own wait alone; its data stays.
  void Close(ConnectionId id);

  // Serves `bytes`, which may begin and end anywhere in a request. Call it only while WantsInput(id); what came too
  // much is kept and counted. Ignored after a violation.
  void Receive(ConnectionId id, std::string_view bytes);
  // Serves what was kept back while output waited; call it when the output has been sent and HasBacklog(id).
  void Resume(ConnectionId id);

  // Connections that have new output or a new violation() since the last call, each once. Closed ones may be among
  // them.
  void TakeChanged(std::vector<ConnectionId>* changed);

  bool IsOpen(ConnectionId id) const { return id < connections_.size() && connections_[id] != nullptr; }
  std::string_view Output(ConnectionId id) const;
  // The first `bytes` of Output(id) are sent.
  void Sent(ConnectionId id, size_t bytes);
  bool WantsInput(ConnectionId id) const;
  bool HasBacklog(ConnectionId id) const;
  // Whether it has introduced itself, with VALIDATE.
  bool validated(ConnectionId id) const;
  // Why the connection must be closed, or nullptr. A literal.
  const char* violation(ConnectionId id) const;

  EngineStats stats() const;

 private:
  struct Connection;
  // One missing key of one WAIT, in the list of that key.
  struct Registration {
    Connection* owner;
    size_t index;  // into owner->parked
    bool barrier;
  };
  using Waiters = std::map<std::string, std::list<Registration>, std::less<>>;
  // The owner's side of a Registration.
  struct Parked {
    Waiters::iterator key;
    std::list<Registration>::iterator place;
    bool waiting;
  };
  using Handler = void (Engine::*)(Connection&, Request&);
  static const std::array<Handler, kOpCount> kHandlers;

  void Serve(Connection& c, std::string_view& bytes);
  void Execute(Connection& c, Request& request);
  void Fail(Connection& c, const char* why);
  void Recharge(Connection& c);
  void MarkChanged(Connection& c);

  void Validate(Connection& c, Request& request);
  void Set(Connection& c, Request& request);
  void CompareSet(Connection& c, Request& request);
  void Get(Connection& c, Request& request);
  void Add(Connection& c, Request& request);
  void Check(Connection& c, Request& request);
  void Wait(Connection& c, Request& request);
  void GetNumKeys(Connection& c, Request& request);
  void DeleteKey(Connection& c, Request& request);
  void Append(Connection& c, Request& request);
  void MultiGet(Connection& c, Request& request);
  void MultiSet(Connection& c, Request& request);
  void CancelWait(Connection& c, Request& request);
  void Ping(Connection& c, Request& request);
  void QueuePush(Connection& c, Request& request);
  void QueuePop(Connection& c, Request& request);
  void QueueLen(Connection& c, Request& request);
  void ListKeys(Connection& c, Request& request);
  void Barrier(Connection& c, Request& request);

  bool Exists(std::string_view key) const;
  std::string_view Value(std::string_view key) const;
  // False: the store is full, and the connection has been failed.
  bool Charge(Connection& c, uint64_t bytes);
  bool Store(Connection& c, const std::string& key, std::string value);
  // The counter under `key` plus `delta`, stored. False: it is no number or leaves i64, and the connection was failed.
  bool Count(Connection& c, const std::string& key, int64_t delta, int64_t* sum);

  void Park(Connection& c, const std::string& key, bool barrier);
  void Forget(Connection& c);
  void Arrive(Waiters::iterator key, std::list<Registration>::iterator place);
  void Wake(std::string_view key, bool barriers);
  void WakeOne(std::string_view key);
  void HandOver(Connection& c);

  bool MayReply(Connection& c, uint64_t bytes);
  void ReplyByte(Connection& c, char byte);
  void ReplyNumber(Connection& c, int64_t number);
  void ReplyBlob(Connection& c, std::string_view blob);

  const EngineOptions options_;
  std::map<std::string, std::string, std::less<>> data_;
  std::map<std::string, std::deque<std::string>, std::less<>> queues_;
  Waiters waiters_;
  std::vector<std::unique_ptr<Connection>> connections_;  // by id; null: free
  std::vector<ConnectionId> free_ids_;
  std::vector<ConnectionId> changed_;
  uint64_t key_bytes_ = 0;  // of all keys of data_
  EngineStats stats_;
};

}  // namespace phalanx::store

// More than 500 lines: each command of the protocol, on one table of keys and of those who wait for them.
#include "store/engine.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string>
#include <utility>

#include "base/check.h"

namespace phalanx::store {
namespace {

// Charged beside the bytes of keys and values, for the containers they live in.
constexpr uint64_t kEntryCharge = 128;
constexpr uint64_t kQueueCharge = 768;
constexpr uint64_t kItemCharge = 32;
constexpr uint64_t kWaitCharge = 192;

constexpr size_t kKeptOutputBytes = 64 << 10;  // capacity that an emptied output buffer may keep
constexpr size_t kKeptParked = 64;

// A number at the front of `text`, as strtoll reads it: leading blanks and what follows the digits are ignored.
bool ParseCounter(std::string_view text, int64_t* number) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n\v\f\r"), text.size()));
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return false;
  }
  return std::from_chars(text.data(), text.data() + text.size(), *number).ec == std::errc();
}

}  // namespace

struct Engine::Connection {
  Connection(ConnectionId own_id, const RequestLimits& limits) : id(own_id), parser(limits) {}

  const ConnectionId id;
  bool validated = false;
  bool changed = false;  // is in changed_
  const char* violation = nullptr;

  RequestParser parser;
  std::string backlog;  // bytes not parsed yet because output waits
  std::string out;
  size_t out_sent = 0;
  uint64_t charged_bytes = 0;  // of the above, counted in buffer_bytes

  // The pending WAIT or BARRIER: one entry for each key that was missing when it came. None: nothing is pending.
  std::vector<Parked> parked;
  size_t missing = 0;
  // Queues whose push was spent on this connection's wait and which it has not popped from yet.
  std::vector<std::string> claims;
};

const std::array<Engine::Handler, kOpCount> Engine::kHandlers = {
    &Engine::Validate, &Engine::Set,      &Engine::CompareSet, &Engine::Get,       &Engine::Add,
    &Engine::Check,    &Engine::Wait,     &Engine::GetNumKeys, &Engine::DeleteKey, &Engine::Append,
    &Engine::MultiGet, &Engine::MultiSet, &Engine::CancelWait, &Engine::Ping,      &Engine::QueuePush,
    &Engine::QueuePop, &Engine::QueueLen, &Engine::ListKeys,   &Engine::Barrier,
};

Engine::Engine(const EngineOptions& options) : options_(options) {}
Engine::~Engine() = default;

ConnectionId Engine::Open() {
  ConnectionId id = static_cast<ConnectionId>(connections_.size());
  if (free_ids_.empty()) {
    connections_.emplace_back();
  } else {
    id = free_ids_.back();
    free_ids_.pop_back();
  }
  connections_[id] = std::make_unique<Connection>(id, options_.request);
  ++stats_.connections;
  return id;
}

void Engine::Close(ConnectionId id) {
  Connection& c = *connections_[id];
  Forget(c);
  HandOver(c);
  stats_.buffer_bytes -= c.charged_bytes;
  --stats_.connections;
  connections_[id].reset();
  free_ids_.push_back(id);
}

void Engine::Receive(ConnectionId id, std::string_view bytes) {
  Connection& c = *connections_[id];
  if (c.violation != nullptr) return;
  if (c.backlog.empty()) Serve(c, bytes);
  if (c.violation == nullptr) c.backlog.append(bytes);
  Recharge(c);
}

void Engine::Resume(ConnectionId id) {
  Connection& c = *connections_[id];
  if (c.violation != nullptr) return;
  std::string_view bytes = c.backlog;
  Serve(c, bytes);
  if (c.violation == nullptr) c.backlog.erase(0, c.backlog.size() - bytes.size());
  Recharge(c);
}

// Takes requests from the front of `bytes` until none is complete, or until too much output waits.
void Engine::Serve(Connection& c, std::string_view& bytes) {
  while (!bytes.empty() && c.violation == nullptr && WantsInput(c.id)) {
    // A stranger shows with its first byte, perhaps one that starts a long request.
    if (!c.validated && c.parser.idle() && bytes.front() != 0) return Fail(c, "the first request is not VALIDATE");
    switch (c.parser.Parse(bytes)) {
      case RequestParser::Result::kMore:
        return;
      case RequestParser::Result::kViolation:
        return Fail(c, c.parser.violation());
      case RequestParser::Result::kRequest:
        Execute(c, c.parser.request());
    }
  }
}

void Engine::Execute(Connection& c, Request& request) {
  ++stats_.requests;
  // An item that released this connection but is not what it asks for now may release the next in line.
  if (!c.claims.empty() && request.op != Op::kQueuePop) HandOver(c);
  (this->*kHandlers[static_cast<size_t>(request.op)])(c, request);
  c.parser.Release();
}

void Engine::Fail(Connection& c, const char* why) {
  if (c.violation != nullptr) return;
  c.violation = why;
  ++stats_.violations;
  Forget(c);
  HandOver(c);
  MarkChanged(c);
}

void Engine::MarkChanged(Connection& c) {
  if (c.changed) return;
  c.changed = true;
  changed_.push_back(c.id);
}

void Engine::TakeChanged(std::vector<ConnectionId>* changed) {
  changed->clear();
  changed->swap(changed_);
  for (const ConnectionId id : *changed) {
    if (IsOpen(id)) connections_[id]->changed = false;
  }
}

// Brings buffer_bytes up to date with what this connection holds.
void Engine::Recharge(Connection& c) {
  if (c.violation != nullptr) {
    c.backlog = std::string();
    c.parser.Release();
  }
  const uint64_t now_bytes = c.parser.held_bytes() + c.backlog.size() + c.out.size();
  stats_.buffer_bytes += now_bytes - c.charged_bytes;  // modulo 2^64: right for a fall as well
  const bool grew = now_bytes > c.charged_bytes;
  c.charged_bytes = now_bytes;
  if (grew && stats_.buffer_bytes > options_.max_buffer_bytes && c.violation == nullptr) {
    Fail(c, "the store's buffers are full");
    Recharge(c);
  }
}

std::string_view Engine::Output(ConnectionId id) const {
  const Connection& c = *connections_[id];
  return std::string_view(c.out).substr(c.out_sent);
}

void Engine::Sent(ConnectionId id, size_t bytes) {
  Connection& c = *connections_[id];
  PHX_CHECK(bytes <= c.out.size() - c.out_sent, "more sent than there was");
  c.out_sent += bytes;
  if (c.out_sent < c.out.size()) {
    // A reader that is never quite up to date must not make the sent part grow.
    if (c.out_sent < std::max(kKeptOutputBytes, c.out.size() / 2)) return;
    c.out.erase(0, c.out_sent);
    c.out_sent = 0;
    return Recharge(c);
  }
  c.out_sent = 0;
  if (c.out.capacity() > kKeptOutputBytes) {
    c.out = std::string();
  } else {
    c.out.clear();
  }
  Recharge(c);
}

bool Engine::WantsInput(ConnectionId id) const {
  const Connection& c = *connections_[id];
  return c.violation == nullptr && c.out.size() - c.out_sent <= options_.output_pause_bytes;
}

bool Engine::HasBacklog(ConnectionId id) const { return !connections_[id]->backlog.empty(); }

bool Engine::validated(ConnectionId id) const { return connections_[id]->validated; }

const char* Engine::violation(ConnectionId id) const { return connections_[id]->violation; }

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.keys = data_.size();
  stats.queues = queues_.size();
  return stats;
}

// ---- data

bool Engine::Exists(std::string_view key) const {
  return data_.find(key) != data_.end() || queues_.find(key) != queues_.end();
}

std::string_view Engine::Value(std::string_view key) const {
  const auto it = data_.find(key);
  return it == data_.end() ? std::string_view() : it->second;
}

bool Engine::Charge(Connection& c, uint64_t bytes) {
  if (bytes > options_.max_store_bytes - std::min(stats_.store_bytes, options_.max_store_bytes)) {
    Fail(c, "the store is full");
    return false;
  }
  stats_.store_bytes += bytes;
  return true;
}

bool Engine::Store(Connection& c, const std::string& key, std::string value) {
  const auto it = data_.find(key);
  if (it == data_.end()) {
    if (!Charge(c, kEntryCharge + key.size() + value.size())) return false;
    key_bytes_ += key.size();
    data_.emplace(key, std::move(value));
    return true;
  }
  const uint64_t old_bytes = it->second.size();
  if (value.size() > old_bytes && !Charge(c, value.size() - old_bytes)) return false;
  if (value.size() < old_bytes) stats_.store_bytes -= old_bytes - value.size();
  it->second = std::move(value);
  return true;
}

bool Engine::Count(Connection& c, const std::string& key, int64_t delta, int64_t* sum) {
  int64_t before = 0;
  const auto it = data_.find(key);
  if (it != data_.end() && !ParseCounter(it->second, &before)) {
    Fail(c, "counting under a key whose value is not a number");
    return false;
  }
  if (__builtin_add_overflow(before, delta, sum)) {
    Fail(c, "a counter left the range of 64 bits");
    return false;
  }
  return Store(c, key, std::to_string(*sum));
}

// ---- waits

// Registers one missing key of the wait being built; failed connections are not registered.
void Engine::Park(Connection& c, const std::string& key, bool barrier) {
  if (!Charge(c, kWaitCharge + key.size())) return;
  const auto it = waiters_.try_emplace(key).first;
  it->second.push_back(Registration{&c, c.parked.size(), barrier});
  c.parked.push_back(Parked{it, std::prev(it->second.end()), true});
  if (c.missing++ == 0) ++stats_.waiting;
}

// Takes back the pending wait, if there is one.
void Engine::Forget(Connection& c) {
  for (const Parked& parked : c.parked) {
    if (!parked.waiting) continue;
    stats_.store_bytes -= kWaitCharge + parked.key->first.size();
    parked.key->second.erase(parked.place);
    if (parked.key->second.empty()) waiters_.erase(parked.key);
  }
  if (c.missing > 0) --stats_.waiting;
  c.missing = 0;
  c.parked.clear();
  if (c.parked.capacity() > kKeptParked) c.parked.shrink_to_fit();
}

// One key that a wait missed is there: its registration goes, and the last one to go releases the client. The (perhaps
// empty) list of the key stays.
void Engine::Arrive(Waiters::iterator key, std::list<Registration>::iterator place) {
  Connection& owner = *place->owner;
  owner.parked[place->index].waiting = false;
  stats_.store_bytes -= kWaitCharge + key->first.size();
  key->second.erase(place);
  if (owner.missing > 1) {
    --owner.missing;
    return;
  }
  Forget(owner);
  ReplyByte(owner, 0);
  ++owner.charged_bytes;  // by hand: Recharge() could fail the owner, and so change the list the caller walks along
  ++stats_.buffer_bytes;
}

// `key` has come into being. Participants of a BARRIER are released by its last participant alone (`barriers`).
void Engine::Wake(std::string_view key, bool barriers) {
  const auto it = waiters_.find(key);
  if (it == waiters_.end()) return;
  for (auto place = it->second.begin(); place != it->second.end();) {
    const auto next = std::next(place);
    if (barriers || !place->barrier) Arrive(it, place);
    place = next;
  }
  if (it->second.empty()) waiters_.erase(it);
}

// An item has come into the queue `key`: it is for the oldest waiter alone.
void Engine::WakeOne(std::string_view key) {
  const auto it = waiters_.find(key);
  if (it == waiters_.end()) return;
  auto& list = it->second;
  const auto place = std::find_if(list.begin(), list.end(), [](const Registration& r) { return !r.barrier; });
  if (place == list.end()) return;
  place->owner->claims.emplace_back(key);
  Arrive(it, place);
  if (list.empty()) waiters_.erase(it);
}

// Items that released this connection's wait and are still there go to the next waiter.
void Engine::HandOver(Connection& c) {
  const std::vector<std::string> claims = std::exchange(c.claims, {});
  for (const std::string& key : claims) {
    if (queues_.find(key) != queues_.end()) WakeOne(key);
  }
}

// ---- replies

// Whether a reply of `bytes` may be made; if not the connection has been failed.
bool Engine::MayReply(Connection& c, uint64_t bytes) {
  if (bytes > options_.max_reply_bytes) {
    Fail(c, "reply too long");
    return false;
  }
  if (bytes > options_.max_buffer_bytes - std::min(stats_.buffer_bytes, options_.max_buffer_bytes)) {
    Fail(c, "the store's buffers are full");
    return false;
  }
  return true;
}

void Engine::ReplyByte(Connection& c, char byte) {
  c.out.push_back(byte);
  MarkChanged(c);
}

void Engine::ReplyNumber(Connection& c, int64_t number) {
  c.out.append(reinterpret_cast<const char*>(&number), sizeof number);
  MarkChanged(c);
}

void Engine::ReplyBlob(Connection& c, std::string_view blob) {
  ReplyNumber(c, static_cast<int64_t>(blob.size()));
  c.out.append(blob);
}

// ---- requests

void Engine::Validate(Connection& c, Request& request) {
  if (c.validated) return Fail(c, "a second VALIDATE");
  if (request.word != kValidateMagic) return Fail(c, "VALIDATE with a wrong number");
  c.validated = true;
}

void Engine::Ping(Connection& c, Request& request) {
  c.out.append(reinterpret_cast<const char*>(&request.word), sizeof request.word);
  MarkChanged(c);
}

void Engine::Set(Connection& c, Request& request) {
  if (Store(c, request.blobs[0], std::move(request.blobs[1]))) Wake(request.blobs[0], false);
}

void Engine::CompareSet(Connection& c, Request& request) {
  const std::string& key = request.blobs[0];
  const std::string& expected = request.blobs[1];
  std::string& desired = request.blobs[2];
  const auto it = data_.find(key);
  const bool replace = it == data_.end() ? expected.empty() : it->second == expected;
  const std::string& reply = replace || it == data_.end() ? (replace ? desired : expected) : it->second;
  if (!MayReply(c, sizeof(int64_t) + reply.size())) return;
  const size_t before = c.out.size();
  ReplyBlob(c, reply);
  if (!replace) return;
  if (!Store(c, key, std::move(desired))) return c.out.resize(before);
  Wake(key, false);
}

void Engine::Get(Connection& c, Request& request) {
  const std::string_view value = Value(request.blobs[0]);
  if (MayReply(c, sizeof(int64_t) + value.size())) ReplyBlob(c, value);
}

void Engine::Add(Connection& c, Request& request) {
  int64_t sum = 0;
  if (!Count(c, request.blobs[0], request.number, &sum)) return;
  ReplyNumber(c, sum);
  Wake(request.blobs[0], false);
}

void Engine::Check(Connection& c, Request& request) {
  const bool all = std::all_of(request.blobs.begin(), request.blobs.end(), [this](const auto& k) { return Exists(k); });
  ReplyByte(c, all ? 0 : 1);
}

void Engine::Wait(Connection& c, Request& request) {
  if (c.missing > 0) return Fail(c, "a second WAIT while one is pending");
  for (const std::string& key : request.blobs) {
    if (!Exists(key)) Park(c, key, false);
    if (c.violation != nullptr) return;
  }
  if (c.missing == 0) ReplyByte(c, 0);
}

void Engine::GetNumKeys(Connection& c, Request&) { ReplyNumber(c, static_cast<int64_t>(data_.size())); }

void Engine::DeleteKey(Connection& c, Request& request) {
  const auto it = data_.find(request.blobs[0]);
  ReplyNumber(c, it != data_.end() ? 1 : 0);
  if (it == data_.end()) return;
  stats_.store_bytes -= kEntryCharge + it->first.size() + it->second.size();
  key_bytes_ -= it->first.size();
  data_.erase(it);
}

void Engine::Append(Connection& c, Request& request) {
  const auto it = data_.find(request.blobs[0]);
  if (it == data_.end()) return Set(c, request);
  if (!Charge(c, request.blobs[1].size())) return;
  it->second.append(request.blobs[1]);
  Wake(request.blobs[0], false);
}

void Engine::MultiGet(Connection& c, Request& request) {
  std::vector<std::string_view> values;
  values.reserve(request.blobs.size());
  uint64_t bytes = 0;
  for (const std::string& key : request.blobs) {
    values.push_back(Value(key));
    bytes += sizeof(int64_t) + values.back().size();
  }
  if (!MayReply(c, bytes)) return;
  c.out.reserve(c.out.size() + bytes);
  for (const std::string_view value : values) ReplyBlob(c, value);
}

void Engine::MultiSet(Connection& c, Request& request) {
  // Nothing is stored unless all of it surely fits: counted as if every key were new.
  uint64_t bytes = 0;
  for (const std::string& blob : request.blobs) bytes += kEntryCharge + blob.size();
  if (!Charge(c, bytes)) return;
  stats_.store_bytes -= bytes;
  for (size_t i = 0; i < request.blobs.size(); i += 2) {
    if (Store(c, request.blobs[i], std::move(request.blobs[i + 1]))) Wake(request.blobs[i], false);
  }
}

void Engine::CancelWait(Connection& c, Request&) {
  Forget(c);
  ReplyByte(c, 1);
}

void Engine::QueuePush(Connection& c, Request& request) {
  const std::string& key = request.blobs[0];
  const auto it = queues_.find(key);
  const uint64_t bytes = kItemCharge + request.blobs[1].size();
  if (!Charge(c, bytes + (it == queues_.end() ? kQueueCharge + key.size() : 0))) return;
  queues_[key].push_back(std::move(request.blobs[1]));
  WakeOne(key);
}

void Engine::QueuePop(Connection& c, Request& request) {
  const std::string& key = request.blobs[0];
  const auto claim = std::find(c.claims.begin(), c.claims.end(), key);
  if (claim != c.claims.end()) c.claims.erase(claim);
  const auto it = queues_.find(key);
  if (it == queues_.end()) return ReplyNumber(c, 0);
  std::deque<std::string>& items = it->second;
  if (!MayReply(c, 2 * sizeof(int64_t) + items.front().size())) return;
  ReplyNumber(c, static_cast<int64_t>(items.size()));
  ReplyBlob(c, items.front());
  stats_.store_bytes -= kItemCharge + items.front().size();
  items.pop_front();
  if (!items.empty()) return;
  stats_.store_bytes -= kQueueCharge + key.size();
  queues_.erase(it);
}

void Engine::QueueLen(Connection& c, Request& request) {
  const auto it = queues_.find(request.blobs[0]);
  ReplyNumber(c, it == queues_.end() ? 0 : static_cast<int64_t>(it->second.size()));
}

void Engine::ListKeys(Connection& c, Request&) {
  const uint64_t bytes = sizeof(int64_t) * (1 + data_.size()) + key_bytes_;
  if (!MayReply(c, bytes)) return;
  c.out.reserve(c.out.size() + bytes);
  ReplyNumber(c, static_cast<int64_t>(data_.size()));
  for (const auto& [key, value] : data_) ReplyBlob(c, key);
}

void Engine::Barrier(Connection& c, Request& request) {
  if (c.missing > 0) return Fail(c, "BARRIER while a wait is pending");
  const std::string& key = request.blobs[0];
  int64_t count = 0;
  if (!Count(c, key, 1, &count)) return;
  if (count < request.number) return Park(c, key, true);
  ReplyByte(c, 0);
  Wake(key, true);
}

}  // namespace phalanx::store

#include "store/mux.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"

namespace phalanx::store {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and is copied as it is");

constexpr size_t kMagicBytes = 8;
constexpr size_t kKeptOutputBytes = 16 << 10;  // capacity that an emptied output buffer may keep

std::string Greeting(uint64_t epoch) {
  std::string bytes = {Mux::kFirstByte, 'P', 'H', 'X', 'R', 'L', 'Y', '\x01'};
  bytes.append(reinterpret_cast<const char*>(&epoch), sizeof epoch);
  return bytes;
}

}  // namespace

Mux::Mux(End end, uint64_t epoch) : end_(end), greeting_(Greeting(epoch)) {
  if (end_ == End::kRelay) out_ = greeting_;
}

// ---- what comes

Mux::Event Mux::Take(std::string_view& input) {
  while (!input.empty() && violation_ == nullptr) {
    std::optional<Event> event;
    if (!greeted_) {
      event = TakeGreeting(input);
    } else if (bytes_left_ > 0) {
      event = TakeBytes(input);
    } else {
      event = TakeHead(input);
    }
    if (event) return *event;
  }
  return {};
}

// A stranger shows with its first wrong byte.
std::optional<Mux::Event> Mux::TakeGreeting(std::string_view& input) {
  const size_t count = std::min(input.size(), greeting_.size() - have_);
  for (size_t i = 0; i < count; ++i) {
    if (input[i] == greeting_[have_ + i]) continue;
    return Break(have_ + i < kMagicBytes ? "it greets otherwise than a relay and its store do, or by another version"
                                         : "it is of another round");
  }
  have_ += count;
  input.remove_prefix(count);
  if (have_ < greeting_.size()) return {};
  have_ = 0;
  greeted_ = true;
  if (end_ == End::kStore) out_.append(greeting_);
  return Event{Event::Kind::kGreeted, 0, {}};
}

std::optional<Mux::Event> Mux::TakeBytes(std::string_view& input) {
  const size_t count = std::min<size_t>(input.size(), bytes_left_);
  const std::string_view bytes = input.substr(0, count);
  input.remove_prefix(count);
  bytes_left_ -= static_cast<uint32_t>(count);
  if (!channels_[bytes_of_].open_here) return {};  // they were on their way when it was closed
  return Event{Event::Kind::kBytes, bytes_of_, bytes};
}

std::optional<Mux::Event> Mux::TakeHead(std::string_view& input) {
  const size_t count = std::min(input.size(), kHeadBytes - have_);
  std::memcpy(head_.data() + have_, input.data(), count);
  have_ += count;
  input.remove_prefix(count);
  if (have_ < kHeadBytes) return {};
  have_ = 0;
  Head head{};
  const auto kind = static_cast<uint8_t>(head_[0]);
  if (kind < static_cast<uint8_t>(Kind::kOpen) || kind > static_cast<uint8_t>(Kind::kClosed) || head_[1] != 0) {
    return Break("a frame of an unknown kind");
  }
  head.kind = static_cast<Kind>(kind);
  std::memcpy(&head.client, head_.data() + 2, sizeof head.client);
  std::memcpy(&head.amount, head_.data() + 4, sizeof head.amount);
  if (const char* why = WhyWrong(head); why != nullptr) return Break(why);
  return On(head);
}

const char* Mux::WhyWrong(const Head& head) const {
  const bool has_amount = head.kind == Kind::kBytes || head.kind == Kind::kTaken;
  if (has_amount != (head.amount > 0) || head.amount > kWindowBytes)
    return "a frame with an amount that it cannot have";
  if (head.kind == Kind::kOpen) {
    if (end_ == End::kRelay) return "a store that opens a client";
    if (head.client > channels_.size()) return "a client whose number is not the next one";
    return head.client < channels_.size() && channels_[head.client].used() ? "a client that is open already" : nullptr;
  }
  if (head.client >= channels_.size() || !channels_[head.client].open_there)
    return "a frame of a client that is not open";
  const Channel& channel = channels_[head.client];
  if (head.kind == Kind::kBytes && head.amount > kWindowBytes - channel.come) return "more of a client than its window";
  // Of one that is closed here it is no longer known what was under way.
  const bool known = channel.open_here;
  if (head.kind == Kind::kTaken && known && head.amount > channel.under_way) return "more taken than was sent";
  return nullptr;
}

std::optional<Mux::Event> Mux::On(const Head& head) {
  switch (head.kind) {
    case Kind::kOpen:
      return OnOpen(head);
    case Kind::kBytes:
      channels_[head.client].come += head.amount;
      bytes_of_ = head.client;
      bytes_left_ = head.amount;
      return {};
    case Kind::kTaken:
      if (!channels_[head.client].open_here) return {};
      channels_[head.client].under_way -= head.amount;
      return Event{Event::Kind::kTaken, head.client, {}};
    case Kind::kClosed:
      return OnClosed(head);
  }
  return {};
}

std::optional<Mux::Event> Mux::OnOpen(const Head& head) {
  if (head.client == channels_.size()) channels_.emplace_back();
  channels_[head.client] = Channel{true, true, 0, 0, 0};
  return Event{Event::Kind::kOpened, head.client, {}};
}

std::optional<Mux::Event> Mux::OnClosed(const Head& head) {
  channels_[head.client].open_there = false;
  FreeIfClosed(head.client);
  if (!channels_[head.client].open_here) return {};
  return Event{Event::Kind::kClosed, head.client, {}};
}

Mux::Event Mux::Break(const char* why) {
  violation_ = why;
  return Event{Event::Kind::kViolation, 0, {}};
}

// ---- what goes

std::optional<ClientNumber> Mux::Open() {
  PHX_CHECK(end_ == End::kRelay, "a store opened a client");
  ClientNumber client = static_cast<ClientNumber>(channels_.size());
  if (!free_.empty()) {
    client = free_.back();
    free_.pop_back();
  } else if (channels_.size() < kClientsMax) {
    channels_.emplace_back();
  } else {
    return std::nullopt;
  }
  channels_[client] = Channel{true, true, 0, 0, 0};
  Say(Kind::kOpen, client, 0);
  return client;
}

size_t Mux::Room(ClientNumber client) const {
  if (!IsOpen(client) || !channels_[client].open_there || !HasRoom()) return 0;
  return std::min<size_t>(kWindowBytes - channels_[client].under_way, kOutputBytes - (out_.size() - out_sent_));
}

void Mux::Send(ClientNumber client, std::string_view bytes) {
  PHX_CHECK(bytes.size() <= Room(client), "more of a client than there is room for");
  if (bytes.empty()) return;
  channels_[client].under_way += static_cast<uint32_t>(bytes.size());
  Say(Kind::kBytes, client, bytes.size());
  out_.append(bytes);
}

void Mux::Taken(ClientNumber client, size_t bytes) {
  PHX_CHECK(IsOpen(client) && bytes <= channels_[client].come - channels_[client].untold, "more taken than has come");
  Channel& channel = channels_[client];
  channel.untold += static_cast<uint32_t>(bytes);
  if (channel.untold < kWindowBytes / 2 || !channel.open_there) return;
  Say(Kind::kTaken, client, channel.untold);
  channel.come -= channel.untold;
  channel.untold = 0;
}

void Mux::Close(ClientNumber client) {
  PHX_CHECK(IsOpen(client), "a client was closed that is not open");
  channels_[client].open_here = false;
  Say(Kind::kClosed, client, 0);
  FreeIfClosed(client);
}

void Mux::FreeIfClosed(ClientNumber client) {
  if (!channels_[client].used() && end_ == End::kRelay) free_.push_back(client);
}

void Mux::Say(Kind kind, ClientNumber client, size_t amount) {
  const auto word = static_cast<uint32_t>(amount);
  std::array<char, kHeadBytes> head{};
  head[0] = static_cast<char>(kind);
  std::memcpy(head.data() + 2, &client, sizeof client);
  std::memcpy(head.data() + 4, &word, sizeof word);
  out_.append(head.data(), head.size());
}

void Mux::Sent(size_t bytes) {
  PHX_CHECK(bytes <= out_.size() - out_sent_, "more sent than there was");
  out_sent_ += bytes;
  if (out_sent_ < out_.size()) {
    // A reader that is never quite up to date must not make the sent part grow.
    if (out_sent_ < std::max(kKeptOutputBytes, out_.size() / 2)) return;
    out_.erase(0, out_sent_);
  } else if (out_.capacity() > kKeptOutputBytes) {
    out_ = std::string();
  } else {
    out_.clear();
  }
  out_sent_ = 0;
}

}  // namespace phalanx::store

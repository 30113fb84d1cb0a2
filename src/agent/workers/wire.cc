#include "agent/workers/wire.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace phalanx::agent {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 4;
constexpr size_t kFdsMax = 8;
constexpr size_t kReasonMax = 4096;
constexpr int64_t kErrnoMax = 4095;  // the kernel's own limit

// --- reading fields: nothing is believed ---

const Json* Field(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

bool Get(const Json& object, const char* key, int64_t& value) {
  const Json* field = Field(object, key);
  if (field == nullptr || !field->is_number_integer()) return false;
  if (field->is_number_unsigned() && field->get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  value = field->get<int64_t>();
  return true;
}

bool Get(const Json& object, const char* key, std::string& value, size_t limit) {
  const Json* field = Field(object, key);
  if (field == nullptr || !field->is_string()) return false;
  value = field->get_ref<const std::string&>().substr(0, limit);
  return true;
}

bool Get(const Json& object, const char* key, std::vector<std::string>& values) {
  const Json* field = Field(object, key);
  if (field == nullptr || !field->is_array()) return false;
  for (const Json& item : *field) {
    if (values.size() == kModulesMax) break;
    if (!item.is_string()) return false;
    const std::string& text = item.get_ref<const std::string&>();
    if (!text.empty() && text.size() <= kModuleNameMax) values.push_back(text);
  }
  return true;
}

Status Lacking(const std::string& type) {
  return absl::InvalidArgumentError(fmt::format("a message '{}' whose fields cannot be read", type.substr(0, 100)));
}

StatusOr<PeerMessage> ParseZygoteMessage(const std::string& type, const Json& json) {
  if (type == "ready") {
    ZygoteReady ready;
    if (!Get(json, "pid", ready.pid) || !Get(json, "modules", ready.modules) || !Get(json, "ms", ready.ms))
      return Lacking(type);
    return ready;
  }
  if (type == "tainted") {
    ZygoteTainted tainted;
    if (!Get(json, "module", tainted.module, kModuleNameMax) || !Get(json, "why", tainted.why, kReasonMax))
      return Lacking(type);
    return tainted;
  }
  if (type == "failed") {
    ZygoteFailed failed;
    if (!Get(json, "reason", failed.reason, kReasonMax)) return Lacking(type);
    return failed;
  }
  if (type == "fork_failed") {
    ForkFailed failed;
    int64_t id = 0;
    if (!Get(json, "id", id) || id < 0 || !Get(json, "reason", failed.reason, kReasonMax)) return Lacking(type);
    failed.id = static_cast<uint64_t>(id);
    return failed;
  }
  return absl::InvalidArgumentError(fmt::format("a message of the unknown type '{}'", type.substr(0, 100)));
}

// --- writing ---

void AppendQuoted(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      out += c;
    }
  }
  out += '"';
}

}  // namespace

StatusOr<PeerMessage> ParsePeerMessage(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::string type;
  if (!json.is_object() || !Get(json, "type", type, kReasonMax)) {
    return absl::InvalidArgumentError("a message that is no JSON object with a type");
  }
  if (type == "spare") {
    SpareWaits spare;
    if (!Get(json, "pid", spare.pid)) return Lacking(type);
    return spare;
  }
  if (type == "started") {
    ScriptStarted started;
    if (json.contains("cold") && !Get(json, "cold", started.cold, kReasonMax)) return Lacking(type);
    if (json.contains("deny") && !Get(json, "deny", started.deny, kModuleNameMax)) return Lacking(type);
    return started;
  }
  if (type == "first_step") {
    FirstStep first;
    if (!Get(json, "step", first.step) || !Get(json, "modules", first.modules)) return Lacking(type);
    return first;
  }
  if (type == "safe_point") {
    SafePointReached safe;
    if (!Get(json, "step", safe.step)) return Lacking(type);
    return safe;
  }
  if (type == "log_lost") {
    int64_t stream = 0;
    int64_t error = 0;
    if (!Get(json, "stream", stream) || !Get(json, "errno", error)) return Lacking(type);
    if (stream < 1 || stream > 2 || error < 1 || error > kErrnoMax) return Lacking(type);
    return LogLost{static_cast<int>(stream), static_cast<int>(error)};
  }
  return ParseZygoteMessage(type, json);
}

StatusOr<std::optional<std::string>> FrameReader::Next() {
  if (buffer_.size() < kLengthBytes) return std::nullopt;
  uint32_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) length = length << 8 | static_cast<unsigned char>(buffer_[i]);
  if (length > kMessageBytesMax) return absl::InvalidArgumentError(fmt::format("a message of {} bytes", length));
  if (buffer_.size() - kLengthBytes < length) return std::nullopt;
  std::string text = buffer_.substr(kLengthBytes, length);
  buffer_.erase(0, kLengthBytes + length);
  return text;
}

void JsonObject::Key(std::string_view key) {
  if (text_.size() > 1) text_ += ',';
  AppendQuoted(text_, key);
  text_ += ':';
}

JsonObject& JsonObject::Add(std::string_view key, std::string_view value) {
  Key(key);
  AppendQuoted(text_, value);
  return *this;
}

JsonObject& JsonObject::Add(std::string_view key, int64_t value) {
  Key(key);
  text_ += fmt::format("{}", value);
  return *this;
}

JsonObject& JsonObject::Add(std::string_view key, const std::vector<std::string>& values) {
  Key(key);
  text_ += '[';
  for (const std::string& value : values) {
    if (text_.back() != '[') text_ += ',';
    AppendQuoted(text_, value);
  }
  text_ += ']';
  return *this;
}

JsonObject& JsonObject::Add(std::string_view key, const std::map<std::string, std::string>& values) {
  JsonObject object;
  for (const auto& [name, value] : values) object.Add(name, value);
  return Add(key, object);
}

JsonObject& JsonObject::Add(std::string_view key, const JsonObject& value) {
  Key(key);
  text_ += value.Text();
  return *this;
}

JsonObject& JsonObject::AddTrue(std::string_view key) {
  Key(key);
  text_ += "true";
  return *this;
}

JsonObject& JsonObject::AddNull(std::string_view key) {
  Key(key);
  text_ += "null";
  return *this;
}

// --- the socket ---------------------------------------------------------------------------------------------------

StatusOr<std::pair<Fd, Fd>> Channel::MakePair() {
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return ErrnoStatus(errno, "socketpair");
  std::pair<Fd, Fd> ends{Fd(fds[0]), Fd(fds[1])};
  fcntl(ends.first.get(), F_SETFL, O_NONBLOCK);
  return ends;
}

Channel::Channel(EventLoop& loop, Fd socket, Events events)
    : loop_(loop), socket_(std::move(socket)), events_(std::move(events)) {
  WatchFor(false);
}

Channel::~Channel() {
  *alive_ = false;
  if (!closed_) loop_.Unwatch(socket_.get());
}

void Channel::WatchFor(bool writable) {
  waits_for_room_ = writable;
  loop_.Watch(socket_.get(), EPOLLIN | (writable ? static_cast<uint32_t>(EPOLLOUT) : 0u),
              [this](uint32_t epoll_events) { OnEvents(epoll_events); });
}

void Channel::OnEvents(uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0) Flush();
  if (closed_) return;
  if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Receive();
}

void Channel::ReceiveNow() {
  while (!closed_ && Receive()) continue;
}

// False where there is nothing (more) to be had.
bool Channel::Receive() {
  std::array<char, 64 << 10> buffer;
  // Without room for ancillary data: descriptors that are sent to us are closed by the kernel.
  const ssize_t n = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (n <= 0) {
    Close(n == 0 ? absl::UnavailableError("end of file") : ErrnoStatus(errno, "recv"));
    return false;
  }
  reader_.Feed(std::string_view(buffer.data(), static_cast<size_t>(n)));
  return Deliver();
}

// Tells of each whole message. False where this channel has ended meanwhile.
bool Channel::Deliver() {
  const std::shared_ptr<bool> alive = alive_;
  while (true) {
    StatusOr<std::optional<std::string>> text = reader_.Next();
    if (text.ok() && !text->has_value()) return true;
    StatusOr<PeerMessage> message = text.ok() ? ParsePeerMessage(**text) : text.status();
    if (!message.ok()) {
      Close(message.status());
      return false;
    }
    const auto on_message = events_.on_message;
    on_message(*std::move(message));
    if (!*alive || closed_) return false;
  }
}

void Channel::Send(const std::string& json, std::vector<Fd> fds) {
  PHX_CHECK(json.size() <= kMessageBytesMax && fds.size() <= kFdsMax, "a message beyond the limits of its format");
  if (closed_) return;
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) bytes += static_cast<char>(json.size() >> (8 * i) & 0xFF);
  outgoing_.push_back(Outgoing{bytes + json, 0, std::move(fds)});
  if (!waits_for_room_) Flush();
}

void Channel::Flush() {
  while (!outgoing_.empty()) {
    Outgoing& next = outgoing_.front();
    iovec piece{next.bytes.data() + next.sent, next.bytes.size() - next.sent};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(kFdsMax * sizeof(int))> control{};
    if (next.sent == 0 && !next.fds.empty()) {
      header.msg_control = control.data();
      header.msg_controllen = CMSG_SPACE(next.fds.size() * sizeof(int));
      cmsghdr* ancillary = CMSG_FIRSTHDR(&header);
      ancillary->cmsg_level = SOL_SOCKET;
      ancillary->cmsg_type = SCM_RIGHTS;
      ancillary->cmsg_len = CMSG_LEN(next.fds.size() * sizeof(int));
      std::array<int, kFdsMax> numbers{};
      std::transform(next.fds.begin(), next.fds.end(), numbers.begin(), [](const Fd& fd) { return fd.get(); });
      std::memcpy(CMSG_DATA(ancillary), numbers.data(), next.fds.size() * sizeof(int));
    }
    const ssize_t n = sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) {
      // The end is told by reading: what the other end said before it went is still to be heard.
      outgoing_.clear();
      break;
    }
    if (n < 0) return WatchFor(true);
    next.fds.clear();
    next.sent += static_cast<size_t>(n);
    if (next.sent == next.bytes.size()) outgoing_.pop_front();
  }
  if (waits_for_room_) WatchFor(false);
}

void Channel::Close(const Status& why) {
  closed_ = true;
  loop_.Unwatch(socket_.get());
  socket_.Reset();
  outgoing_.clear();
  const auto on_closed = events_.on_closed;
  if (on_closed) on_closed(why);
}

}  // namespace phalanx::agent

#include "checkpoint/remote/image_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/listen_tcp.h"
#include "base/socket_address.h"
#include "base/thread.h"

namespace phalanx::checkpoint {
namespace {

// Each reader opens a few, and gives up one that has not moved for kImageStallMs: all of them must have their turn by
// then.
constexpr size_t kConnectionsMax = 512;
// What one connection is sent before it is another's turn.
constexpr uint64_t kTurnBytes = uint64_t{4} << 20;

// Where this process may open no further descriptor.
constexpr int64_t kNoRoomMs = 1'000;

// Takes as long wherever the two differ.
bool IsSame(const ImageKey& one, const ImageKey& other) {
  uint8_t differs = 0;
  for (size_t i = 0; i < one.size(); ++i) differs |= one[i] ^ other[i];
  return differs == 0;
}

}  // namespace

// Of the server's thread, but for its making and its end.
class ImageServer::Connections {
 public:
  Connections(EventLoop& loop, const ImageKey& key, Fd listener)
      : loop_(loop), key_(key), listener_(std::move(listener)) {
    Listen();
  }

  void Lend(LentImages images) { images_ = std::move(images); }
  void Withdraw(const std::string& dir) {
    std::erase_if(images_, [&](const auto& entry) { return entry.first.dir == dir; });
  }

 private:
  struct Connection {
    Fd socket;
    std::string arrived;
    std::string head;  // of the answer, what is left to be sent of it
    Fd file;
    off_t offset = 0;
    uint64_t left = 0;  // of the image's bytes, to be sent
    EventLoop::TimerId stall;
  };
  enum class Turn { kGoesOn, kWaitsToRead, kWaitsToWrite, kOver };

  void Listen() {
    if (connections_.size() >= kConnectionsMax) return;
    loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
  }

  void Accept() {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      if (errno != EMFILE && errno != ENFILE && errno != ENOBUFS && errno != ENOMEM) return;  // the caller has gone
      loop_.Unwatch(listener_.get());
      loop_.At(loop_.Now() + kNoRoomMs, [this] { Listen(); });
      return;
    }
    const int fd = socket.get();
    connections_[fd].socket = std::move(socket);
    if (connections_.size() >= kConnectionsMax) loop_.Unwatch(listener_.get());
    GiveTime(fd);
    Expect(fd, EPOLLIN);
  }

  void Expect(int fd, uint32_t events) {
    loop_.Watch(fd, events, [this, fd](uint32_t) { Serve(fd); });
  }

  // Until the connection's next request is whole, or some bytes of an answer are sent. Bytes of a request renew
  // nothing: who sends one now and then would keep others out.
  void GiveTime(int fd) {
    Connection& connection = connections_.at(fd);
    loop_.Cancel(connection.stall);
    connection.stall = loop_.At(loop_.Now() + kImageStallMs, [this, fd] { Close(fd); });
  }

  void Close(int fd) {
    loop_.Cancel(connections_.at(fd).stall);
    loop_.Unwatch(fd);
    connections_.erase(fd);
    Listen();
  }

  void Serve(int fd) {
    Connection& connection = connections_.at(fd);
    uint64_t sent = 0;
    while (sent < kTurnBytes) {
      const uint64_t sent_before = sent;
      const Turn turn = Advance(connection, &sent);
      if (sent != sent_before) GiveTime(fd);
      switch (turn) {
        case Turn::kGoesOn:
          continue;
        case Turn::kWaitsToRead:
          return Expect(fd, EPOLLIN);
        case Turn::kWaitsToWrite:
          return Expect(fd, EPOLLOUT);
        case Turn::kOver:
          return Close(fd);
      }
    }
    Expect(fd, EPOLLOUT);
  }

  Turn Advance(Connection& connection, uint64_t* sent) {
    if (!connection.head.empty()) return SendHead(connection);
    if (connection.left > 0) return SendImage(connection, sent);
    connection.file.Reset();
    const std::optional<ImageKey> key = KeyIn(connection.arrived);
    if (key && !IsSame(*key, key_)) return Turn::kOver;
    size_t used = 0;
    const StatusOr<std::optional<ImageRequest>> request = ParseRequest(connection.arrived, &used);
    if (!request.ok()) return Turn::kOver;
    if (!*request) return Receive(connection);
    connection.arrived.erase(0, used);
    Begin(connection, **request, sent);
    return Turn::kGoesOn;
  }

  Turn Receive(Connection& connection) {
    char bytes[kRequestHeadBytes + kRequestDirMax];
    const ssize_t n = recv(connection.socket.get(), bytes, sizeof bytes, 0);
    if (n < 0 && errno == EINTR) return Turn::kGoesOn;
    if (n < 0 && errno == EAGAIN) return Turn::kWaitsToRead;
    if (n <= 0) return Turn::kOver;
    connection.arrived.append(bytes, static_cast<size_t>(n));
    return Turn::kGoesOn;
  }

  void Begin(Connection& connection, const ImageRequest& request, uint64_t* sent) {
    ImageAnswer answer;
    const auto lent = images_.find(request.image);
    if (lent != images_.end() && request.offset <= lent->second.bytes) {
      const LentImage& image = lent->second;
      connection.file.Reset(open(image.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (connection.file.valid()) {
        answer = {true, image.crc32, image.bytes, std::min(request.bytes, image.bytes - request.offset)};
        connection.offset = static_cast<off_t>(request.offset);
        connection.left = answer.bytes;
      }
    }
    connection.head = FormatAnswer(answer);
    *sent += connection.head.size();
  }

  static Turn SendHead(Connection& connection) {
    const int more = connection.left > 0 ? MSG_MORE : 0;
    const ssize_t n =
        send(connection.socket.get(), connection.head.data(), connection.head.size(), MSG_NOSIGNAL | more);
    if (n < 0 && errno == EINTR) return Turn::kGoesOn;
    if (n < 0 && errno == EAGAIN) return Turn::kWaitsToWrite;
    if (n < 0) return Turn::kOver;
    connection.head.erase(0, static_cast<size_t>(n));
    return Turn::kGoesOn;
  }

  static Turn SendImage(Connection& connection, uint64_t* sent) {
    const ssize_t n = sendfile(connection.socket.get(), connection.file.get(), &connection.offset,
                               std::min(connection.left, kTurnBytes));
    if (n < 0 && errno == EINTR) return Turn::kGoesOn;
    if (n < 0 && errno == EAGAIN) return Turn::kWaitsToWrite;
    if (n <= 0) return Turn::kOver;  // a file that somebody has cut ends it, too
    connection.left -= static_cast<uint64_t>(n);
    *sent += static_cast<uint64_t>(n);
    return Turn::kGoesOn;
  }

  EventLoop& loop_;
  const ImageKey key_;
  const Fd listener_;
  LentImages images_;
  std::map<int, Connection> connections_;  // by socket
};

StatusOr<std::unique_ptr<ImageServer>> ImageServer::Start(const std::string& address, const LendingPorts& ports) {
  PHX_ASSIGN_OR_RETURN(SocketAddress at, ParseIp(address));
  const char* failed = "";
  Fd listener;
  for (uint32_t i = 0; i <= uint32_t{ports.last} - ports.first && !listener.valid(); ++i) {
    at.set_port(static_cast<uint16_t>(ports.last - i));
    listener = ListenTcp(&at, false, &failed);
    if (!listener.valid() && errno != EADDRINUSE) break;
  }
  if (!listener.valid()) {
    return ErrnoStatus(
        errno, fmt::format("cannot {} to lend images at {}, ports {} to {}", failed, address, ports.first, ports.last));
  }
  ImageKey key;
  if (getrandom(key.data(), key.size(), 0) != static_cast<ssize_t>(key.size())) {
    return ErrnoStatus(errno, "making a key for images");
  }
  std::unique_ptr<ImageServer> server(new ImageServer(std::move(listener), at.port(), key));
  PHX_ASSIGN_OR_RETURN(server->thread_, StartThread([loop = &server->loop_] { loop->Run(); }));
  return server;
}

ImageServer::ImageServer(Fd listener, uint16_t port, const ImageKey& key)
    : port_(port), key_(key), connections_(std::make_unique<Connections>(loop_, key, std::move(listener))) {}

ImageServer::~ImageServer() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
}

void ImageServer::Lend(LentImages images) {
  // Shared: a std::function is copied, and the table need not be.
  auto lent = std::make_shared<LentImages>(std::move(images));
  loop_.Post([this, lent] { connections_->Lend(std::move(*lent)); });
}

void ImageServer::Withdraw(const std::string& dir) {
  loop_.Post([this, dir] { connections_->Withdraw(dir); });
}

}  // namespace phalanx::checkpoint

#include "checkpoint/remote/image_server.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <utility>

#include "base/crc/crc32.h"
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
// What is read at once of an image.
constexpr uint64_t kBlockBytes = uint64_t{256} << 10;

// Where this process may open no further descriptor.
constexpr int64_t kNoRoomMs = 1'000;

}  // namespace

// Of the server's thread, but for its making and its end.
class ImageServer::Connections {
 public:
  Connections(EventLoop& loop, ChannelKey key, Fd listener)
      : loop_(loop), key_(std::move(key)), listener_(std::move(listener)) {
    Listen();
  }

  // From any thread.
  void Lend(LentImages images) {
    const std::lock_guard<std::mutex> lock(mutex_);
    images_ = std::move(images);
  }
  void Withdraw(const std::string& dir) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase_if(images_, [&](const auto& entry) { return entry.first.dir == dir; });
  }

 private:
  // Of bytes that a proof follows.
  struct Proved {
    ImageName image;
    LentImage as;  // as it was lent when the answer began
    uint32_t crc32 = 0;
  };
  struct Connection {
    Fd socket;
    std::optional<SecureChannel> channel;
    std::string arrived;
    std::string head;  // of the answer, what is left to be sent of it
    Fd file;
    off_t offset = 0;
    uint64_t left = 0;  // of the image's bytes, to be read
    std::string block;  // what was read of them
    size_t block_sent = 0;
    std::optional<Proved> proved;
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
    StatusOr<SecureChannel> channel = key_.Over(socket.get());
    if (!channel.ok()) return;  // no memory, and the caller asks another node
    const int fd = socket.get();
    Connection& connection = connections_[fd];
    connection.socket = std::move(socket);
    connection.channel = *std::move(channel);
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
    if (connection.block_sent < connection.block.size()) return SendBlock(connection, sent);
    if (connection.left > 0) return ReadBlock(connection) ? Turn::kGoesOn : Turn::kOver;
    if (connection.proved) return Prove(connection);
    connection.file.Reset();
    connection.block = {};  // a reader may keep its connection
    connection.block_sent = 0;
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
    const ChannelResult got = connection.channel->Read(bytes, sizeof bytes);
    connection.arrived.append(bytes, got.bytes);
    return TurnAfter(got);
  }

  void Begin(Connection& connection, const ImageRequest& request, uint64_t* sent) {
    ImageAnswer answer;
    const std::optional<LentImage> lent = Find(request.image);
    if (lent && request.offset <= lent->bytes) {
      const LentImage& image = *lent;
      connection.file.Reset(open(image.path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      if (connection.file.valid()) {
        answer = {true, image.crc32, image.bytes, std::min(request.bytes, image.bytes - request.offset)};
        connection.offset = static_cast<off_t>(request.offset);
        connection.left = answer.bytes;
        if (request.proved) connection.proved = Proved{request.image, image, 0};
      }
    }
    connection.head = FormatAnswer(answer);
    *sent += connection.head.size();
  }

  std::optional<LentImage> Find(const ImageName& image) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto lent = images_.find(image);
    return lent == images_.end() ? std::nullopt : std::optional(lent->second);
  }

  static Turn TurnAfter(const ChannelResult& result) {
    switch (result.state) {
      case ChannelResult::State::kDone:
        return Turn::kGoesOn;
      case ChannelResult::State::kWantsRead:
        return Turn::kWaitsToRead;
      case ChannelResult::State::kWantsWrite:
        return Turn::kWaitsToWrite;
      default:
        return Turn::kOver;
    }
  }

  // False where somebody has cut the file.
  static bool ReadBlock(Connection& connection) {
    std::string& block = connection.block;
    block.resize(std::min(connection.left, kBlockBytes));
    connection.block_sent = 0;
    ssize_t n = 0;
    do {
      n = pread(connection.file.get(), block.data(), block.size(), connection.offset);
    } while (n < 0 && errno == EINTR);
    block.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n <= 0) return false;
    if (connection.proved) {
      connection.proved->crc32 = Crc32(connection.proved->crc32, block.data(), block.size());
    }
    connection.offset += n;
    connection.left -= static_cast<uint64_t>(n);
    return true;
  }

  static Turn SendBlock(Connection& connection, uint64_t* sent) {
    const std::string& block = connection.block;
    const ChannelResult put =
        connection.channel->Write(block.data() + connection.block_sent, block.size() - connection.block_sent);
    connection.block_sent += put.bytes;
    *sent += put.bytes;
    return TurnAfter(put);
  }

  // Whoever writes over an image has it withdrawn before: while it is not, what was read is of it.
  Turn Prove(Connection& connection) {
    const Proved& proved = *connection.proved;
    connection.head = FormatProof({proved.crc32, Find(proved.image) == proved.as});
    connection.proved.reset();
    return Turn::kGoesOn;
  }

  static Turn SendHead(Connection& connection) {
    const ChannelResult put = connection.channel->Write(connection.head.data(), connection.head.size());
    connection.head.erase(0, put.bytes);
    return TurnAfter(put);
  }

  EventLoop& loop_;
  const ChannelKey key_;
  const Fd listener_;
  std::mutex mutex_;
  LentImages images_;                      // guarded by `mutex_`
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
  PHX_ASSIGN_OR_RETURN(ChannelKey channels, ChannelKey::Of(key, ChannelEnd::kServer));
  std::unique_ptr<ImageServer> server(new ImageServer(std::move(listener), at.port(), key, std::move(channels)));
  PHX_ASSIGN_OR_RETURN(server->thread_, StartThread([loop = &server->loop_] { loop->Run(); }));
  return server;
}

ImageServer::ImageServer(Fd listener, uint16_t port, const ImageKey& key, ChannelKey channels)
    : port_(port),
      key_(key),
      connections_(std::make_unique<Connections>(loop_, std::move(channels), std::move(listener))) {}

ImageServer::~ImageServer() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
}

void ImageServer::Lend(LentImages images) { connections_->Lend(std::move(images)); }

void ImageServer::Withdraw(const std::string& dir) { connections_->Withdraw(dir); }

}  // namespace phalanx::checkpoint

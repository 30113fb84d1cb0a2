#include "checkpoint/remote/image_fetch.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "base/socket_address.h"
#include "checkpoint/files/crew.h"
#include "checkpoint/files/files.h"
#include "checkpoint/files/shared_parts.h"
#include "checkpoint/remote/secure_channel.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kPartBytes = uint64_t{32} << 20;
constexpr uint64_t kBlockBytes = uint64_t{1} << 20;  // what a core's cache keeps between the reading and the writing
constexpr size_t kReadersMax = 4;                    // more are no faster, and all nodes may join at once

// A connection to one source. Each call ends within kImageStallMs of the last byte, or when the work is given up.
class Reader {
 public:
  Reader(const ImageSource& source, int stop_fd) : source_(source), stop_fd_(stop_fd) {}

  StatusOr<ImageAnswer> Ask(const ImageName& image, uint64_t offset, uint64_t bytes, bool proved = false) {
    if (!channel_) PHX_RETURN_IF_ERROR(Connect());
    PHX_RETURN_IF_ERROR(Send(FormatRequest({image, offset, bytes, proved})));
    char head[kAnswerBytes];
    PHX_RETURN_IF_ERROR(Receive(head, sizeof head));
    StatusOr<ImageAnswer> answer = ParseAnswer(std::string_view(head, sizeof head));
    if (!answer.ok()) return Failed(Message(answer.status()));
    return answer;
  }

  Status Receive(char* to, uint64_t bytes) {
    while (bytes > 0) {
      const ChannelResult got = channel_->Read(to, bytes);
      PHX_RETURN_IF_ERROR(AwaitAfter(got));
      to += got.bytes;
      bytes -= got.bytes;
    }
    return absl::OkStatus();
  }

  // The last call has failed since the connection was cut, and not since the source has said something.
  bool was_cut() const { return was_cut_; }

  Status Failed(const std::string& why) {
    Hang();
    return absl::UnavailableError(fmt::format("{} port {}: {}", source_.address, source_.port, why));
  }

 private:
  void Hang() {
    channel_.reset();
    socket_.Reset();
  }

  Status Connect() {
    was_cut_ = false;
    PHX_RETURN_IF_ERROR(Reach());
    StatusOr<ChannelKey> key = ChannelKey::Of(source_.key, ChannelEnd::kClient);
    if (!key.ok()) return Failed(Message(key.status()));
    StatusOr<SecureChannel> channel = key->Over(socket_.get());
    if (!channel.ok()) return Failed(Message(channel.status()));
    channel_ = *std::move(channel);
    return absl::OkStatus();
  }

  Status Reach() {
    StatusOr<SocketAddress> parsed = ParseIp(source_.address);
    if (!parsed.ok()) return Failed(Message(parsed.status()));
    SocketAddress& address = *parsed;
    address.set_port(source_.port);
    socket_.Reset(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!socket_.valid()) return Failed(Message(ErrnoStatus(errno, "socket")));
    const int on = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(socket_.get(), address.get(), address.length) == 0) return absl::OkStatus();
    if (errno != EINPROGRESS) return Failed(Message(ErrnoStatus(errno, "connect")));
    PHX_RETURN_IF_ERROR(Await(POLLOUT));
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket_.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    return error == 0 ? absl::OkStatus() : Failed(Message(ErrnoStatus(error, "connect")));
  }

  Status Send(std::string_view text) {
    while (!text.empty()) {
      const ChannelResult put = channel_->Write(text.data(), text.size());
      PHX_RETURN_IF_ERROR(AwaitAfter(put));
      text.remove_prefix(put.bytes);
    }
    return absl::OkStatus();
  }

  // What a call of the channel has come to: where it has done nothing yet it may be made again.
  Status AwaitAfter(const ChannelResult& result) {
    switch (result.state) {
      case ChannelResult::State::kDone:
        return absl::OkStatus();
      case ChannelResult::State::kWantsRead:
        return Await(POLLIN);
      case ChannelResult::State::kWantsWrite:
        return Await(POLLOUT);
      case ChannelResult::State::kClosed:
        was_cut_ = true;
        return Failed("the connection was closed");
      default:
        return Failed(fmt::format("the two do not believe each other ({})", result.why));
    }
  }

  Status Await(short events) {
    pollfd watched[] = {{socket_.get(), events, 0}, {stop_fd_, POLLIN, 0}};
    int ready = 0;
    do {
      ready = poll(watched, 2, static_cast<int>(kImageStallMs));
    } while (ready < 0 && errno == EINTR);
    if (watched[1].revents != 0) {
      Hang();
      return absl::CancelledError("the round is over");
    }
    if (ready < 0) return Failed(Message(ErrnoStatus(errno, "poll")));
    if (ready == 0) return Failed(fmt::format("no byte for {} s", kImageStallMs / 1000));
    return absl::OkStatus();
  }

  const ImageSource& source_;
  const int stop_fd_;
  Fd socket_;
  std::optional<SecureChannel> channel_;  // over that
  bool was_cut_ = false;
};

// What all readers of one image work on.
struct Fetch {
  const ImageName& image;
  const std::vector<ImageSource>& sources;
  const std::string& path;
  int stop_fd = -1;
  int file = -1;
  bool proved = false;  // part by part; else all of it by its CRC
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

Status WriteAt(const Fetch& fetch, const char* data, uint64_t bytes, uint64_t at) {
  while (bytes > 0) {
    const ssize_t n = pwrite(fetch.file, data, bytes, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(fetch.path, "write", errno);
    data += n;
    at += static_cast<uint64_t>(n);
    bytes -= static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

// How far a part has come.
struct Progress {
  uint64_t at = 0;   // in the image
  uint32_t crc = 0;  // of the part's bytes before that
};

// All of the part that is not here yet.
Status ReadRest(const Fetch& fetch, Reader& reader, uint64_t end, Progress& done, std::vector<char>& block) {
  const uint64_t bytes = end - done.at;
  PHX_ASSIGN_OR_RETURN(const ImageAnswer answer, reader.Ask(fetch.image, done.at, bytes, fetch.proved));
  if (!answer.found || answer.image_bytes != fetch.bytes || answer.crc32 != fetch.crc32 || answer.bytes != bytes) {
    return reader.Failed("it does not hold the image any more");
  }
  uint32_t of_answer = 0;
  Crc32Joiner joiner;
  while (done.at < end) {
    const uint64_t n = std::min<uint64_t>(block.size(), end - done.at);
    PHX_RETURN_IF_ERROR(reader.Receive(block.data(), n));
    PHX_RETURN_IF_ERROR(WriteAt(fetch, block.data(), n, done.at));
    const uint32_t of_block = Crc32(0, block.data(), n);
    of_answer = joiner.Join(of_answer, of_block, n);
    done = {done.at + n, joiner.Join(done.crc, of_block, n)};
  }
  if (!fetch.proved) return absl::OkStatus();
  char text[kProofBytes];
  PHX_RETURN_IF_ERROR(reader.Receive(text, sizeof text));
  const ImageProof proof = ParseProof(std::string_view(text, sizeof text));
  if (!proof.still_lent) return reader.Failed("it has begun to write over the image");
  if (proof.crc32 != of_answer) return reader.Failed("bytes were changed on their way");
  return absl::OkStatus();
}

// The CRC of the part. Where the connection is cut it goes on, once, at the byte that it has come to: what the source
// still lends behind that it lent before, too. Where all has come but its proof, all of it is read once more.
StatusOr<uint32_t> ReadPart(const Fetch& fetch, Reader& reader, const ByteRange& part, std::vector<char>& block) {
  Progress done{part.begin, 0};
  Status read = ReadRest(fetch, reader, part.end, done, block);
  if (absl::IsUnavailable(read) && reader.was_cut()) {
    if (fetch.proved && done.at == part.end) done = {part.begin, 0};
    read = ReadRest(fetch, reader, part.end, done, block);
  }
  if (!read.ok()) return read;
  return done.crc;
}

// One reader's life: parts that nobody else has taken, from one source, and where that fails from the next.
void ReadParts(const Fetch& fetch, size_t first_source, const std::vector<ByteRange>& parts, SharedParts& turns) {
  std::vector<char> block(std::min(fetch.bytes, kBlockBytes));
  size_t at = first_source % fetch.sources.size();
  std::optional<Reader> reader;
  while (const std::optional<size_t> turn = turns.TakeNext()) {
    const ByteRange& part = parts[*turn];
    StatusOr<uint32_t> crc = absl::UnavailableError("no node lends it");
    for (size_t tried = 0; tried < fetch.sources.size(); ++tried) {
      if (!reader) reader.emplace(fetch.sources[at], fetch.stop_fd);
      crc = ReadPart(fetch, *reader, part, block);
      if (crc.ok() || !absl::IsUnavailable(crc.status())) break;
      at = (at + 1) % fetch.sources.size();
      reader.reset();
    }
    turns.Done(*turn, crc);
  }
}

// What the first source that holds it says of it; those before that are taken out.
StatusOr<ImageAnswer> AskForImage(const ImageName& image, std::vector<ImageSource>& sources, int stop_fd) {
  StatusOr<ImageAnswer> answer = absl::UnavailableError("no node lends it");
  while (!sources.empty()) {
    Reader reader(sources.front(), stop_fd);
    answer = reader.Ask(image, 0, 0);
    if (absl::IsUnavailable(answer.status()) && reader.was_cut()) answer = reader.Ask(image, 0, 0);
    if (answer.ok() && answer->found) return answer;
    if (answer.ok()) answer = reader.Failed("it does not hold the image any more");
    if (absl::IsCancelled(answer.status())) return answer;
    sources.erase(sources.begin());
  }
  return answer;
}

// Up to the image's end, in parts of which each is read at once.
std::vector<ByteRange> PartsOf(const ByteRanges& ranges, uint64_t image_bytes) {
  std::vector<ByteRange> parts;
  for (const ByteRange& range : ranges.All()) {
    const uint64_t end = std::min(range.end, image_bytes);
    for (uint64_t at = range.begin; at < end; at += kPartBytes) parts.push_back({at, std::min(at + kPartBytes, end)});
  }
  return parts;
}

// The file is as long as the image. Its memory comes with what is written: reserved before, each page would be cleared
// first, by one thread while nothing is read.
Status MakeRoom(const Fetch& fetch, const std::vector<ByteRange>& parts, uint64_t bytes_max) {
  uint64_t wanted = 0;
  for (const ByteRange& part : parts) wanted += part.bytes();
  if (wanted > bytes_max) {
    return absl::ResourceExhaustedError(
        fmt::format("it takes {} MiB, and there is memory for {}", wanted >> 20, bytes_max >> 20));
  }
  if (ftruncate(fetch.file, static_cast<off_t>(fetch.bytes)) != 0) return CallFailed(fetch.path, "ftruncate", errno);
  return absl::OkStatus();
}

// The image as the first source holds it. So may others: a state that all ranks share has random numbers of one of
// them. Where no part is proved `ranges` are all of it.
Status FetchInto(Fetch& fetch, const ImageAnswer& answer, const ByteRanges& ranges, uint64_t bytes_max) {
  fetch.bytes = answer.image_bytes;
  fetch.crc32 = answer.crc32;
  if (fetch.bytes == 0) return absl::DataLossError("an image without a byte");
  const std::vector<ByteRange> parts = PartsOf(ranges, fetch.bytes);
  PHX_RETURN_IF_ERROR(MakeRoom(fetch, parts, bytes_max));
  // Of all of it these are the parts themselves, whose CRCs make up that of the image.
  SharedParts turns(fetch.proved ? parts.size() : fetch.bytes, fetch.proved ? 1 : kPartBytes);
  const size_t readers = std::clamp<size_t>(parts.size(), 1, std::min(kReadersMax, CrewSize()));
  RunCrew(readers, [&](size_t i) { ReadParts(fetch, i, parts, turns); });
  PHX_ASSIGN_OR_RETURN(const uint32_t crc, turns.Crc());
  if (fetch.proved || crc == fetch.crc32) return absl::OkStatus();
  return absl::DataLossError(fmt::format("the image has CRC {:08x} instead of {:08x}", crc, fetch.crc32));
}

}  // namespace

Status FetchRanges(const ImageName& image, std::vector<ImageSource> sources, const PartsFile& to,
                   const ByteRanges& ranges, uint64_t bytes_max, int stop_fd) {
  const std::string& path = to.path;
  const int making = to.is_there ? 0 : O_CREAT | O_EXCL;
  const Fd file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | making, 0600));
  if (!file.valid() && to.is_there && errno == ENOENT) return absl::CancelledError("what was fetched before is gone");
  if (!file.valid()) return CallFailed(path, "open", errno);
  const StatusOr<ImageAnswer> answer = AskForImage(image, sources, stop_fd);
  Fetch fetch{image, sources, path, stop_fd, file.get(), true};
  Status fetched = answer.ok() ? FetchInto(fetch, *answer, ranges, bytes_max) : answer.status();
  if (!fetched.ok() && !to.is_there) unlink(path.c_str());
  return fetched;
}

Status FetchImage(const ImageName& image, std::vector<ImageSource> sources, const std::string& path, uint64_t bytes_max,
                  int stop_fd) {
  const Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return CallFailed(path, "open", errno);
  const ByteRanges all({{0, UINT64_MAX}});
  while (true) {
    const StatusOr<ImageAnswer> answer = AskForImage(image, sources, stop_fd);
    Fetch fetch{image, sources, path, stop_fd, file.get(), false};
    Status fetched = answer.ok() ? FetchInto(fetch, *answer, all, bytes_max) : answer.status();
    if (fetched.ok()) return fetched;
    if (answer.ok()) sources.erase(sources.begin());
    const bool goes_on = absl::IsUnavailable(fetched) || absl::IsDataLoss(fetched);
    if (goes_on && !sources.empty()) continue;
    unlink(path.c_str());
    return fetched;
  }
}

}  // namespace phalanx::checkpoint

#include "checkpoint/remote/image_server.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/crc/crc32.h"
#include "base/socket_address.h"
#include "base/test_folder.h"
#include "checkpoint/remote/image_fetch.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr char kHere[] = "127.0.0.1";

std::string Bytes(size_t count) {
  std::string bytes(count, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525U + 1013904223U) >> 24);
  return bytes;
}

std::string Text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ImageServerTest : public testing::Test {
 protected:
  // A node that lends those bytes, as an image whose CRC is that of `sealed`.
  std::unique_ptr<ImageServer> Node(const std::string& bytes, const std::string& sealed) {
    const std::string path = folder_.path() + "/lent" + std::to_string(nodes_++);
    std::ofstream(path, std::ios::binary) << bytes;
    auto server = ImageServer::Start(kHere, {});
    EXPECT_TRUE(server.ok());
    LentImages images;
    images[kImage] = {path, sealed.size(), Crc32(0, sealed.data(), sealed.size())};
    (*server)->Lend(std::move(images));
    return *std::move(server);
  }
  std::unique_ptr<ImageServer> Node(const std::string& bytes) { return Node(bytes, bytes); }

  static ImageSource SourceOf(const ImageServer& server) { return {kHere, server.port(), server.key()}; }

  Status Fetch(const std::vector<ImageSource>& sources, const ImageName& image = kImage) {
    return FetchImage(image, sources, to_, UINT64_MAX, stop_.get());
  }

  // Once what is fetched through the relay is over.
  void StopRelay() {
    const uint64_t one = 1;
    ASSERT_EQ(write(relay_stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    relay_.join();
  }

  // A port at which readers come to the node, and `heard_` keeps what is said, until relay_stop_ can be read. The
  // connection in which `cut_at` bytes have come from both sides is cut, once.
  uint16_t Relay(const ImageServer& node) {
    SocketAddress address = *ParseIp(kHere);
    relay_listener_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(relay_listener_.get(), address.get(), address.length), 0);
    EXPECT_EQ(listen(relay_listener_.get(), 8), 0);
    socklen_t length = address.length;
    getsockname(relay_listener_.get(), address.get(), &length);
    relay_ = std::thread([this, to = node.port()] { PassOn(to); });
    return address.port();
  }

  void PassOn(uint16_t to) {
    std::map<int, Fd> other;  // by the one that is read
    const auto accept_one = [&] {
      Fd near(accept4(relay_listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      Fd far(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      SocketAddress address = *ParseIp(kHere);
      address.set_port(to);
      if (connect(far.get(), address.get(), address.length) != 0) return;
      const int near_fd = near.get(), far_fd = far.get();
      other.emplace(near_fd, std::move(far));
      other.emplace(far_fd, std::move(near));
    };
    while (true) {
      std::vector<pollfd> watched = {{relay_listener_.get(), POLLIN, 0}, {relay_stop_.get(), POLLIN, 0}};
      for (const auto& [fd, to_fd] : other) watched.push_back({fd, POLLIN, 0});
      poll(watched.data(), watched.size(), -1);
      if (watched[1].revents != 0) return;
      if (watched[0].revents != 0) accept_one();
      for (size_t i = 2; i < watched.size(); ++i) {
        if (watched[i].revents == 0 || !other.contains(watched[i].fd)) continue;
        char bytes[1 << 16];
        const ssize_t n = recv(watched[i].fd, bytes, sizeof bytes, 0);
        if (n > 0) heard_.append(bytes, static_cast<size_t>(n));
        const int far = other.at(watched[i].fd).get();
        const bool is_cut = cut_at_ > 0 && heard_.size() >= cut_at_;
        if (is_cut) cut_at_ = 0;
        if (n > 0 && !is_cut && send(far, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n) continue;
        other.erase(watched[i].fd);  // closes the other one
        other.erase(far);
      }
    }
  }

  inline static const ImageName kImage = {"/data/run7", {3, 100, 0}, -1};
  TestFolder folder_;
  const std::string to_ = folder_.path() + "/fetched";
  const Fd stop_{eventfd(0, EFD_CLOEXEC)};
  Fd relay_listener_;
  const Fd relay_stop_{eventfd(0, EFD_CLOEXEC)};
  std::thread relay_;
  std::string heard_;  // until relay_ has ended, of that thread
  size_t cut_at_ = 0;  // the same; 0: nowhere
  int nodes_ = 0;
};

TEST_F(ImageServerTest, GivesTheImage) {
  for (const size_t count : {size_t{1}, size_t{4096}, (size_t{70} << 20) + 3}) {
    const std::string bytes = Bytes(count);
    const auto node = Node(bytes);
    ASSERT_TRUE(Fetch({SourceOf(*node)}).ok());
    EXPECT_EQ(Text(to_), bytes);
    unlink(to_.c_str());
  }
}

TEST_F(ImageServerTest, GivesItWithTheOthersWhereOneHasGone) {
  const std::string bytes = Bytes(size_t{100} << 20);
  auto gone = Node(bytes);
  const auto second = Node(bytes), third = Node(bytes);
  const std::vector<ImageSource> sources = {SourceOf(*gone), SourceOf(*second), SourceOf(*third)};
  gone.reset();
  ASSERT_TRUE(Fetch(sources).ok());
  EXPECT_EQ(Text(to_), bytes);
}

// Random numbers of the rank that wrote it make each node's image of the same state another one.
TEST_F(ImageServerTest, TakesAllOfItFromOneWhereOthersHoldOtherBytes) {
  const std::string bytes = Bytes(size_t{100} << 20);
  std::string other = bytes;
  other[size_t{50} << 20] ^= 1;
  const auto first = Node(bytes), second = Node(other);
  ASSERT_TRUE(Fetch({SourceOf(*first), SourceOf(*second)}).ok());
  EXPECT_EQ(Text(to_), bytes);
  unlink(to_.c_str());
  const auto torn = Node(other, bytes);
  ASSERT_TRUE(Fetch({SourceOf(*torn), SourceOf(*second)}).ok()) << "the first one's is written over";
  EXPECT_EQ(Text(to_), other);
}

TEST_F(ImageServerTest, TakesNoMoreMemoryThanThereIs) {
  const auto node = Node(Bytes(2 << 20));
  EXPECT_THAT(Message(FetchImage(kImage, {SourceOf(*node)}, to_, 1 << 20, stop_.get())),
              HasSubstr("it takes 2 MiB, and there is memory for 1"));
  EXPECT_NE(access(to_.c_str(), F_OK), 0);
}

TEST_F(ImageServerTest, WhatWasReplacedIsNotLent) {
  const auto node = Node(Bytes(10));
  unlink((folder_.path() + "/lent0").c_str());
  EXPECT_THAT(Message(Fetch({SourceOf(*node)})), HasSubstr("it does not hold the image any more"));
}

TEST_F(ImageServerTest, LendsNothingElse) {
  const auto node = Node(Bytes(10));
  ImageName other = kImage;
  other.save.step = 99;
  EXPECT_THAT(Message(Fetch({SourceOf(*node)}, other)), HasSubstr("it does not hold the image any more"));
  node->Withdraw(kImage.dir);
  EXPECT_FALSE(Fetch({SourceOf(*node)}).ok());
  EXPECT_NE(access(to_.c_str(), F_OK), 0) << "nothing is left of it";
}

TEST_F(ImageServerTest, AnswersNobodyElse) {
  const auto node = Node(Bytes(10));
  ImageSource other = SourceOf(*node);
  other.key[31] ^= 1;
  EXPECT_THAT(Message(Fetch({other})), HasSubstr("the two do not believe each other"));
}

// What both ends hold comes over the wire as nothing that anybody can read.
TEST_F(ImageServerTest, NothingIsSaidInClear) {
  const std::string bytes(1 << 20, 'w');
  const auto node = Node(bytes);
  ImageSource through = SourceOf(*node);
  through.port = Relay(*node);
  const Status fetched = Fetch({through});
  StopRelay();
  ASSERT_TRUE(fetched.ok()) << Message(fetched);
  EXPECT_EQ(Text(to_), bytes);
  ASSERT_GT(heard_.size(), bytes.size());
  EXPECT_EQ(heard_.find(std::string(16, 'w')), std::string::npos);
  EXPECT_EQ(heard_.find(kImage.dir), std::string::npos);
  const std::string key(node->key().begin(), node->key().end());
  EXPECT_EQ(heard_.find(key.substr(0, 8)), std::string::npos);
}

// Of the only node that lends it: what has come is not asked for again.
TEST_F(ImageServerTest, GoesOnWhereTheConnectionIsCut) {
  const std::string bytes = Bytes(size_t{30} << 20);  // one part
  const auto node = Node(bytes);
  ImageSource through = SourceOf(*node);
  cut_at_ = size_t{20} << 20;
  through.port = Relay(*node);
  const Status fetched = Fetch({through});
  StopRelay();
  ASSERT_TRUE(fetched.ok()) << Message(fetched);
  EXPECT_EQ(cut_at_, 0u);
  EXPECT_TRUE(Text(to_) == bytes);
  EXPECT_LT(heard_.size(), size_t{36} << 20) << "and some that were on their way";
}

TEST_F(ImageServerTest, GoesOnWithAPartWhereTheConnectionIsCut) {
  const std::string bytes = Bytes(size_t{30} << 20);
  const auto node = Node(bytes);
  ImageSource through = SourceOf(*node);
  cut_at_ = size_t{20} << 20;
  through.port = Relay(*node);
  const ByteRanges most({{4096, bytes.size()}});
  const Status fetched = FetchRanges(kImage, {through}, {to_}, most, UINT64_MAX, stop_.get());
  StopRelay();
  ASSERT_TRUE(fetched.ok()) << Message(fetched);
  EXPECT_EQ(cut_at_, 0u);
  EXPECT_TRUE(Text(to_).substr(4096) == bytes.substr(4096));
  EXPECT_LT(heard_.size(), size_t{36} << 20);
}

TEST_F(ImageServerTest, AsksAgainWhereTheFirstConnectionIsCut) {
  const auto node = Node(Bytes(10));
  ImageSource through = SourceOf(*node);
  cut_at_ = 1;
  through.port = Relay(*node);
  const Status fetched = Fetch({through});
  StopRelay();
  EXPECT_TRUE(fetched.ok()) << Message(fetched);
}

// A holder that has not the key cannot give out weights as its own.
TEST_F(ImageServerTest, NobodyElseIsBelieved) {
  const auto liar = Node(Bytes(10)), honest = Node(Bytes(20));
  ImageSource claimed = SourceOf(*liar);
  claimed.key = honest->key();
  EXPECT_THAT(Message(Fetch({claimed})), HasSubstr("the two do not believe each other"));
}

// A server of TLS 1.3 with a certificate of its own making, which knows of no key: what a reader has sent to it when it
// is refused or believed.
std::string HeardByAStranger(const Fd& listener) {
  SSL_CTX* const context = SSL_CTX_new(TLS_server_method());
  EVP_PKEY* const key = EVP_EC_gen("P-256");
  X509* const certificate = X509_new();
  X509_set_version(certificate, X509_VERSION_3);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 3'600);
  X509_set_pubkey(certificate, key);
  X509_sign(certificate, key, EVP_sha256());
  EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
  EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
  const Fd peer(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  SSL* const session = SSL_new(context);
  SSL_set_fd(session, peer.get());
  SSL_set_accept_state(session);
  char bytes[256];
  const int n = SSL_read(session, bytes, sizeof bytes);
  const std::string heard(bytes, static_cast<size_t>(std::max(n, 0)));
  SSL_free(session);
  SSL_CTX_free(context);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return heard;
}

TEST_F(ImageServerTest, NobodyIsBelievedByACertificate) {
  SocketAddress address = *ParseIp(kHere);
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(listener.get(), address.get(), address.length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  socklen_t length = address.length;
  getsockname(listener.get(), address.get(), &length);
  std::string heard = "nothing yet";
  std::thread stranger([&] { heard = HeardByAStranger(listener); });
  const Status fetched = Fetch({{kHere, address.port(), {}}});
  stranger.join();
  EXPECT_THAT(Message(fetched), HasSubstr("the two do not believe each other"));
  EXPECT_EQ(heard, "") << "no request is made of it";
}

TEST_F(ImageServerTest, AnImageThatIsWrittenOverIsNotTaken) {
  const std::string sealed = Bytes(size_t{40} << 20);
  std::string torn = sealed;
  torn[size_t{33} << 20] ^= 1;
  const auto node = Node(torn, sealed);
  EXPECT_THAT(Message(Fetch({SourceOf(*node)})), HasSubstr("the image has CRC"));
  const auto cut = Node(sealed.substr(0, sealed.size() / 2), sealed);
  EXPECT_FALSE(Fetch({SourceOf(*cut)}).ok());
}

TEST_F(ImageServerTest, GivesPartsOfIt) {
  const std::string bytes = Bytes((size_t{70} << 20) + 3);
  const auto first = Node(bytes), second = Node(bytes);
  const std::vector<ImageSource> sources = {SourceOf(*first), SourceOf(*second)};
  const auto expected = [&](const ByteRanges& ranges) {
    std::string image(bytes.size(), '\0');
    for (const ByteRange& range : ranges.All()) {
      const uint64_t end = std::min<uint64_t>(range.end, bytes.size());
      image.replace(range.begin, end - range.begin, bytes, range.begin, end - range.begin);
    }
    return image;
  };
  ByteRanges ranges({{5, 10'000}, {size_t{3} << 20, size_t{40} << 20}, {bytes.size() - 2, UINT64_MAX}});
  ASSERT_TRUE(FetchRanges(kImage, sources, {to_}, ranges, UINT64_MAX, stop_.get()).ok());
  EXPECT_TRUE(Text(to_) == expected(ranges));
  struct stat info {};
  ASSERT_EQ(stat(to_.c_str(), &info), 0);
  EXPECT_LT(info.st_blocks * 512, int64_t{45} << 20) << "what is not there takes no memory";
  // Others, into the same file.
  const ByteRanges more({{0, 5}, {10'000, 20'000}});
  ASSERT_TRUE(FetchRanges(kImage, {sources[1]}, {to_, true}, more, UINT64_MAX, stop_.get()).ok());
  ranges.Add(more);
  EXPECT_TRUE(Text(to_) == expected(ranges));
  EXPECT_THAT(Message(FetchRanges(kImage, sources, {to_, true}, ByteRanges({{0, 3 << 20}}), 1 << 20, stop_.get())),
              HasSubstr("it takes 3 MiB, and there is memory for 1"));
  EXPECT_TRUE(Text(to_) == expected(ranges)) << "what was there before is there";
  unlink(to_.c_str());
  EXPECT_TRUE(absl::IsCancelled(FetchRanges(kImage, sources, {to_, true}, more, UINT64_MAX, stop_.get())));
  EXPECT_NE(access(to_.c_str(), F_OK), 0) << "of nobody any more";
}

TEST_F(ImageServerTest, APartIsTakenOnlyWhileTheImageIsLent) {
  const std::string bytes = Bytes(size_t{64} << 20);  // more than sockets hold
  const auto node = Node(bytes), other = Node(bytes);
  const Fd reader(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = *ParseIp(kHere);
  address.set_port(node->port());
  ASSERT_EQ(connect(reader.get(), address.get(), address.length), 0);
  SecureChannel channel = *ChannelKey::Of(node->key(), ChannelEnd::kClient)->Over(reader.get());  // it blocks
  const std::string request = FormatRequest({kImage, 0, bytes.size(), true});
  ASSERT_EQ(channel.Write(request.data(), request.size()).bytes, request.size());
  std::string got(kAnswerBytes, '\0');
  ASSERT_EQ(channel.Read(got.data(), got.size()).bytes, got.size());
  EXPECT_EQ(ParseAnswer(got)->bytes, bytes.size());
  node->Withdraw(kImage.dir);  // most of it is still to be read
  got.resize(bytes.size() + kProofBytes);
  for (size_t done = 0; done < got.size();) {
    const size_t n = channel.Read(got.data() + done, got.size() - done).bytes;
    ASSERT_GT(n, 0u);
    done += n;
  }
  const ImageProof proof = ParseProof(std::string_view(got).substr(bytes.size()));
  EXPECT_FALSE(proof.still_lent);
  EXPECT_EQ(proof.crc32, Crc32(0, bytes.data(), bytes.size()));
  // Who reads it so asks another node.
  const ByteRanges part({{0, 4096}});
  ASSERT_TRUE(FetchRanges(kImage, {SourceOf(*node), SourceOf(*other)}, {to_}, part, UINT64_MAX, stop_.get()).ok());
  EXPECT_THAT(Message(FetchRanges(kImage, {SourceOf(*node)}, {to_ + "2"}, part, UINT64_MAX, stop_.get())),
              HasSubstr("it does not hold the image any more"));
  EXPECT_NE(access((to_ + "2").c_str(), F_OK), 0);
}

TEST_F(ImageServerTest, IsGivenUp) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  SocketAddress address = *ParseIp(kHere);
  ASSERT_EQ(bind(listener.get(), address.get(), address.length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  socklen_t length = address.length;
  getsockname(listener.get(), address.get(), &length);
  const uint64_t one = 1;  // it accepts nobody, and answers nothing
  ASSERT_EQ(write(stop_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
  EXPECT_TRUE(absl::IsCancelled(Fetch({{kHere, address.port(), {}}})));
}

TEST_F(ImageServerTest, TakesAFreePortOfItsRange) {
  const auto any = ImageServer::Start(kHere, {});
  ASSERT_TRUE(any.ok());
  const uint16_t taken = (*any)->port();
  const auto next = ImageServer::Start(kHere, {static_cast<uint16_t>(taken - 1), taken});
  if (next.ok()) {
    EXPECT_EQ((*next)->port(), taken - 1) << "from the end";
  }
  EXPECT_THAT(Message(ImageServer::Start(kHere, {taken, taken}).status()),
              HasSubstr("to lend images at 127.0.0.1, ports"));
}

TEST_F(ImageServerTest, MoreReadersThanItServesAtATimeWait) {
  constexpr int kMore = 600;  // than the 512 of docs/formats/image-read.md
  const auto node = Node(Bytes(10));
  std::vector<Fd> idle;
  SocketAddress address = *ParseIp(kHere);
  address.set_port(node->port());
  rlimit files{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  const rlim_t wanted = 2 * kMore + 256;  // both ends are here
  if (files.rlim_cur < wanted) {
    files.rlim_cur = std::min(wanted, files.rlim_max);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
    ASSERT_GE(files.rlim_cur, wanted) << "ulimit -n";
  }
  for (int i = 0; i < kMore; ++i) {
    Fd& socket_fd = idle.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(socket_fd.get(), address.get(), address.length), 0);
  }
  // One more than it serves is in the kernel's queue: nobody shakes hands with it.
  Status fetched;
  std::thread waits([&] { fetched = Fetch({SourceOf(*node)}); });
  pollfd last{idle.back().get(), POLLIN, 0};
  SecureChannel channel = *ChannelKey::Of(node->key(), ChannelEnd::kClient)->Over(idle.back().get());
  ASSERT_EQ(fcntl(idle.back().get(), F_SETFL, O_NONBLOCK), 0);
  char byte = 0;
  EXPECT_EQ(channel.Read(&byte, 1).state, ChannelResult::State::kWantsRead);  // its greeting is sent
  EXPECT_EQ(poll(&last, 1, 200), 0) << "it is served beyond the limit";
  idle.clear();
  waits.join();
  EXPECT_TRUE(fetched.ok()) << Message(fetched);
}

}  // namespace
}  // namespace phalanx::checkpoint

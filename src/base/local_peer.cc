#include "base/local_peer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace phalanx {
namespace {

struct Request {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

// All of 127.0.0.0/8, and ::1.
bool IsOfLoopback(const SocketAddress& address) {
  const IpBytes ip = address.ip();
  return address.loopback() || (address.family() == AF_INET && ip[12] == 127);
}

void PutIp(const SocketAddress& address, __be32 (&words)[4]) {
  const IpBytes ip = address.ip();
  if (address.family() == AF_INET) {
    std::memcpy(words, ip.data() + 12, 4);
  } else {
    std::memcpy(words, ip.data(), 16);
  }
}

}  // namespace

LocalPeers::LocalPeers() : socket_(socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG)) {}

std::optional<LocalPeers::Owner> LocalPeers::OwnerOf(const SocketAddress& peer, const SocketAddress& local) {
  if (!socket_.valid() || peer.family() != local.family()) return std::nullopt;
  Request request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.head.nlmsg_seq = ++sequence_;
  request.body.sdiag_family = static_cast<__u8>(peer.family());
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~__u32{0};
  request.body.id.idiag_sport = htons(peer.port());
  request.body.id.idiag_dport = htons(local.port());
  PutIp(peer, request.body.id.idiag_src);
  PutIp(local, request.body.id.idiag_dst);
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(socket_.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) return std::nullopt;
  // The kernel has answered before send() returns.
  alignas(nlmsghdr) char answer[1024];
  while (true) {
    const ssize_t n = recv(socket_.get(), answer, sizeof answer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    nlmsghdr head{};
    if (n < static_cast<ssize_t>(sizeof head)) return std::nullopt;
    std::memcpy(&head, answer, sizeof head);
    if (head.nlmsg_seq != sequence_) continue;
    inet_diag_msg told{};
    if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || n < static_cast<ssize_t>(NLMSG_HDRLEN + sizeof told)) {
      return std::nullopt;
    }
    std::memcpy(&told, answer + NLMSG_HDRLEN, sizeof told);
    // Where there is no such connection the kernel looks for who listens there.
    if (told.idiag_state == TCP_LISTEN) return std::nullopt;
    return Owner{told.idiag_uid, told.idiag_inode == 0};
  }
}

std::string LocalPeers::WhyForeign(const SocketAddress& peer, int fd) {
  SocketAddress local;
  local.length = sizeof local.storage;
  if (getsockname(fd, local.get(), &local.length) != 0) return "";
  if (!IsOfLoopback(peer) && local.ip() != peer.ip()) return "";
  const std::optional<Owner> owner = OwnerOf(peer, local);
  if (!owner) return "";
  if (owner->gone) return "it has gone, and who it was is not known";
  if (owner->user == geteuid() || owner->user == 0) return "";
  return fmt::format("it is user {}'s, and this job is user {}'s", owner->user, geteuid());
}

}  // namespace phalanx

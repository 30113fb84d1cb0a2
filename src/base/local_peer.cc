#include "base/local_peer.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "base/net.h"

namespace phalanx {
namespace {

struct Request {
  nlmsghdr head;
  inet_diag_req_v2 body;
};

// 127.0.0.0/8 and ::1 mean the same network namespace.
bool IsOfLoopback(const SocketAddress& address) {
  return address.loopback() || (address.family() == AF_INET && address.ip()[12] == 127);
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

LocalPeers::Owner LocalPeers::Ask(const SocketAddress& peer, const SocketAddress& local, uint32_t interface) {
  if (!socket_.valid() || peer.family() != local.family()) return {Found::kNotTold};
  Request request{};
  request.head.nlmsg_len = sizeof request;
  request.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.head.nlmsg_flags = NLM_F_REQUEST;
  request.head.nlmsg_seq = ++sequence_;
  request.body.sdiag_family = static_cast<__u8>(peer.family());
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = ~__u32{0};
  request.body.id.idiag_if = interface;
  request.body.id.idiag_sport = htons(peer.port());
  request.body.id.idiag_dport = htons(local.port());
  PutIp(peer, request.body.id.idiag_src);
  PutIp(local, request.body.id.idiag_dst);
  request.body.id.idiag_cookie[0] = request.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  if (send(socket_.get(), &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request)) {
    return {Found::kNotTold};
  }
  // The kernel has answered before send() returns.
  alignas(nlmsghdr) char answer[1024];
  while (true) {
    const ssize_t n = recv(socket_.get(), answer, sizeof answer, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    nlmsghdr head{};
    if (n < static_cast<ssize_t>(sizeof head)) return {Found::kNotTold};
    std::memcpy(&head, answer, sizeof head);
    if (head.nlmsg_seq != sequence_) continue;
    const bool has_body = n >= static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(inet_diag_msg));
    if (head.nlmsg_type == NLMSG_ERROR && n >= static_cast<ssize_t>(NLMSG_HDRLEN + sizeof(nlmsgerr))) {
      nlmsgerr error{};
      std::memcpy(&error, answer + NLMSG_HDRLEN, sizeof error);
      return {error.error == -ENOENT ? Found::kNowhere : Found::kNotTold};
    }
    if (head.nlmsg_type != SOCK_DIAG_BY_FAMILY || !has_body) return {Found::kNotTold};
    inet_diag_msg told{};
    std::memcpy(&told, answer + NLMSG_HDRLEN, sizeof told);
    // Where there is no such connection the kernel looks for who listens there.
    if (told.idiag_state == TCP_LISTEN) return {Found::kNowhere};
    return {told.idiag_inode == 0 ? Found::kGone : Found::kOwned, told.idiag_uid};
  }
}

LocalPeers::Owner LocalPeers::OwnerOf(const SocketAddress& peer, const SocketAddress& local) {
  Owner owner = Ask(peer, local, peer.scope());
  if (owner.found != Found::kNowhere || (!IsOfLoopback(peer) && !IsLocalAddress(peer.IpText()))) return owner;
  const std::unique_ptr<struct if_nameindex, decltype(&if_freenameindex)> all(if_nameindex(), if_freenameindex);
  if (!all) return {Found::kNotTold};
  for (const struct if_nameindex* each = all.get(); each->if_index != 0; ++each) {
    owner = Ask(peer, local, each->if_index);
    if (owner.found != Found::kNowhere) return owner;
  }
  return owner;
}

std::string LocalPeers::WhyForeign(SocketAddress peer, int fd) {
  SocketAddress local;
  local.length = sizeof local.storage;
  if (getsockname(fd, local.get(), &local.length) != 0) return "";
  peer.Unmap();
  local.Unmap();
  const Owner owner = OwnerOf(peer, local);
  const bool is_gone = owner.found == Found::kGone || (owner.found == Found::kNowhere && IsOfLoopback(peer));
  if (is_gone) return "it has gone, and who it was is not known";
  if (owner.found != Found::kOwned || owner.user == geteuid() || owner.user == 0) return "";
  return fmt::format("it is user {}'s, and this job is user {}'s", owner.user, geteuid());
}

}  // namespace phalanx

#include "checkpoint/host/serve.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/process/process.h"
#include "base/thread.h"
#include "checkpoint/host/memory_host.h"
#include "checkpoint/host/request.h"
#include "checkpoint/host/storage_host.h"

namespace phalanx::checkpoint {
namespace {

using Answerer = std::function<std::string(Request&)>;

// False where nobody will ask any more.
bool WaitForRequest(int socket, int owner) {
  std::array<pollfd, 2> waited{pollfd{socket, POLLIN, 0}, pollfd{owner, POLLIN, 0}};  // a negative one is passed over
  while (poll(waited.data(), waited.size(), -1) < 0) {
    if (errno != EINTR) return false;
  }
  return waited[1].revents == 0;
}

void Serve(int socket, int owner, const Answerer& answer) {
  const auto packet = std::make_unique<std::array<char, kHostPacketBytesMax>>();
  while (WaitForRequest(socket, owner)) {
    const ssize_t bytes = recv(socket, packet->data(), packet->size(), 0);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes <= 0) return;
    Request request(std::string_view(packet->data(), static_cast<size_t>(bytes)));
    const std::string text = request.status().ok() ? answer(request) : ErrorText(request.status());
    if (send(socket, text.data(), text.size(), MSG_NOSIGNAL) < 0) return;
  }
}

}  // namespace

Status ServeHost(HostSockets sockets, const std::string& root, int64_t owner) {
  // Not valid where this kernel has no such handles: then the socket alone tells.
  const Fd handle = PidfdOpen(static_cast<pid_t>(owner));
  if (getppid() != static_cast<pid_t>(owner)) return absl::FailedPreconditionError("the rank is gone already");
  // What a job's manager tells all of its processes is for the rank to hear: this one ends behind it.
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) std::signal(number, SIG_IGN);
  StatusOr<MemoryHost> memory = MemoryHost::Open(root, owner);
  if (!memory.ok()) {
    sockets.storage = Fd();
    Serve(sockets.memory.get(), handle.get(), [&](Request&) { return ErrorText(memory.status()); });
    return memory.status();
  }
  StorageHost storage;
  const auto write = [&storage, &sockets] {
    Serve(sockets.storage.get(), -1, [&storage](Request& request) { return storage.Answer(request); });
    shutdown(sockets.storage.get(), SHUT_RDWR);  // whoever still asks is answered by its end
  };
  StatusOr<std::thread> writer = StartThread(write);
  if (writer.ok()) {
    Serve(sockets.memory.get(), handle.get(), [&memory](Request& request) { return memory->Answer(request); });
  } else {
    sockets.storage = Fd();
    Serve(sockets.memory.get(), handle.get(), [&](Request&) { return ErrorText(writer.status()); });
  }
  memory->Remove();
  if (!writer.ok()) return writer.status();
  _exit(0);  // the writer may be at a disk that hangs; what it writes counts only when the rank says so
}

}  // namespace phalanx::checkpoint

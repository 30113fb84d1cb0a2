// Lends the images of a node's memory to other nodes of the job (docs/formats/image-read.md). A thread of its own
// serves all connections; the calls here are of one thread, the agent's, and wait for nothing but the end of that
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/status.h"
#include "checkpoint/remote/image_request.h"
#include "checkpoint/remote/secure_channel.h"

namespace phalanx::checkpoint {

// An image's file, and what its control page says of it. It is opened when it is asked for: one that was replaced since
// is not there, and none is kept open for nobody.
struct LentImage {
  std::string path;
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
  bool operator==(const LentImage&) const = default;
};
using LentImages = std::map<ImageName, LentImage>;

// From `first` to `last`; 0 to 0: whichever the kernel chooses.
struct LendingPorts {
  uint16_t first = 0;
  uint16_t last = 0;
};

class ImageServer {
 public:
  // Listens at `address` (textual IP), at a free port of `ports`, the last first: stores take theirs from the front.
  static StatusOr<std::unique_ptr<ImageServer>> Start(const std::string& address, const LendingPorts& ports);
  ImageServer(const ImageServer&) = delete;
  ImageServer& operator=(const ImageServer&) = delete;
  // Connections end.
  ~ImageServer();

  uint16_t port() const { return port_; }
  const ImageKey& key() const { return key_; }

  // From now on these, and no others.
  void Lend(LentImages images);
  // Those of that directory no more. When it has returned nobody is told any more that one of them is still lent.
  void Withdraw(const std::string& dir);

 private:
  class Connections;

  ImageServer(Fd listener, uint16_t port, const ImageKey& key, ChannelKey channels);

  const uint16_t port_;
  const ImageKey key_;
  EventLoop loop_;  // of the thread
  std::unique_ptr<Connections> connections_;
  std::thread thread_;
};

}  // namespace phalanx::checkpoint

// Feeds the store's engine what hostile clients could send: several connections, fragments of any size, slow readers,
// limits low enough to be met. The first byte of each step says which connection does what; see Step().
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "store/client_bytes.h"
#include "store/engine.h"

namespace phalanx::store {
namespace {

constexpr size_t kConnections = 4;

EngineOptions SmallLimits() {
  EngineOptions options;
  options.request.max_key_bytes = 64;
  options.request.max_payload_bytes = 4096;
  options.request.max_keys = 100;
  options.request.max_request_bytes = 8192;
  options.max_store_bytes = 16384;
  options.max_buffer_bytes = 32768;
  options.max_reply_bytes = 6000;
  options.output_pause_bytes = 1000;
  return options;
}

class Session {
 public:
  Session() : engine_(SmallLimits()) {
    for (ConnectionId& id : ids_) id = Join();
  }

  // One byte: bits 0-1 the connection; bit 2: it reads its output first; bit 3: it leaves and comes back; bit 4: it
  // comes back as a stranger. One byte: how many of the following bytes it sends.
  std::string_view Step(std::string_view input) {
    const auto what = static_cast<uint8_t>(input[0]);
    const size_t length = std::min<size_t>(static_cast<uint8_t>(input[1]), input.size() - 2);
    ConnectionId& id = ids_[what % kConnections];
    if ((what & 4) != 0) Read(id);
    if ((what & 8) != 0) {
      engine_.Close(id);
      id = (what & 16) != 0 ? engine_.Open() : Join();
    }
    if (engine_.WantsInput(id)) engine_.Receive(id, input.substr(2, length));
    ReplaceRefused();
    PHX_CHECK(engine_.stats().store_bytes <= SmallLimits().max_store_bytes, "the store outgrew its bound");
    return input.substr(2 + length);
  }

  // Everybody leaves: every byte that was counted must be given back but for the data.
  void End() {
    for (const ConnectionId id : ids_) {
      Read(id);
      engine_.Close(id);
    }
    const EngineStats stats = engine_.stats();
    PHX_CHECK(stats.buffer_bytes == 0, "buffers are still counted");
    PHX_CHECK(stats.waiting == 0, "somebody still waits");
    PHX_CHECK(stats.connections == 0, "somebody is still there");
    PHX_CHECK(stats.keys + stats.queues > 0 || stats.store_bytes == 0, "bytes of nothing are still counted");
  }

 private:
  ConnectionId Join() {
    const ConnectionId id = engine_.Open();
    engine_.Receive(id, Hello());
    return id;
  }

  void Read(ConnectionId id) {
    while (!engine_.Output(id).empty()) {
      engine_.Sent(id, (engine_.Output(id).size() + 1) / 2);
      if (engine_.HasBacklog(id) && engine_.WantsInput(id)) engine_.Resume(id);
    }
  }

  void ReplaceRefused() {
    std::vector<ConnectionId> changed;
    engine_.TakeChanged(&changed);
    for (ConnectionId& id : ids_) {
      if (engine_.violation(id) == nullptr) continue;
      engine_.Close(id);
      id = Join();
    }
  }

  Engine engine_;
  ConnectionId ids_[kConnections];
};

}  // namespace
}  // namespace phalanx::store

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  phalanx::store::Session session;
  while (input.size() >= 2) input = session.Step(input);
  session.End();
  return 0;
}

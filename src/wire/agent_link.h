// The agent's end of AgentLink.Attach: one stream to the master. gRPC's completion queue has a thread of its own, which
// only posts to the event loop; everything else here belongs to the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "base/status.h"
#include "phalanx/v1/agent.pb.h"
#include "wire/credentials.h"
#include "wire/link_fault.h"

namespace phalanx::wire {

struct LinkEvents {
  // `master_ip`: where the stream leads to, textual; empty: not known.
  std::function<void(const std::string& master_ip)> on_up;
  std::function<void(v1::MasterMessage)> on_message;
  // The stream is over or never came up. `silent`: nothing at all was heard from there, not even that nobody listens.
  std::function<void(const Status& why, LinkFault fault, bool silent)> on_down;
};

class MasterLink {
 public:
  // No events are sent before Dial().
  MasterLink(EventLoop& loop, Credentials credentials, LinkEvents events);
  MasterLink(const MasterLink&) = delete;
  MasterLink& operator=(const MasterLink&) = delete;
  // Cancels the stream and joins the thread.
  ~MasterLink();

  // Opens a stream to `address`, host:port, that is given up after `timeout_ms`: exactly one of on_up and on_down
  // follows; after on_up, one on_down in the end. What was open or dialled before is let go of, without an event.
  void Dial(const std::string& address, int64_t timeout_ms);

  // The stream that is open ends; on_down follows.
  void HangUp();

  // Queues a message behind those already queued; numbers it. Dropped where no stream is up.
  void Send(v1::AgentMessage message);

  // Half-closes once everything queued is written; `done` runs when the peer has ended the stream, or after
  // `timeout_ms`, or at once where no stream is up. No other event follows.
  void Close(int64_t timeout_ms, std::function<void()> done);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx::wire

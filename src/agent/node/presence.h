// A port on which this agent listens for as long as it lives, and closes what comes: other machines learn whether it
// has ended (MasterPlace.presence_port, src/master/rules/voters.h). Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/status.h"

namespace phalanx::agent {

class PresencePort {
 public:
  // At `address` (textual IP), any free port from `first` to `last`; 0, 0: any at all. Who connects is told `node_id`:
  // another agent may have the port one day.
  static StatusOr<std::unique_ptr<PresencePort>> Open(EventLoop& loop, const std::string& address,
                                                      const std::string& node_id, uint16_t first, uint16_t last);
  PresencePort(const PresencePort&) = delete;
  PresencePort& operator=(const PresencePort&) = delete;
  ~PresencePort();

  uint16_t port() const { return port_; }

 private:
  PresencePort(EventLoop& loop, Fd socket, uint16_t port, std::string node_id);
  void Listen();
  void Accept();

  EventLoop& loop_;
  const Fd socket_;
  const uint16_t port_;
  const std::string node_id_;
  EventLoop::TimerId again_;
};

}  // namespace phalanx::agent

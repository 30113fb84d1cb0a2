// The connections of simulated agents to a master, for the programs that measure one: each agent has a connection and a
// stream of its own, as its node would have. One thread; everything is called on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// Who speaks on a stream. Nothing is called behind OnClosed.
class ScaleSpeaker {
 public:
  ScaleSpeaker() = default;
  ScaleSpeaker(const ScaleSpeaker&) = delete;
  ScaleSpeaker& operator=(const ScaleSpeaker&) = delete;
  virtual ~ScaleSpeaker() = default;
  // What is sent from now on goes out.
  virtual void OnOpen() = 0;
  virtual void OnMessage(const v1::MasterMessage& message) = 0;
  virtual void OnClosed(const std::string& why) = 0;
};

// A stream; closed, without a call, when it is destroyed, which is before its network is.
class ScaleStream {
 public:
  ScaleStream() = default;
  ScaleStream(const ScaleStream&) = delete;
  ScaleStream& operator=(const ScaleStream&) = delete;
  virtual ~ScaleStream() = default;
  virtual void Send(const v1::AgentMessage& message) = 0;
};

class ScaleNetwork {
 public:
  ScaleNetwork() = default;
  ScaleNetwork(const ScaleNetwork&) = delete;
  ScaleNetwork& operator=(const ScaleNetwork&) = delete;
  virtual ~ScaleNetwork() = default;
  // Dials. `speaker` outlives the stream.
  virtual std::unique_ptr<ScaleStream> Open(ScaleSpeaker* speaker) = 0;
  // Serves what has happened; waits at most so long for something to happen.
  virtual void Serve(int64_t wait_ms) = 0;
};

// HTTP/2 is written here: on one machine channels of gRPC take more of the processors than the master that is measured.
// `port`: of 127.0.0.1. `token`: each connection is a TLS handshake in which both sides show a certificate; empty: in
// clear.
std::unique_ptr<ScaleNetwork> NetworkTo(uint16_t port, const std::string& token);

}  // namespace phalanx::master

// The platform at the job's master (src/master/core/platform.h): one stream counts at a time, the newest; what it says
// goes to the core, and it is told how the job is when that changes. Belongs to the master's sequence.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "master/core/core.h"
#include "master/endpoint/endpoint.h"
#include "phalanx/v1/platform.grpc.pb.h"
#include "wire/platform_stream.h"

namespace phalanx::master {

// Views of a job follow each other no faster: steps come by the hundred, and nobody counts them at that pace.
constexpr int64_t kViewEveryMs = 100;
// Streams that have not been turned away yet, or are about to end.
constexpr size_t kMaxPlatformStreams = 8;

class PlatformDesk final : public wire::PlatformStreamOwner {
 public:
  // The job must outlive this.
  PlatformDesk(std::string job_id, const JobState& job) : job_id_(std::move(job_id)), job_(job) {}

  grpc::Service& service() { return service_; }
  // Waits for streams at the queue from now on. `feed` brings an event to the core.
  void Offer(grpc::ServerCompletionQueue& queue, Endpoint& endpoint, std::function<void(const Event&)> feed);
  // The core has stepped, or DueAt has come: the platform hears what has changed.
  void Settle(Instant now);
  Instant DueAt() const;
  // The endpoint is about to go: all streams end.
  void Withdraw();
  // Streams that are waited for, open, or ending: they have operations that the queue has to give back.
  size_t streams() const { return streams_.size(); }

  void OnAccepted(wire::PlatformStream& stream) override;
  void OnMessage(wire::PlatformStream& stream, v1::PlatformMessage message) override;
  void OnEnded(wire::PlatformStream& stream) override;
  void OnOver(wire::PlatformStream& stream) override;

 private:
  void OfferOne();
  // Why it may not attach; OK: it may.
  grpc::Status Admit(const v1::PlatformMessage& first) const;
  // Turns it away.
  void Refuse(wire::PlatformStream& stream, const grpc::Status& why);
  // It counts no more.
  void Forget();

  const std::string job_id_;
  const JobState& job_;
  v1::PlatformLink::AsyncService service_;
  grpc::ServerCompletionQueue* queue_ = nullptr;  // null: not offered
  Endpoint* endpoint_ = nullptr;
  std::function<void(const Event&)> feed_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, std::unique_ptr<wire::PlatformStream>> streams_;
  uint64_t attached_ = 0;  // the one that counts; 0: none
  std::string told_;       // it last, as bytes
  Instant told_at_ = 0;
  bool changed_ = false;  // the core has stepped since
};

}  // namespace phalanx::master

// Answers `phalanx status|events|why|ledger`. Belongs to the master's sequence.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "master/core/core.h"
#include "master/serve/record_keeper.h"
#include "phalanx/v1/admin.grpc.pb.h"

namespace phalanx::master {

class AdminDesk {
 public:
  // Rows in one answer.
  static constexpr uint32_t kMaxEventsReply = 1'024;

  // Who does not give `token` learns nothing; where it is empty, everybody does. Job and record must outlive this.
  AdminDesk(std::string job_id, std::string token, int64_t started_unix_ms, const JobState& job,
            const RecordKeeper& record)
      : job_id_(std::move(job_id)),
        token_(std::move(token)),
        started_unix_ms_(started_unix_ms),
        job_(job),
        record_(record) {}

  v1::Admin::AsyncService& service() { return service_; }
  // Waits for calls at the queue from now on.
  void Offer(grpc::ServerCompletionQueue& queue);
  // Calls that are waited for or answered: operations that the queue has to give back.
  int calls() const { return calls_; }

  grpc::Status Answer(const v1::StatusRequest& request, v1::StatusReply& reply) const;
  grpc::Status Answer(const v1::EventsRequest& request, v1::EventsReply& reply) const;

 private:
  grpc::Status Authorize(const std::string& job_id, const std::string& token) const;

  const std::string job_id_;
  const std::string token_;
  const int64_t started_unix_ms_;
  const JobState& job_;
  const RecordKeeper& record_;
  v1::Admin::AsyncService service_;
  int calls_ = 0;
};

}  // namespace phalanx::master

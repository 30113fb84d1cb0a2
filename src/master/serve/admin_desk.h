// Answers `phalanx status|events|why|ledger`, and hears `phalanx let-in`. Belongs to the master's sequence.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "master/core/core.h"
#include "master/endpoint/endpoint.h"
#include "master/serve/record_keeper.h"
#include "phalanx/v1/admin.grpc.pb.h"
#include "wire/admin_call.h"

namespace phalanx::master {

class AdminDesk {
 public:
  // Rows in one answer.
  static constexpr uint32_t kMaxEventsReply = 1'024;

  // Job and record must outlive this.
  AdminDesk(std::string job_id, const JobState& job, const RecordKeeper& record)
      : job_id_(std::move(job_id)), job_(job), record_(record) {}

  grpc::Service& service() { return service_; }
  // Waits for calls at the queue from now on. Who calls by a certificate is told to `endpoint`. `feed`: brings a
  // LookedAt or a LetIn to the core.
  void Offer(grpc::ServerCompletionQueue& queue, Endpoint& endpoint, std::function<void(const Event&)> feed);
  // The core has stepped: who waits for what nodes say is answered where they have.
  void Settle(Instant now);
  // The endpoint is about to go; who waits is answered by what is known.
  void Withdraw(Instant now);
  // Calls that are waited for or answered: operations that the queue has to give back.
  int calls() const { return calls_; }

  // Who has proved nothing learns nothing.

  // Bytes of v1::StatusRequest and v1::StatusReply. One that need not be fresh is made anew when StatusKeptMs are over:
  // a copy of its bytes costs nothing, whatever the number of nodes. `finish` follows, at once or from Settle.
  using Finish = std::function<void(const grpc::Status&)>;
  void AnswerStatus(const wire::Caller& caller, const grpc::ByteBuffer& request, grpc::ByteBuffer& reply, Finish finish,
                    Instant now);
  // At most kMaxEventsReply rows: a millisecond or two.
  grpc::Status AnswerEvents(const wire::Caller& caller, const v1::EventsRequest& request, v1::EventsReply& reply) const;
  // Who may look alone may not let in.
  grpc::Status AnswerLetIn(const wire::Caller& caller, const v1::LetInRequest& request, v1::LetInReply& reply,
                           Instant now);

 private:
  // How the generated code calls a service whose Status has bytes for messages.
  using Service = v1::Admin::WithRawMethod_Status<
      v1::Admin::WithAsyncMethod_Events<v1::Admin::WithAsyncMethod_LetIn<v1::Admin::Service>>>;
  static constexpr int kKindsOfCalls = 3;  // one of each is waited for

  // Who may not ask is counted.
  grpc::Status Admit(const wire::Caller& caller, const std::string& job_id) const;
  grpc::Status WhyNot(const wire::Caller& caller, const std::string& job_id) const;
  void CountRefused(const wire::Caller& caller, const grpc::Status& why) const;
  grpc::Status FillStatus(Instant now, bool ranks, bool check, grpc::ByteBuffer& reply) const;
  // The reply that is kept for a while.
  grpc::Status Remake(Instant now);
  void AnswerWaiting(Instant now);

  // A call that waits for what nodes say.
  struct Waiting {
    bool ranks = false;
    grpc::ByteBuffer* reply = nullptr;
    Finish finish;
  };

  const std::string job_id_;
  const JobState& job_;
  const RecordKeeper& record_;
  Endpoint* endpoint_ = nullptr;  // null: not offered
  Service service_;
  int calls_ = 0;
  std::function<void(const Event&)> feed_;
  std::vector<Waiting> waiting_;
  grpc::ByteBuffer status_;  // the reply that was made last
  Instant status_until_ = 0;
};

}  // namespace phalanx::master

#include "master/serve/admin_desk.h"

#include <fmt/format.h>

#include <algorithm>

#include "master/core/convert.h"
#include "master/serve/shell_decisions.h"
#include "wire/admin_call.h"

namespace phalanx::master {

void AdminDesk::Offer(grpc::ServerCompletionQueue& queue, Endpoint& endpoint) {
  endpoint_ = &endpoint;
  using StatusCall = wire::AdminCall<grpc::ByteBuffer, grpc::ByteBuffer>;
  using EventsCall = wire::AdminCall<v1::EventsRequest, v1::EventsReply>;
  StatusCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestStatus(context, request, writer, &queue, &queue, tag);
      },
      [this](const wire::Caller& caller, const auto& request, auto& reply) {
        return AnswerStatus(caller, request, reply, MonotonicMs());
      },
      &calls_);
  EventsCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestEvents(context, request, writer, &queue, &queue, tag);
      },
      [this](const wire::Caller& caller, const auto& request, auto& reply) {
        return AnswerEvents(caller, request, reply);
      },
      &calls_);
}

grpc::Status AdminDesk::Admit(const wire::Caller& caller, const std::string& job_id) const {
  if (caller.role && endpoint_ != nullptr) endpoint_->Proved(caller.peer);
  const std::string busy = WhyNoAnswer(calls_ - kKindsOfCalls);
  if (!busy.empty()) return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, busy);
  if (!caller.role) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                        "the job is open, and tells of itself only by the files of its state directory: ask on its "
                        "master's machine, as its user (--state-dir)");
  }
  if (*caller.role == wire::Role::kUnknown) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "the certificate's role is unknown");
  }
  if (!job_id.empty() && job_id != job_id_) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, fmt::format("this master serves job '{}'", job_id_));
  }
  return grpc::Status::OK;
}

grpc::Status AdminDesk::AnswerStatus(const wire::Caller& caller, const grpc::ByteBuffer& request,
                                     grpc::ByteBuffer& reply, Instant now) {
  v1::StatusRequest asked;
  grpc::ByteBuffer bytes = request;  // reading takes them
  grpc::Status read = grpc::SerializationTraits<v1::StatusRequest>::Deserialize(&bytes, &asked);
  if (!read.ok()) return read;
  grpc::Status allowed = Admit(caller, asked.job_id());
  if (!allowed.ok()) return allowed;
  if (now >= status_until_) {
    grpc::Status made = MakeStatus(now);
    if (!made.ok()) return made;
  }
  reply = status_;
  return grpc::Status::OK;
}

grpc::Status AdminDesk::MakeStatus(Instant now) {
  v1::StatusReply status = StatusOf(job_, now);
  status.set_started_unix_ms(started_unix_ms_);
  status.set_now_unix_ms(record_.UnixNow());
  if (endpoint_ != nullptr) {
    const Refusals::Told refused = endpoint_->refusals().Get();
    status.set_refused_callers(refused.count);
    status.set_last_refused(refused.last);
  }
  bool owned = false;
  status_until_ = now + StatusKeptMs(job_.nodes.size());
  status_.Clear();
  return grpc::SerializationTraits<v1::StatusReply>::Serialize(status, &status_, &owned);
}

grpc::Status AdminDesk::AnswerEvents(const wire::Caller& caller, const v1::EventsRequest& request,
                                     v1::EventsReply& reply) const {
  grpc::Status allowed = Admit(caller, request.job_id());
  if (!allowed.ok()) return allowed;
  const uint32_t limit = request.limit() == 0 ? kMaxEventsReply : std::min(request.limit(), kMaxEventsReply);
  reply = record_.After(request.after_id(), limit);
  return grpc::Status::OK;
}

}  // namespace phalanx::master

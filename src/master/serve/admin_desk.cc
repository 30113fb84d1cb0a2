#include "master/serve/admin_desk.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/clock.h"
#include "master/core/convert.h"
#include "master/core/door.h"
#include "wire/admin_call.h"

namespace phalanx::master {

void AdminDesk::Offer(grpc::ServerCompletionQueue& queue) {
  using StatusCall = wire::AdminCall<v1::StatusRequest, v1::StatusReply>;
  using EventsCall = wire::AdminCall<v1::EventsRequest, v1::EventsReply>;
  StatusCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestStatus(context, request, writer, &queue, &queue, tag);
      },
      [this](const auto& request, auto& reply) { return Answer(request, reply); }, &calls_);
  EventsCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestEvents(context, request, writer, &queue, &queue, tag);
      },
      [this](const auto& request, auto& reply) { return Answer(request, reply); }, &calls_);
}

grpc::Status AdminDesk::Authorize(const std::string& job_id, const std::string& token) const {
  if (!token_.empty() && !SameToken(token, token_)) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "the token is not that of the job (PHALANX_TOKEN)");
  }
  if (!job_id.empty() && job_id != job_id_) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, fmt::format("this master serves job '{}'", job_id_));
  }
  return grpc::Status::OK;
}

grpc::Status AdminDesk::Answer(const v1::StatusRequest& request, v1::StatusReply& reply) const {
  grpc::Status allowed = Authorize(request.job_id(), request.token());
  if (!allowed.ok()) return allowed;
  reply = StatusOf(job_, MonotonicMs());
  reply.set_started_unix_ms(started_unix_ms_);
  reply.set_now_unix_ms(record_.UnixNow());
  return grpc::Status::OK;
}

grpc::Status AdminDesk::Answer(const v1::EventsRequest& request, v1::EventsReply& reply) const {
  grpc::Status allowed = Authorize(request.job_id(), request.token());
  if (!allowed.ok()) return allowed;
  const uint32_t limit = request.limit() == 0 ? kMaxEventsReply : std::min(request.limit(), kMaxEventsReply);
  reply = record_.After(request.after_id(), limit);
  return grpc::Status::OK;
}

}  // namespace phalanx::master

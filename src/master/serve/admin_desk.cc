#include "master/serve/admin_desk.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/grpc_peer.h"
#include "master/core/convert.h"
#include "master/serve/other_job.h"
#include "master/serve/shell_decisions.h"
#include "wire/admin_call.h"

namespace phalanx::master {

void AdminDesk::Offer(grpc::ServerCompletionQueue& queue, Endpoint& endpoint, std::function<void(const Event&)> feed) {
  endpoint_ = &endpoint;
  feed_ = std::move(feed);
  using StatusCall = wire::AdminCall<grpc::ByteBuffer, grpc::ByteBuffer>;
  using EventsCall = wire::AdminCall<v1::EventsRequest, v1::EventsReply>;
  using LetInCall = wire::AdminCall<v1::LetInRequest, v1::LetInReply>;
  StatusCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestStatus(context, request, writer, &queue, &queue, tag);
      },
      [this](const wire::Caller& caller, const auto& request, auto& reply, const StatusCall::Finish& finish) {
        AnswerStatus(caller, request, reply, finish, MonotonicMs());
      },
      &calls_);
  EventsCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestEvents(context, request, writer, &queue, &queue, tag);
      },
      [this](const wire::Caller& caller, const auto& request, auto& reply, const EventsCall::Finish& finish) {
        finish(AnswerEvents(caller, request, reply));
      },
      &calls_);
  LetInCall::Start(
      [this, &queue](auto* context, auto* request, auto* writer, void* tag) {
        service_.RequestLetIn(context, request, writer, &queue, &queue, tag);
      },
      [this](const wire::Caller& caller, const auto& request, auto& reply, const LetInCall::Finish& finish) {
        finish(AnswerLetIn(caller, request, reply, MonotonicMs()));
      },
      &calls_);
}

grpc::Status AdminDesk::Admit(const wire::Caller& caller, const std::string& job_id) const {
  grpc::Status allowed = WhyNot(caller, job_id);
  if (!allowed.ok()) CountRefused(caller, allowed);
  return allowed;
}

void AdminDesk::CountRefused(const wire::Caller& caller, const grpc::Status& why) const {
  // Who asks for too much at once is right to come again.
  if (endpoint_ == nullptr || why.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) return;
  endpoint_->CountRefused(Refusals::Door::kAdmin, fmt::format("{} asked of the job, and was refused: {}",
                                                              PeerHostPort(caller.peer), why.error_message()));
}

grpc::Status AdminDesk::WhyNot(const wire::Caller& caller, const std::string& job_id) const {
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
  if (!job_id.empty() && job_id != job_id_) return OtherJob();
  return grpc::Status::OK;
}

void AdminDesk::AnswerStatus(const wire::Caller& caller, const grpc::ByteBuffer& request, grpc::ByteBuffer& reply,
                             Finish finish, Instant now) {
  v1::StatusRequest asked;
  grpc::ByteBuffer bytes = request;  // reading takes them
  const grpc::Status read = grpc::SerializationTraits<v1::StatusRequest>::Deserialize(&bytes, &asked);
  if (!read.ok()) return finish(read);
  const grpc::Status allowed = Admit(caller, asked.job_id());
  if (!allowed.ok()) return finish(allowed);
  if (asked.check()) return finish(FillStatus(now, asked.ranks(), true, reply));
  const bool kept = now < status_until_ && !asked.ranks();
  if (!kept && feed_ && (asked.fresh() || asked.ranks())) {
    waiting_.push_back({asked.ranks(), &reply, std::move(finish)});
    return feed_(LookedAt{asked.ranks()});  // Settle follows
  }
  const grpc::Status made = kept ? grpc::Status::OK : Remake(now);
  if (made.ok()) reply = status_;
  finish(made);
}

grpc::Status AdminDesk::Remake(Instant now) {
  status_until_ = now + StatusKeptMs(job_.nodes.size());
  return FillStatus(now, false, false, status_);
}

void AdminDesk::Settle(Instant now) {
  // A master that is not the job's, or not yet, asks nobody.
  const bool asks = !job_.moved_to && !job_.candidacy;
  if (!waiting_.empty() && (!asks || job_.look.owed == 0)) AnswerWaiting(now);
}

void AdminDesk::Withdraw(Instant now) {
  AnswerWaiting(now);
  feed_ = nullptr;
  endpoint_ = nullptr;
}

// Those that want the same get the same bytes.
void AdminDesk::AnswerWaiting(Instant now) {
  if (waiting_.empty()) return;
  grpc::Status made = Remake(now);
  grpc::ByteBuffer with_ranks;
  const bool any_ranks = std::ranges::any_of(waiting_, &Waiting::ranks);
  if (made.ok() && any_ranks) made = FillStatus(now, true, false, with_ranks);
  for (const Waiting& call : std::exchange(waiting_, {})) {
    *call.reply = call.ranks ? with_ranks : status_;
    call.finish(made);
  }
}

grpc::Status AdminDesk::FillStatus(Instant now, bool ranks, bool check, grpc::ByteBuffer& reply) const {
  v1::StatusReply status = StatusOf(job_, now, ranks);
  if (check) *status.mutable_check() = CheckOf(job_, now);
  status.set_started_unix_ms(record_.began_unix_ms());
  status.set_now_unix_ms(record_.UnixNow());
  if (endpoint_ != nullptr) {
    const Refusals::Told refused = endpoint_->refusals().Get();
    status.set_refused_callers(refused.count);
    status.set_refused_admin(refused.admin);
    status.set_refused_platform(refused.platform);
    status.set_last_refused(refused.last);
  }
  bool owned = false;
  reply.Clear();
  return grpc::SerializationTraits<v1::StatusReply>::Serialize(status, &reply, &owned);
}

grpc::Status AdminDesk::AnswerEvents(const wire::Caller& caller, const v1::EventsRequest& request,
                                     v1::EventsReply& reply) const {
  grpc::Status allowed = Admit(caller, request.job_id());
  if (!allowed.ok()) return allowed;
  const uint32_t limit = request.limit() == 0 ? kMaxEventsReply : std::min(request.limit(), kMaxEventsReply);
  reply = record_.After(request.after_id(), limit);
  return grpc::Status::OK;
}

grpc::Status AdminDesk::AnswerLetIn(const wire::Caller& caller, const v1::LetInRequest& request, v1::LetInReply& reply,
                                    Instant now) {
  grpc::Status allowed = Admit(caller, request.job_id());
  if (!allowed.ok()) return allowed;
  if (caller.role != wire::Role::kOperator) {
    allowed =
        grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                     fmt::format("the certificate's role is {}: who changes the job needs one of the role operator",
                                 wire::NameOf(*caller.role)));
    CountRefused(caller, allowed);
    return allowed;
  }
  for (const Machine& machine : LeftOutMachines(job_.health, request.node(), now)) {
    reply.add_nodes(job_.health.left_out.at(machine).node);
  }
  if (reply.nodes().empty()) {
    for (v1::LeftOut& left_out : LeftOutNow(job_.health, now)) *reply.add_left_out() = std::move(left_out);
  } else if (feed_) {
    feed_(LetIn{request.node()});
  }
  return grpc::Status::OK;
}

}  // namespace phalanx::master

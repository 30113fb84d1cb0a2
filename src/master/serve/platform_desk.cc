#include "master/serve/platform_desk.h"

#include <fmt/format.h>

#include "base/grpc_peer.h"
#include "master/core/platform.h"
#include "master/serve/other_job.h"

namespace phalanx::master {

namespace {

// That time goes by is no news.
v1::JobView WithoutTime(v1::JobView view) {
  for (v1::UnfitNode& unfit : *view.mutable_unfit()) unfit.clear_left_ms();
  return view;
}

}  // namespace

void PlatformDesk::Offer(grpc::ServerCompletionQueue& queue, Endpoint& endpoint,
                         std::function<void(const Event&)> feed) {
  queue_ = &queue;
  endpoint_ = &endpoint;
  feed_ = std::move(feed);
  OfferOne();
}

void PlatformDesk::OfferOne() {
  const uint64_t id = next_id_++;
  auto stream = std::make_unique<wire::PlatformStream>(id, this);
  wire::PlatformStream& offered = *stream;
  streams_[id] = std::move(stream);
  offered.Offer(service_, *queue_);
}

void PlatformDesk::OnAccepted(wire::PlatformStream& stream) {
  if (queue_ == nullptr) return stream.Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the master ends"));
  if (stream.role()) endpoint_->Proved(stream.peer());
  const bool busy = streams_.size() > kMaxPlatformStreams;
  OfferOne();
  if (stream.role() != wire::Role::kPlatform) {
    return Refuse(stream, grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                                       "a platform shows a certificate of the role platform "
                                       "(docs/formats/credentials.md); this connection has none"));
  }
  if (busy) stream.Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "too many platforms are here"));
}

void PlatformDesk::Refuse(wire::PlatformStream& stream, const grpc::Status& why) {
  if (why.error_code() != grpc::StatusCode::UNAVAILABLE) {  // else it comes again, and is right to
    endpoint_->CountRefused(Refusals::Door::kPlatform,
                            fmt::format("{} would be the job's platform, and was refused: {}",
                                        PeerHostPort(stream.peer()), why.error_message()));
  }
  stream.Finish(why);
}

grpc::Status PlatformDesk::Admit(const v1::PlatformMessage& first) const {
  using grpc::StatusCode;
  if (!first.has_hello()) return grpc::Status(StatusCode::INVALID_ARGUMENT, "the first message is to be a hello");
  if (!first.hello().job_id().empty() && first.hello().job_id() != job_id_) return OtherJob();
  if (job_.candidacy) return grpc::Status(StatusCode::UNAVAILABLE, "this master is not elected yet");
  if (job_.moved_to) {
    return grpc::Status(StatusCode::UNAVAILABLE, fmt::format("the job's master is at {} port {}",
                                                             job_.moved_to->address(), job_.moved_to->port()));
  }
  const std::string refusal = PlatformRefusal(job_, first.hello());
  if (!refusal.empty()) return grpc::Status(StatusCode::ABORTED, refusal);
  return grpc::Status::OK;
}

void PlatformDesk::OnMessage(wire::PlatformStream& stream, v1::PlatformMessage message) {
  if (queue_ == nullptr) return;
  if (!stream.greeted()) {
    const grpc::Status allowed = Admit(message);
    if (!allowed.ok()) return Refuse(stream, allowed);
    stream.set_greeted();
    const auto before = streams_.find(attached_);
    attached_ = stream.id();
    told_.clear();
    if (before != streams_.end()) {
      before->second->Finish(grpc::Status(grpc::StatusCode::ABORTED, "the platform has come again"));
    }
  }
  if (stream.id() != attached_) return;
  feed_(SaidByPlatform(std::move(message)));  // Settle follows
}

void PlatformDesk::OnEnded(wire::PlatformStream& stream) {
  if (stream.id() == attached_) Forget();
}

void PlatformDesk::OnOver(wire::PlatformStream& stream) { streams_.erase(stream.id()); }

void PlatformDesk::Forget() {
  attached_ = 0;
  if (queue_ != nullptr) feed_(PlatformGone{});
}

void PlatformDesk::Settle(Instant now) {
  if (attached_ == 0) return;
  changed_ = true;
  const bool urgent = job_.phase == Phase::kFinished;
  if (!told_.empty() && !urgent && now < told_at_ + kViewEveryMs) return;
  changed_ = false;
  v1::JobView view = ViewOf(job_, now);
  std::string bytes = WithoutTime(view).SerializeAsString();
  if (bytes == told_) return;
  told_ = std::move(bytes);
  told_at_ = now;
  streams_.at(attached_)->Send(std::move(view));
}

Instant PlatformDesk::DueAt() const { return attached_ != 0 && changed_ ? told_at_ + kViewEveryMs : kNever; }

void PlatformDesk::Withdraw() {
  queue_ = nullptr;
  endpoint_ = nullptr;
  for (const auto& [id, stream] : streams_) {
    if (stream->accepted()) stream->Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, "the master ends"));
  }
  attached_ = 0;
}

}  // namespace phalanx::master

#include "wire/platform_stream.h"

#include <utility>

namespace phalanx::wire {

void PlatformStream::Offer(v1::PlatformLink::AsyncService& service, grpc::ServerCompletionQueue& queue) {
  ++operations_;
  service.RequestAttach(&context_, &stream_, &queue, &queue, &offered_);
}

void PlatformStream::OnOffered(bool ok) {
  --operations_;
  if (!ok) return MaybeOver();  // the server is shutting down
  accepted_ = true;
  Read();
  owner_->OnAccepted(*this);
}

void PlatformStream::Read() {
  ++operations_;
  stream_.Read(&incoming_, &read_);
}

void PlatformStream::OnRead(bool ok) {
  --operations_;
  if (!ok) {
    // The platform has half-closed, the stream broke, or it was finished here.
    if (!finish_) finish_ = grpc::Status::OK;
    Advance();
    owner_->OnEnded(*this);
    return MaybeOver();
  }
  v1::PlatformMessage message;
  message.Swap(&incoming_);
  Read();
  if (!finish_) owner_->OnMessage(*this, std::move(message));
}

void PlatformStream::Send(v1::JobView view) {
  if (finish_ || broken_) return;
  next_ = std::move(view);
  Advance();
}

void PlatformStream::Finish(grpc::Status status) {
  if (finish_) return;
  if (!status.ok()) next_.reset();
  finish_ = std::move(status);
  Advance();
}

// Starts what comes next, where nothing is under way.
void PlatformStream::Advance() {
  if (writing_ || finishing_) return;
  if (next_ && !broken_) {
    writing_now_ = *std::exchange(next_, std::nullopt);
    writing_ = true;
    ++operations_;
    return stream_.Write(writing_now_, &written_);
  }
  if (!finish_) return;
  finishing_ = true;
  ++operations_;
  stream_.Finish(*finish_, &finished_);
}

void PlatformStream::OnWritten(bool ok) {
  --operations_;
  writing_ = false;
  broken_ |= !ok;
  Advance();
  MaybeOver();
}

void PlatformStream::OnFinished(bool) {
  --operations_;
  // Whatever the platform still says is read by nobody: its pending read ends now.
  context_.TryCancel();
  MaybeOver();
}

void PlatformStream::MaybeOver() {
  if (operations_ == 0) owner_->OnOver(*this);
}

}  // namespace phalanx::wire

#include "wire/session.h"

#include <utility>

#include "wire/limits.h"

namespace phalanx::wire {

void Session::Offer(v1::AgentLink::AsyncService& service, grpc::ServerCompletionQueue& queue) {
  ++operations_;
  service.RequestAttach(&context_, &stream_, &queue, &queue, &offered_);
}

void Session::OnOffered(bool ok) {
  --operations_;
  if (!ok) {  // the server is shutting down
    MaybeOver();
    return;
  }
  accepted_ = true;
  Read();
  owner_->OnAccepted(*this);
}

void Session::Read() {
  ++operations_;
  stream_.Read(&incoming_, &read_);
}

void Session::OnRead(bool ok) {
  --operations_;
  if (!ok) {
    read_over_ = true;
    MaybeFinish();
    // The owner may not destroy this object in OnEnded: that is OnOver's.
    owner_->OnEnded(*this);
    MaybeOver();
    return;
  }
  v1::AgentMessage message;
  message.Swap(&incoming_);
  Read();
  // A number that was seen before is a repeat; what comes after the end is of no interest.
  if (ending_ || message.sequence() <= last_sequence_) return;
  last_sequence_ = message.sequence();
  owner_->OnMessage(*this, message);
}

void Session::Send(std::shared_ptr<const v1::MasterMessage> message) {
  if (ending_ || cancelled_ || read_over_) return;
  if (queued_.size() >= kMaxQueued) return Cancel();
  queued_.push_back(std::move(message));
  if (!writing_) WriteNext();
}

void Session::WriteNext() {
  writing_ = true;
  ++operations_;
  stream_.Write(*queued_.front(), &written_);
}

void Session::OnWritten(bool ok) {
  --operations_;
  writing_ = false;
  queued_.pop_front();
  if (!ok) queued_.clear();  // the stream is broken; the pending read says so
  if (!queued_.empty()) {
    WriteNext();
  } else {
    MaybeFinish();
  }
  MaybeOver();
}

void Session::End() { ending_ = true; }

void Session::Cancel() {
  if (std::exchange(cancelled_, true)) return;
  context_.TryCancel();
}

// Not before the agent has half-closed, having read all: where this process ends with bytes of the agent's unread, the
// kernel resets the connection, and what the agent has not read is lost.
void Session::MaybeFinish() {
  if (finishing_ || writing_ || !read_over_) return;
  finishing_ = true;
  ++operations_;
  stream_.Finish(grpc::Status::OK, &finished_);
}

void Session::OnFinished(bool) {
  --operations_;
  MaybeOver();
}

bool Session::MaybeOver() {
  if (operations_ > 0) return false;
  owner_->OnOver(*this);
  return true;
}

}  // namespace phalanx::wire

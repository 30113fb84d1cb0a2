// The platform's stream to a job's master, from its acceptance to the return of its last operation. Belongs to the
// completion queue's thread. What is sent is a whole picture each time, so that one waits at most: the newest.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <optional>
#include <string>

#include "phalanx/v1/platform.grpc.pb.h"
#include "wire/credentials.h"
#include "wire/operation.h"

namespace phalanx::wire {

class PlatformStream;

// Who owns the streams. A stream calls these as the last thing it does in a callback.
class PlatformStreamOwner {
 public:
  virtual ~PlatformStreamOwner() = default;
  // It is open; the owner should offer the next one.
  virtual void OnAccepted(PlatformStream& stream) = 0;
  virtual void OnMessage(PlatformStream& stream, v1::PlatformMessage message) = 0;
  // Nothing more comes.
  virtual void OnEnded(PlatformStream& stream) = 0;
  // No operation is left: the owner may destroy the stream, and does so.
  virtual void OnOver(PlatformStream& stream) = 0;
};

class PlatformStream {
 public:
  PlatformStream(uint64_t id, PlatformStreamOwner* owner) : id_(id), owner_(owner) {}
  PlatformStream(const PlatformStream&) = delete;
  PlatformStream& operator=(const PlatformStream&) = delete;

  // Waits for a stream.
  void Offer(v1::PlatformLink::AsyncService& service, grpc::ServerCompletionQueue& queue);
  // In place of what was not written yet.
  void Send(v1::JobView view);
  // Ends the stream with that status behind what is written. Not OK: at once.
  void Finish(grpc::Status status);

  uint64_t id() const { return id_; }
  std::string peer() const { return context_.peer(); }
  // Who has proved to be there; none: the connection is in clear.
  std::optional<Role> role() const { return RoleOf(*context_.auth_context()); }
  bool accepted() const { return accepted_; }
  bool greeted() const { return greeted_; }
  void set_greeted() { greeted_ = true; }

 private:
  void OnOffered(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void Read();
  void Advance();
  void MaybeOver();

  const uint64_t id_;
  PlatformStreamOwner* const owner_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::JobView, v1::PlatformMessage> stream_{&context_};
  v1::PlatformMessage incoming_;
  v1::JobView writing_now_;
  std::optional<v1::JobView> next_;
  std::optional<grpc::Status> finish_;  // it is to end so
  int operations_ = 0;                  // outstanding
  bool accepted_ = false;
  bool greeted_ = false;
  bool writing_ = false;
  bool broken_ = false;
  bool finishing_ = false;

  MemberOperation<PlatformStream> offered_{this, &PlatformStream::OnOffered};
  MemberOperation<PlatformStream> read_{this, &PlatformStream::OnRead};
  MemberOperation<PlatformStream> written_{this, &PlatformStream::OnWritten};
  MemberOperation<PlatformStream> finished_{this, &PlatformStream::OnFinished};
};

}  // namespace phalanx::wire

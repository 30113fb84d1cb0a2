// One agent's stream, from its acceptance to the return of its last operation. Belongs to the completion queue's
// thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>

#include "phalanx/v1/agent.grpc.pb.h"
#include "wire/credentials.h"
#include "wire/operation.h"

namespace phalanx::wire {

class Session;

// Who owns the sessions. A session calls these as the last thing it does in a callback.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  // The stream is open; the owner should offer the next session.
  virtual void OnAccepted(Session& session) = 0;
  // In order, repeats left out.
  virtual void OnMessage(Session& session, const v1::AgentMessage& message) = 0;
  // Nothing more will be read: the agent has ended the stream (`half_closed` is not told apart) or it broke.
  virtual void OnEnded(Session& session) = 0;
  // No operation is left: the owner may destroy the session, and does so.
  virtual void OnOver(Session& session) = 0;
};

class Session {
 public:
  Session(uint64_t id, SessionOwner* owner) : id_(id), owner_(owner) {}
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Waits for a stream.
  void Offer(v1::AgentLink::AsyncService& service, grpc::ServerCompletionQueue& queue);

  // Queues a message; one that many agents get is shared.
  void Send(std::shared_ptr<const v1::MasterMessage> message);
  // Nothing more is sent behind what is queued; the stream ends when the agent has half-closed it.
  void End();
  // Breaks the stream now.
  void Cancel();

  uint64_t id() const { return id_; }
  std::string peer() const { return context_.peer(); }
  // Who has proved to be there; none: the connection is in clear.
  std::optional<Role> role() const { return RoleOf(*context_.auth_context()); }
  bool accepted() const { return accepted_; }
  bool greeted() const { return greeted_; }
  bool ending() const { return ending_; }
  void set_greeted() { greeted_ = true; }

 private:
  void OnOffered(bool ok);
  void OnRead(bool ok);
  void OnWritten(bool ok);
  void OnFinished(bool ok);
  void Read();
  void WriteNext();
  // Finishes the stream where that is due and possible.
  void MaybeFinish();
  // Tells the owner when no operation is left; true where it did (this object is gone then).
  bool MaybeOver();

  const uint64_t id_;
  SessionOwner* const owner_;
  grpc::ServerContext context_;
  grpc::ServerAsyncReaderWriter<v1::MasterMessage, v1::AgentMessage> stream_{&context_};
  v1::AgentMessage incoming_;
  std::deque<std::shared_ptr<const v1::MasterMessage>> queued_;  // the first is being written, where writing_
  uint64_t last_sequence_ = 0;
  int operations_ = 0;  // outstanding
  bool accepted_ = false;
  bool greeted_ = false;  // the Hello came
  bool writing_ = false;
  bool read_over_ = false;
  bool ending_ = false;
  bool finishing_ = false;
  bool cancelled_ = false;

  MemberOperation<Session> offered_{this, &Session::OnOffered};
  MemberOperation<Session> read_{this, &Session::OnRead};
  MemberOperation<Session> written_{this, &Session::OnWritten};
  MemberOperation<Session> finished_{this, &Session::OnFinished};
};

}  // namespace phalanx::wire

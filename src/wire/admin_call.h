// `phalanx status|events|why|ledger` of a live master: one object for each call that is waited for or answered.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <optional>
#include <string>

#include "phalanx/v1/admin.grpc.pb.h"
#include "wire/credentials.h"
#include "wire/operation.h"

namespace phalanx::wire {

struct Caller {
  std::optional<Role> role;  // who has proved to be there; none: the connection is in clear
  std::string peer;          // "ipv4:127.0.0.1:4711"
};

template <typename Request, typename Reply>
class AdminCall final : public Operation {
 public:
  // How a call of this kind is asked for at the service.
  using Ask = std::function<void(grpc::ServerContext*, Request*, grpc::ServerAsyncResponseWriter<Reply>*, void* tag)>;
  // The call is over when `finish` is called, once, at once or later; both refer to it until then.
  using Finish = std::function<void(const grpc::Status&)>;
  using Answer = std::function<void(const Caller&, const Request&, Reply&, Finish finish)>;

  // Waits for one call and, when it comes, for the next. Deletes itself; `alive` counts such objects. Must not outlive
  // what `ask` and `answer` refer to.
  static void Start(Ask ask, Answer answer, int* alive) { new AdminCall(std::move(ask), std::move(answer), alive); }

  void Done(bool ok) override {
    if (!ok || answered_) {
      --*alive_;
      delete this;
      return;
    }
    Start(ask_, answer_, alive_);
    answered_ = true;
    answer_({RoleOf(*context_.auth_context()), context_.peer()}, request_, reply_, [this](const grpc::Status& status) {
      if (status.ok()) {
        writer_.Finish(reply_, status, this);
      } else {
        writer_.FinishWithError(status, this);
      }
    });
  }

 private:
  AdminCall(Ask ask, Answer answer, int* alive) : ask_(std::move(ask)), answer_(std::move(answer)), alive_(alive) {
    ++*alive_;
    ask_(&context_, &request_, &writer_, this);
  }

  Ask ask_;
  Answer answer_;
  int* alive_;
  grpc::ServerContext context_;
  grpc::ServerAsyncResponseWriter<Reply> writer_{&context_};
  Request request_;
  Reply reply_;
  bool answered_ = false;
};

}  // namespace phalanx::wire

#include <grpc/support/time.h>
#include <grpcpp/grpcpp.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/check.h"
#include "master/serve/scale_link.h"
#include "phalanx/v1/agent.grpc.pb.h"
#include "wire/operation.h"
#include "wire/test_credentials.h"

namespace phalanx::master {
namespace {

// A call of gRPC. Operations that are on their way keep it: it goes when the last of them has ended.
class Call final : public std::enable_shared_from_this<Call> {
 public:
  Call(std::shared_ptr<grpc::Channel> channel, ScaleSpeaker* speaker)
      : stub_(v1::AgentLink::NewStub(std::move(channel))), speaker_(speaker) {}

  void Start(grpc::CompletionQueue* queue) {
    stream_ = stub_->PrepareAsyncAttach(&context_, queue);
    stream_->StartCall(Tag([this](bool ok) { OnStarted(ok); }));
  }

  void Send(const v1::AgentMessage& message) {
    outgoing_.push_back(message);
    if (is_open_ && outgoing_.size() == 1) Write();
  }

  void Cancel() {
    speaker_ = nullptr;
    context_.TryCancel();
  }

 private:
  class Ended final : public wire::Operation {
   public:
    Ended(std::shared_ptr<Call> call, std::function<void(bool)> then)
        : call_(std::move(call)), then_(std::move(then)) {}
    void Done(bool ok) override {
      const std::unique_ptr<Ended> self(this);
      then_(ok);
    }

   private:
    const std::shared_ptr<Call> call_;
    const std::function<void(bool)> then_;
  };

  void* Tag(std::function<void(bool)> then) {
    return static_cast<wire::Operation*>(new Ended(shared_from_this(), std::move(then)));
  }

  void OnStarted(bool ok) {
    if (!ok) return AskWhy();
    is_open_ = true;
    Read();
    if (speaker_ != nullptr) speaker_->OnOpen();
  }

  void Read() {
    stream_->Read(&incoming_, Tag([this](bool ok) { OnRead(ok); }));
  }
  void OnRead(bool ok) {
    if (!ok) return AskWhy();
    if (speaker_ != nullptr) speaker_->OnMessage(incoming_);
    incoming_.Clear();
    Read();
  }

  void Write() {
    stream_->Write(outgoing_.front(), Tag([this](bool ok) { OnWritten(ok); }));
  }
  void OnWritten(bool ok) {
    outgoing_.pop_front();
    if (ok && !outgoing_.empty()) Write();
  }

  void AskWhy() {
    if (speaker_ != nullptr) stream_->Finish(&status_, Tag([this](bool) { OnFinished(); }));
  }
  void OnFinished() {
    if (ScaleSpeaker* const speaker = std::exchange(speaker_, nullptr)) speaker->OnClosed(status_.error_message());
  }

  grpc::ClientContext context_;
  const std::unique_ptr<v1::AgentLink::Stub> stub_;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::AgentMessage, v1::MasterMessage>> stream_;
  ScaleSpeaker* speaker_;  // null: closed
  bool is_open_ = false;
  v1::MasterMessage incoming_;
  std::deque<v1::AgentMessage> outgoing_;
  grpc::Status status_;
};

class SecuredStream final : public ScaleStream {
 public:
  explicit SecuredStream(std::shared_ptr<Call> call) : call_(std::move(call)) {}
  ~SecuredStream() override { call_->Cancel(); }
  void Send(const v1::AgentMessage& message) override { call_->Send(message); }

 private:
  const std::shared_ptr<Call> call_;
};

class Secured final : public ScaleNetwork {
 public:
  // Made once, before anything is measured.
  Secured(std::string address, const std::string& token)
      : address_(std::move(address)), credentials_(wire::TestCredentials(wire::Role::kAgent, token)) {
    args_.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args_.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
    args_.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args_.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    args_.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    args_.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  }

  ~Secured() override {
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.Next(&tag, &ok)) static_cast<wire::Operation*>(tag)->Done(false);
  }

  std::unique_ptr<ScaleStream> Open(ScaleSpeaker* speaker) override {
    const auto channel = credentials_.Dial(address_, args_);
    PHX_CHECK(channel.ok(), "no channel");
    auto call = std::make_shared<Call>(*channel, speaker);
    call->Start(&queue_);
    return std::make_unique<SecuredStream>(std::move(call));
  }

  void Serve(int64_t wait_ms) override {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, gpr_time_from_millis(wait_ms, GPR_TIMESPAN)) == grpc::CompletionQueue::GOT_EVENT) {
      static_cast<wire::Operation*>(tag)->Done(ok);
    }
  }

 private:
  const std::string address_;
  const wire::Credentials& credentials_;
  grpc::ChannelArguments args_;
  grpc::CompletionQueue queue_;
};

}  // namespace

std::unique_ptr<ScaleNetwork> SecuredNetwork(const std::string& address, const std::string& token) {
  return std::make_unique<Secured>(address, token);
}

}  // namespace phalanx::master

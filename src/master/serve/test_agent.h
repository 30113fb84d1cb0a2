// One agent's end of the conversation, for tests against a real server.
#pragma once

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "master/core/test_hello.h"
#include "phalanx/v1/agent.grpc.pb.h"
#include "wire/node_key.h"
#include "wire/test_credentials.h"

namespace phalanx::master {

class TestAgent {
 public:
  TestAgent(const std::string& address, const std::string& name,
            const wire::Credentials& credentials = wire::TestCredentials(wire::Role::kAgent))
      : name_(name) {
    // A connection of its own, as a node has.
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    channel_ = *credentials.Dial(address, args);
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));  // so that a test ends
    stream_ = v1::AgentLink::NewStub(channel_)->Attach(context_.get());
  }
  TestAgent(TestAgent&&) = delete;
  ~TestAgent() {
    if (stream_) Break();
  }

  v1::AgentMessage HelloMessage(uint32_t nodes = 1) const {
    v1::Hello hello = TestHello(name_, 1, TestSpec(nodes, nodes));
    wire::SetNode(hello, fmt::format("{:>16}", name_));
    hello.mutable_spec()->set_max_restarts(1);
    hello.mutable_spec()->set_last_call_ms(300);
    return FirstMessage(std::move(hello));
  }

  bool Send(v1::AgentMessage message) {
    message.set_sequence(next_sequence_++);
    return stream_->Write(message);
  }
  bool SendRepeat(v1::AgentMessage message, uint64_t sequence) {
    message.set_sequence(sequence);
    return stream_->Write(message);
  }
  void Hello(uint32_t nodes = 1) { Send(HelloMessage(nodes)); }

  void Exited(uint64_t epoch, int exit_code, int signal) {
    v1::AgentMessage message;
    v1::WorkerExited& exited = *message.mutable_worker_exited();
    exited.set_epoch(epoch);
    exited.set_exit_code(exit_code);
    exited.set_signal(signal);
    exited.set_script_started(true);
    exited.set_last_words("bytes that are no UTF-8: \xff\xfe");
    Send(message);
  }

  // The next message; one without a body where the stream is over. Half-closes behind the last, as an agent does.
  v1::MasterMessage Next() {
    v1::MasterMessage message;
    if (!stream_->Read(&message)) message.Clear();
    if ((message.has_finish() || message.has_refused()) && !half_closed_) HalfClose();
    return message;
  }
  // The next one but notices.
  v1::MasterMessage NextDecision() {
    v1::MasterMessage message = Next();
    while (message.has_notice()) message = Next();
    return message;
  }

  void HalfClose() {
    half_closed_ = true;
    stream_->WritesDone();
  }
  // Half-closes, as an agent does that ends, and reads to the end.
  grpc::Status Finish() {
    if (!half_closed_) HalfClose();
    v1::MasterMessage rest;
    while (stream_->Read(&rest)) {
    }
    grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }
  void Break() {
    context_->TryCancel();
    Finish();
  }

 private:
  std::string name_;
  uint64_t next_sequence_ = 1;
  bool half_closed_ = false;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::AgentMessage, v1::MasterMessage>> stream_;
};

}  // namespace phalanx::master

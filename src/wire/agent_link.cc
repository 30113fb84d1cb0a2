#include "wire/agent_link.h"

#include <fmt/format.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <array>
#include <deque>
#include <thread>
#include <utility>

#include "base/grpc_peer.h"
#include "base/thread.h"
#include "phalanx/v1/agent.grpc.pb.h"
#include "wire/grpc_log.h"
#include "wire/limits.h"
#include "wire/link_fault.h"

namespace phalanx::wire {
namespace {

// A master that ends says to some that dial it just then what a closed one says always.
constexpr int kSentAwayForGood = 3;
// Files that are renewed are not so at the same moment on all machines, and a master looks at them each second.
constexpr int64_t kRenewalMs = 5'000;

grpc::ChannelArguments ChannelArgs() {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kHandshakeTimeoutMs);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // the master may have nothing to say for days
  return args;
}

// What gRPC says where the kernel, or its own ping, has waited in vain.
bool IsSilence(const std::string& text) {
  return std::ranges::any_of(std::array{"keepalive watchdog", "timed out", "No route to host", "unreachable"},
                             [&text](const char* part) { return text.find(part) != std::string::npos; });
}

// "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.7:29400: Failed to connect to remote host:
// Connection refused": the end is the kernel's word, and who reads it knows the rest.
std::string KernelsWord(const std::string& text) {
  const size_t colon = text.rfind(": ");
  const bool has_one = text.starts_with("failed to connect to all addresses") && colon != std::string::npos;
  return has_one ? text.substr(colon + 2) : text;
}

}  // namespace

// One stream. It lives until every operation on it has come back, which may be after the link has let go of it.
struct Call {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<v1::AgentMessage, v1::MasterMessage>> stream;
  v1::MasterMessage incoming;
  grpc::Status status;
  std::deque<v1::AgentMessage> outgoing;
  uint64_t next_sequence = 1;
  bool up = false;
  bool writing = false;
  bool closing = false;  // half-close once outgoing is empty
  bool half_closed = false;
  bool finishing = false;  // Finish is under way
};

struct MasterLink::Impl {
  // A completion-queue tag: what to do on the loop's thread.
  using Tag = std::function<void(bool ok)>;

  Impl(EventLoop& l, Credentials c, LinkEvents e) : loop(l), events(std::move(e)), credentials(std::move(c)) {}

  void ServeQueue() {
    void* tag = nullptr;
    bool ok = false;
    while (queue.Next(&tag, &ok)) {
      loop.Post([tag, ok, alive = std::weak_ptr<bool>(alive)] {
        std::unique_ptr<Tag> task(static_cast<Tag*>(tag));
        if (!alive.expired()) (*task)(ok);
      });
    }
  }

  // False where the machine has no room for a thread: told as a dial that came to nothing, and tried again with the
  // next.
  bool StartServing() {
    if (thread.joinable()) return true;
    StatusOr<std::thread> started = StartThread([this] { ServeQueue(); });
    if (started.ok()) {
      thread = *std::move(started);
      return true;
    }
    loop.Post([this, why = started.status(), alive = std::weak_ptr<bool>(alive)] {
      if (!alive.expired()) events.on_down(why, LinkFault::kNone, false);
    });
    return false;
  }

  // Owned by the queue until ServeQueue takes it back; `task` keeps its call alive.
  static Tag* MakeTag(Tag task) { return new Tag(std::move(task)); }

  // By a channel of its own, and with a timer of ours: gRPC's timers, by which a channel that has failed waits before
  // it connects again and gives up what does not answer, stand still for as long as the wall clock was set back.
  void Dial(const std::string& address, int64_t timeout_ms) {
    LetGo();
    if (!StartServing()) return;
    StatusOr<std::shared_ptr<grpc::Channel>> dialled = credentials.Dial(address, ChannelArgs());
    if (!dialled.ok()) {
      return loop.Post([this, why = dialled.status(), alive = std::weak_ptr<bool>(alive)] {
        if (!alive.expired()) events.on_down(why, LinkFault::kNone, false);
      });
    }
    dial_timeout_ms = timeout_ms;
    auto c = std::make_shared<Call>();
    call = c;
    channel = *std::move(dialled);
    stub = v1::AgentLink::NewStub(channel);
    dial_timer = loop.At(MonotonicMs() + timeout_ms, [c] { c->context.TryCancel(); });
    c->stream = stub->PrepareAsyncAttach(&c->context, &queue);
    c->stream->StartCall(MakeTag([this, c](bool ok) {
      if (call == c) loop.Cancel(dial_timer);
      if (!ok) return Finish(c);
      c->up = true;
      Read(c);
      if (events.on_up && call == c && !c->closing) events.on_up(PeerAddress(c->context.peer()));
      Write(c);
    }));
  }

  void LetGo() {
    loop.Cancel(dial_timer);
    if (call) call->context.TryCancel();
    call.reset();
  }

  void Read(const std::shared_ptr<Call>& c) {
    c->stream->Read(&c->incoming, MakeTag([this, c](bool ok) {
      if (!ok) return Finish(c);
      v1::MasterMessage message;
      message.Swap(&c->incoming);
      Read(c);
      if (call == c && !c->closing) events.on_message(std::move(message));
    }));
  }

  void Write(const std::shared_ptr<Call>& c) {
    if (!c->up || c->writing || c->finishing || c->half_closed) return;
    if (c->outgoing.empty()) {
      if (!c->closing) return;
      c->half_closed = true;
      c->stream->WritesDone(MakeTag([c](bool) {}));
      return;
    }
    c->writing = true;
    c->stream->Write(c->outgoing.front(), MakeTag([this, c](bool ok) {
                       c->writing = false;
                       c->outgoing.pop_front();
                       if (ok) Write(c);  // a failed write shows as the end of reading
                     }));
  }

  void Finish(const std::shared_ptr<Call>& c) {
    if (c->finishing) return;
    c->finishing = true;
    c->stream->Finish(&c->status, MakeTag([this, c](bool) { Over(c); }));
  }

  void Over(const std::shared_ptr<Call>& c) {
    if (call != c) return;
    call.reset();
    if (closed) return std::exchange(closed, nullptr)();
    const grpc::Status& s = c->status;
    const bool unanswered = !c->up && s.error_code() == grpc::StatusCode::CANCELLED;
    const std::string text = s.ok()       ? "the master ended the stream"
                             : unanswered ? fmt::format("no answer within {} s", (dial_timeout_ms + 999) / 1'000)
                                          : KernelsWord(s.error_message());
    events.on_down(
        Status(s.ok() ? absl::StatusCode::kUnavailable : static_cast<absl::StatusCode>(s.error_code()), text),
        FaultNow(s, c->up), unanswered || IsSilence(text));
  }

  LinkFault FaultNow(const grpc::Status& status, bool was_up) {
    const LinkFault fault = FaultOf(status, credentials, was_up);
    sent_away = fault == LinkFault::kClosed ? sent_away + 1 : 0;
    if (fault != LinkFault::kNotProved) not_believed_since = kNever;
    if (fault == LinkFault::kClosed) return sent_away >= kSentAwayForGood ? fault : LinkFault::kNone;
    if (fault != LinkFault::kNotProved || !credentials.from_files()) return fault;
    not_believed_since = std::min(not_believed_since, MonotonicMs());
    return MonotonicMs() - not_believed_since >= kRenewalMs ? fault : LinkFault::kNone;
  }

  EventLoop& loop;
  LinkEvents events;
  std::shared_ptr<bool> alive = std::make_shared<bool>(true);
  grpc::CompletionQueue queue;
  const Credentials credentials;
  int64_t dial_timeout_ms = 0;             // of the last dial
  std::shared_ptr<grpc::Channel> channel;  // of the last dial
  std::unique_ptr<v1::AgentLink::Stub> stub;
  std::shared_ptr<Call> call;
  std::function<void()> closed;
  int sent_away = 0;  // in a row
  Instant not_believed_since = kNever;
  EventLoop::TimerId dial_timer{};
  EventLoop::TimerId close_timer{};
  std::thread thread;
};

MasterLink::MasterLink(EventLoop& loop, Credentials credentials, LinkEvents events)
    : impl_(std::make_unique<Impl>(loop, std::move(credentials), std::move(events))) {
  SilenceGrpc();
}

MasterLink::~MasterLink() {
  if (impl_->call) impl_->call->context.TryCancel();
  impl_->loop.Cancel(impl_->dial_timer);
  impl_->loop.Cancel(impl_->close_timer);
  impl_->alive.reset();
  impl_->queue.Shutdown();
  if (impl_->thread.joinable()) impl_->thread.join();
}

void MasterLink::Dial(const std::string& address, int64_t timeout_ms) { impl_->Dial(address, timeout_ms); }

void MasterLink::HangUp() {
  if (impl_->call) impl_->call->context.TryCancel();
}

void MasterLink::Send(v1::AgentMessage message) {
  const std::shared_ptr<Call>& c = impl_->call;
  if (!c || !c->up || c->closing) return;
  message.set_sequence(c->next_sequence++);
  c->outgoing.push_back(std::move(message));
  impl_->Write(c);
}

void MasterLink::Close(int64_t timeout_ms, std::function<void()> done) {
  const std::shared_ptr<Call> c = impl_->call;
  if (!c || !c->up) return done();
  impl_->closed = [this, done = std::move(done)] {
    impl_->loop.Cancel(impl_->close_timer);
    done();
  };
  impl_->close_timer = impl_->loop.At(MonotonicMs() + timeout_ms, [this] {
    if (impl_->closed) std::exchange(impl_->closed, nullptr)();
  });
  c->closing = true;
  impl_->Write(c);
}

}  // namespace phalanx::wire

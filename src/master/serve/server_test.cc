// The real server against real gRPC clients.
#include "master/serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/net.h"
#include "master/journal/journal.h"
#include "master/journal/snapshot.h"
#include "master/record/record.h"
#include "master/serve/test_agent.h"
#include "phalanx/v1/admin.grpc.pb.h"
#include "phalanx/v1/platform.grpc.pb.h"
#include "wire/link_fault.h"

namespace phalanx::master {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class Server {
 public:
  explicit Server(ServerOptions options = DefaultOptions()) {
    auto opened = MasterServer::Open(std::move(options));
    EXPECT_TRUE(opened.ok()) << opened.status();
    server_ = *std::move(opened);
    address_ = JoinHostPort("127.0.0.1", server_->port());
    thread_ = std::thread([this] { code_ = server_->Run(); });
  }
  ~Server() {
    server_->Stop();
    if (thread_.joinable()) thread_.join();
  }

  static ServerOptions DefaultOptions() {
    ServerOptions options;
    options.job_id = "job";
    options.credentials = wire::TestCredentials(wire::Role::kMaster);
    options.linger_ms = 60'000;
    return options;
  }

  static ServerOptions OpenOptions() {
    ServerOptions options = DefaultOptions();
    options.plain_nodes = true;
    return options;
  }

  const std::string& address() const { return address_; }
  uint16_t port() const { return server_->port(); }
  void Stop() { server_->Stop(); }
  // Waits for the end of Run.
  int Code() {
    thread_.join();
    return *code_;
  }

  template <typename Reply, typename Request>
  grpc::Status Ask(const Request& request, Reply* reply,
                   const wire::Credentials& caller = wire::TestCredentials(wire::Role::kViewer)) const {
    const auto stub = v1::Admin::NewStub(*caller.Dial(address_, {}));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    if constexpr (std::is_same_v<Request, v1::StatusRequest>) return stub->Status(&context, request, reply);
    if constexpr (std::is_same_v<Request, v1::EventsRequest>) return stub->Events(&context, request, reply);
    if constexpr (std::is_same_v<Request, v1::LetInRequest>) return stub->LetIn(&context, request, reply);
  }
  // How it is answered.
  grpc::Status ComeAsPlatform(wire::Role role, const std::string& job_id = "job") const {
    const auto stub = v1::PlatformLink::NewStub(*wire::TestCredentials(role).Dial(address_, {}));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    const auto stream = stub->Attach(&context);
    v1::PlatformMessage hello;
    hello.mutable_hello()->set_job_id(job_id);
    stream->Write(hello);
    v1::JobView view;
    while (stream->Read(&view)) stream->WritesDone();
    return stream->Finish();
  }

 private:
  std::unique_ptr<MasterServer> server_;
  std::string address_;
  std::thread thread_;
  std::optional<int> code_;
};

TEST(Server, StartsRestartsAndFinishesAJobOfTwoNodes) {
  Server server;
  TestAgent a(server.address(), "a");
  TestAgent b(server.address(), "b");
  a.Hello(2);
  const v1::Welcome welcome = a.Next().welcome();
  EXPECT_EQ(welcome.job_id(), "job");
  EXPECT_EQ(welcome.lease_ms(), 3'000);
  EXPECT_EQ(welcome.beat_interval_ms(), 1'000);
  EXPECT_THAT(a.Next().notice().text(), HasSubstr("waiting for 1 more node"));
  b.Hello(2);
  EXPECT_TRUE(b.Next().has_welcome());
  const v1::StartRound first = a.Next().start_round();
  const v1::StartRound second = b.Next().start_round();
  EXPECT_EQ(first.epoch(), 1U);
  EXPECT_EQ(first.world_size(), 2U);
  EXPECT_EQ(second.group_rank(), 1U);
  EXPECT_THAT(first.member_addresses(), Contains("127.0.0.1"));

  b.Exited(1, 0, 9);
  const v1::StartRound again = a.Next().start_round();
  EXPECT_EQ(again.epoch(), 2U);
  EXPECT_EQ(again.restart_count(), 1U);
  EXPECT_EQ(again.reason(), "rank 1 died (SIGKILL) on node b, restart 1 of 1");
  EXPECT_EQ(b.Next().start_round().epoch(), 2U);

  a.Exited(2, 3, 0);
  const v1::Finish finish = b.Next().finish();
  EXPECT_EQ(finish.exit_code(), 1);
  EXPECT_EQ(finish.first_cause().exited().exit_code(), 3);
  EXPECT_EQ(finish.first_cause().hostname(), "a");
  EXPECT_THAT(finish.first_cause().exited().last_words(), HasSubstr("\xff\xfe"));
  EXPECT_TRUE(a.Next().has_finish());
  // The master ends the streams behind Finish, and then itself.
  EXPECT_EQ(a.Next().body_case(), v1::MasterMessage::BODY_NOT_SET);
  EXPECT_TRUE(a.Finish().ok());
  EXPECT_TRUE(b.Finish().ok());
  EXPECT_EQ(server.Code(), 1);
}

TEST(Server, RefusesWithASentence) {
  Server server;
  struct Case {
    std::function<void(v1::AgentMessage&)> spoil;
    const char* sentence;
  };
  const Case cases[] = {
      {[](auto& m) { m.mutable_hello()->set_protocol_version(9); }, "protocol version"},
      {[](auto& m) { m.mutable_hello()->set_job_id("other"); }, "serves another job than 'other'"},
      {[](auto& m) { m.mutable_hello()->set_local_world_size(0); }, "0 workers"},
      {[](auto& m) { m.mutable_hello()->set_address("no address\x1b[31m"); }, "'no address?[31m' is not an IP address"},
      {[](auto& m) { m.mutable_hello()->add_interface_addresses("::x"); }, "interface address '::x'"},
      {[](auto& m) { m.mutable_hello()->mutable_spec()->set_min_nodes(0); }, "--nnodes=0:1"},
      {[](auto& m) { m.mutable_hello()->set_node_rank_wanted(1); }, "--node-rank=1"},
      {[](auto& m) { m.mutable_hello()->set_node_id(""); }, "node id"},
      {[](auto& m) { m.mutable_hello()->set_hostname(std::string(300, 'x')); }, "host name of 300 bytes"},
      {[](auto& m) { m.set_next_store_port(0); }, "port 0"},
      {[](auto& m) { m.set_next_store_port(70'000); }, "port 70000"},
      {[](auto& m) { m.mutable_beat(); }, "must be Hello"},
  };
  for (const Case& c : cases) {
    TestAgent agent(server.address(), "a");
    v1::AgentMessage message = agent.HelloMessage();
    c.spoil(message);
    agent.Send(message);
    EXPECT_THAT(agent.Next().refused().sentence(), HasSubstr(c.sentence));
    EXPECT_EQ(agent.Next().body_case(), v1::MasterMessage::BODY_NOT_SET);
  }
  {
    TestAgent agent(server.address(), "a");
    v1::AgentMessage message = agent.HelloMessage();
    message.mutable_hello()->set_protocol_version(9);
    message.mutable_hello()->set_job_id("other");
    agent.Send(message);
    EXPECT_THAT(agent.Next().refused().sentence(), HasSubstr("serves another job than 'other'"))
        << "who does not know the id learns of no version";
  }
  // None of them has become the job's shape.
  TestAgent good(server.address(), "good");
  good.Hello();
  EXPECT_TRUE(good.Next().has_welcome());
  TestAgent other(server.address(), "other");
  other.Hello(2);
  EXPECT_EQ(other.Next().refused().sentence(),
            "--nnodes=2 differs from the job's --nnodes=1: give the same on all nodes");
}

// They are a job of two nodes, whose first round has begun.
void BeginOfTwo(TestAgent& a, TestAgent& b) {
  a.Hello(2);
  b.Hello(2);
  EXPECT_TRUE(a.NextDecision().has_welcome());
  EXPECT_TRUE(a.NextDecision().has_start_round());
}

TEST(Server, ABrokenStreamIsALostNodeAtOnce) {
  Server server;
  TestAgent a(server.address(), "a");
  TestAgent b(server.address(), "b");
  BeginOfTwo(a, b);
  b.Break();
  EXPECT_THAT(a.NextDecision().hold_round().reason(), HasSubstr("node b was lost (its stream broke)"));
  TestAgent c(server.address(), "c");
  c.Hello(2);
  EXPECT_EQ(a.NextDecision().start_round().reason(), "node c joined: all 2 nodes are there");
}

// Its id is known to all nodes, and to whoever calls at its presence_port.
TEST(Server, ANodeComesBackByItsKeyAlone) {
  Server server;
  TestAgent a(server.address(), "a");
  TestAgent b(server.address(), "b");
  BeginOfTwo(a, b);
  for (const char* key : {"another's key of", "", "c"}) {
    TestAgent thief(server.address(), "c");
    v1::AgentMessage message = thief.HelloMessage(2);
    message.mutable_hello()->set_node_id(b.HelloMessage(2).hello().node_id());
    message.mutable_hello()->set_node_key(key);
    thief.Send(message);
    EXPECT_THAT(thief.Next().refused().sentence(), HasSubstr("node key"));
  }
  b.Exited(1, 0, 9);  // its stream is still its own
  EXPECT_THAT(a.NextDecision().start_round().reason(), HasSubstr("died (SIGKILL) on node b, restart 1 of 1"));

  TestAgent again(server.address(), "b");
  again.Hello(2);
  EXPECT_TRUE(again.NextDecision().has_welcome());
}

// Whoever reaches an open master could send its nodes anywhere.
TEST(Server, WhereAnotherMasterIsOnlyNodesOfAnOpenJobMayTell) {
  ServerOptions options = Server::OpenOptions();
  options.succession = true;
  Server server(std::move(options));
  const wire::Credentials nothing;
  TestAgent a(server.address(), "a", nothing);
  TestAgent b(server.address(), "b", nothing);
  BeginOfTwo(a, b);
  const auto herald = [](const TestAgent& agent) {
    v1::AgentMessage message = agent.HelloMessage(2);
    message.mutable_hello()->set_only_tells(true);
    message.mutable_hello()->set_term(7);
    message.mutable_hello()->mutable_master()->set_address("10.9.9.9");
    message.mutable_hello()->mutable_master()->set_port(4711);
    return message;
  };
  TestAgent stranger(server.address(), "c", nothing);
  stranger.Send(herald(stranger));
  EXPECT_THAT(stranger.Next().refused().sentence(), HasSubstr("only a node of this job"));
  v1::EventsReply events;
  ASSERT_TRUE(server.Ask(v1::EventsRequest(), &events).ok());
  const auto is_doubt = [](const v1::EventRecord& event) { return event.kind() == "master-doubted"; };
  EXPECT_EQ(std::ranges::count_if(events.events(), is_doubt), 1) << "but this master waits for who was found ended";
  b.Exited(1, 0, 9);
  EXPECT_EQ(a.NextDecision().start_round().epoch(), 2U) << "it goes on deciding";

  TestAgent again(server.address(), "b", nothing);
  again.Send(herald(again));
  v1::MasterMessage told = a.NextDecision();
  EXPECT_EQ(told.refused().moved_to().address(), "10.9.9.9") << told.ShortDebugString();

  // Nor by coming as a node, now that this master sends all on.
  v1::AgentMessage lie = herald(stranger);
  lie.mutable_hello()->set_only_tells(false);
  lie.mutable_hello()->set_term(1'000);
  lie.mutable_hello()->mutable_master()->set_address("10.6.6.6");
  TestAgent liar(server.address(), "c", nothing);
  liar.Send(lie);
  EXPECT_EQ(liar.NextDecision().refused().moved_to().address(), "10.9.9.9");
  TestAgent late(server.address(), "d", nothing);
  late.Hello();
  told = late.NextDecision();
  EXPECT_EQ(told.refused().moved_to().address(), "10.9.9.9") << told.ShortDebugString();
}

// One order a directory comes of one report, before any of them is written.
TEST(Server, AsManyDirectoriesAsThereMayBeBreakNoStream) {
  Server server;
  TestAgent a(server.address(), "a");
  a.Hello();
  const uint64_t epoch = [&a] {
    v1::MasterMessage message = a.NextDecision();
    while (message.has_welcome()) message = a.NextDecision();
    return message.start_round().epoch();
  }();
  v1::AgentMessage report;
  report.mutable_checkpoint()->set_epoch(epoch);
  for (size_t i = 0; i < kMaxCheckpointDirs; ++i) {
    v1::HeldSave& save = *report.mutable_checkpoint()->mutable_held()->add_saves();
    save.set_dir("/data/" + std::to_string(i));
    save.mutable_save()->set_step(10);
    save.set_world_size(1);
    save.add_ranks(0);
  }
  a.Send(report);
  std::set<std::string> committed;
  while (committed.size() < kMaxCheckpointDirs) {
    const v1::MasterMessage message = a.NextDecision();
    ASSERT_TRUE(message.checkpoint().has_committed()) << "after " << committed.size() << " directories";
    committed.insert(message.checkpoint().dir());
  }
}

TEST(Server, ASilentAgentIsCancelledAfterItsLease) {
  Server server;
  TestAgent a(server.address(), "a");
  const auto begin = std::chrono::steady_clock::now();  // the lease begins with its Hello
  a.Hello(2);                                           // of two: the only node of a job is not given up
  EXPECT_TRUE(a.NextDecision().has_welcome());
  EXPECT_EQ(a.NextDecision().body_case(), v1::MasterMessage::BODY_NOT_SET);
  const auto silent = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(silent, std::chrono::milliseconds(2'900));
  EXPECT_EQ(a.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

Fd ConnectTo(uint16_t port) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to), 0);
  return fd;
}

// An agent hears nothing for hours while its job trains, and pings all the time.
TEST(Server, PingsAreNoAttack) {
  Server server(Server::OpenOptions());
  const Fd fd = ConnectTo(server.port());
  // HTTP/2 as on the wire: a frame has its length, type (4: settings, 6: ping, 7: the peer wants to end) and flags.
  const auto frame = [](char type, size_t length) {
    return std::string{0, 0, static_cast<char>(length), type, 0, 0, 0, 0, 0} + std::string(length, 'x');
  };
  std::string out = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0);
  constexpr int kPings = 20;
  const auto receive = [&fd](size_t length) {
    std::string bytes(length, '\0');
    const bool whole = length == 0 || recv(fd.get(), bytes.data(), length, MSG_WAITALL) == static_cast<ssize_t>(length);
    return whole ? bytes : std::string();
  };
  for (int answered = 0, sent = 0; answered < kPings;) {
    if (sent == answered) {  // each when the last is answered
      out += frame(6, 8);
      ASSERT_EQ(send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL), static_cast<ssize_t>(out.size()));
      out.clear();
      ++sent;
    }
    const std::string head = receive(9);
    ASSERT_EQ(head.size(), 9U) << "the connection was closed behind " << answered << " pings";
    ASSERT_NE(head[3], 7) << "the server ends the connection behind " << answered << " pings";
    if (head[3] == 6) ++answered;
    const auto byte = [&head](size_t at) { return static_cast<size_t>(static_cast<unsigned char>(head[at])); };
    const size_t length = byte(0) << 16 | byte(1) << 8 | byte(2);
    ASSERT_EQ(receive(length).size(), length);
  }
}

// Whoever holds such connections holds files and memory of the master.
TEST(Server, AConnectionWithoutACallIsClosed) {
  ServerOptions options = Server::DefaultOptions();
  options.idle_ms = 300;
  Server server(options);
  TestAgent agent(server.address(), "a");
  agent.Hello(2);
  EXPECT_TRUE(agent.NextDecision().has_welcome());
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  const std::string settings{0, 0, 0, 4, 0, 0, 0, 0, 0};
  for (const std::string& said : {preface, preface + settings}) {
    const Fd fd = ConnectTo(server.port());
    ASSERT_EQ(send(fd.get(), said.data(), said.size(), MSG_NOSIGNAL), static_cast<ssize_t>(said.size()));
    const timeval patience{15, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char bytes[256];
    ssize_t n = 1;
    while (n > 0) n = recv(fd.get(), bytes, sizeof bytes, 0);
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << "it is still open";
  }
  TestAgent second(server.address(), "b");
  second.Hello(2);
  EXPECT_TRUE(agent.NextDecision().has_start_round()) << "a stream on which nothing is said is none of them";
}

TEST(Server, ARepeatedMessageChangesNothing) {
  Server server;
  TestAgent a(server.address(), "a");
  a.Hello();
  EXPECT_TRUE(a.NextDecision().has_welcome());
  EXPECT_EQ(a.NextDecision().start_round().epoch(), 1U);
  v1::AgentMessage died;
  died.mutable_worker_exited()->set_epoch(1);
  died.mutable_worker_exited()->set_signal(9);
  a.SendRepeat(died, 5);
  EXPECT_EQ(a.NextDecision().start_round().epoch(), 2U);
  died.mutable_worker_exited()->set_epoch(2);
  a.SendRepeat(died, 5);
  a.SendRepeat(died, 4);
  v1::AgentMessage well;
  well.mutable_worker_exited()->set_epoch(2);
  a.SendRepeat(well, 6);
  EXPECT_EQ(a.NextDecision().finish().exit_code(), 0);
}

TEST(Server, ALeavingNodeEndsItsStreamItself) {
  Server server;
  TestAgent a(server.address(), "a");
  a.Hello();
  EXPECT_TRUE(a.NextDecision().has_welcome());
  EXPECT_TRUE(a.NextDecision().has_start_round());
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_signal(15);
  a.Send(leaving);
  a.HalfClose();
  EXPECT_TRUE(a.Finish().ok());
  EXPECT_EQ(server.Code(), 143);
}

TEST(Server, AMessageThatIsTooLargeBreaksItsStreamAlone) {
  Server server;
  TestAgent a(server.address(), "a");
  TestAgent b(server.address(), "b");
  a.Hello(2);
  EXPECT_TRUE(a.Next().has_welcome());
  v1::AgentMessage huge = b.HelloMessage(2);
  huge.mutable_hello()->set_role(std::string(2 << 20, 'x'));
  b.Send(huge);
  EXPECT_EQ(b.Next().body_case(), v1::MasterMessage::BODY_NOT_SET);
  TestAgent c(server.address(), "c");
  c.Hello(2);
  EXPECT_TRUE(a.NextDecision().has_start_round());
}

// What gRPC tells who dials so and says Hello; with a sentence of the master's where it has one.
std::string Knock(const Server& server, const wire::Credentials& credentials, wire::LinkFault* fault) {
  TestAgent agent(server.address(), "a", credentials);
  agent.Hello();
  const v1::MasterMessage answer = agent.Next();
  if (answer.has_refused()) return answer.refused().sentence();
  if (answer.has_welcome()) return "welcome";
  const grpc::Status status = agent.Finish();
  *fault = wire::FaultOf(status);
  return "";
}

TEST(Server, TakesOnlyNodesThatProveThatTheyBelongToTheJob) {
  Server server;
  wire::LinkFault fault = wire::LinkFault::kNone;
  EXPECT_EQ(Knock(server, wire::TestCredentials(wire::Role::kAgent, "secreT"), &fault), "");
  EXPECT_EQ(fault, wire::LinkFault::kNotProved);
  EXPECT_EQ(Knock(server, wire::Credentials(), &fault), "");
  EXPECT_EQ(fault, wire::LinkFault::kClosed);
  EXPECT_THAT(Knock(server, wire::TestCredentials(wire::Role::kViewer), &fault),
              HasSubstr("a certificate of the role viewer: it may not join as a node"));
  EXPECT_EQ(Knock(server, wire::TestCredentials(wire::Role::kMaster), &fault), "");
  EXPECT_EQ(Knock(server, wire::TestCredentials(wire::Role::kAgent), &fault), "welcome");
}

TEST(Server, OfAnOpenJobNodesComeInClearAndLearnNothingElse) {
  Server server(Server::OpenOptions());
  wire::LinkFault fault = wire::LinkFault::kNone;
  EXPECT_EQ(Knock(server, wire::Credentials(), &fault), "welcome");
  EXPECT_EQ(Knock(server, wire::TestCredentials(wire::Role::kAgent), &fault), "welcome");
  EXPECT_EQ(Knock(server, wire::TestCredentials(wire::Role::kAgent, "secreT"), &fault), "");
  EXPECT_EQ(fault, wire::LinkFault::kNotProved);
  v1::StatusReply status;
  v1::EventsReply events;
  const wire::Credentials nothing;
  EXPECT_EQ(server.Ask(v1::StatusRequest(), &status, nothing).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(server.Ask(v1::EventsRequest(), &events, nothing).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_TRUE(server.Ask(v1::StatusRequest(), &status).ok());
  v1::StatusRequest of_another;
  of_another.set_job_id("another");
  const grpc::Status denied = server.Ask(of_another, &status);
  EXPECT_EQ(denied.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(denied.error_message(), "this master serves another job than the one that was asked for");
}

// Behind the endpoint, which has let them in: who asks what it may not, and who would be the job's platform.
TEST(Server, CountsWhomItTurnsAwayAtEachDoor) {
  Server server;
  v1::StatusRequest of_another;
  of_another.set_job_id("another");
  v1::StatusRequest fresh;
  fresh.set_check(true);  // no reply that is kept for a while
  v1::StatusReply status;
  v1::LetInReply let_in;
  EXPECT_FALSE(server.Ask(of_another, &status).ok());
  EXPECT_FALSE(server.Ask(v1::LetInRequest(), &let_in).ok()) << "it is a viewer";
  ASSERT_TRUE(server.Ask(fresh, &status).ok());
  EXPECT_EQ(status.refused_admin(), 2U);
  EXPECT_EQ(status.refused_callers(), 2U);
  EXPECT_THAT(status.last_refused(), HasSubstr("asked of the job, and was refused: the certificate's role is viewer"));

  EXPECT_EQ(server.ComeAsPlatform(wire::Role::kAgent).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(server.ComeAsPlatform(wire::Role::kPlatform, "another").error_code(), grpc::StatusCode::NOT_FOUND);
  ASSERT_TRUE(server.Ask(fresh, &status).ok());
  EXPECT_EQ(status.refused_platform(), 2U);
  EXPECT_EQ(status.refused_admin(), 2U);
  EXPECT_EQ(status.refused_callers(), 4U);
  EXPECT_THAT(status.last_refused(), HasSubstr("would be the job's platform, and was refused: this master serves"));
}

TEST(Server, TellsStatusAndEventsToWhoHasTheToken) {
  Server server;
  TestAgent a(server.address(), "a");
  a.Hello();
  EXPECT_TRUE(a.NextDecision().has_welcome());
  EXPECT_TRUE(a.NextDecision().has_start_round());
  v1::StatusRequest request;
  v1::StatusReply reply;
  const wire::Credentials& others = wire::TestCredentials(wire::Role::kViewer, "secreT");
  EXPECT_EQ(wire::FaultOf(server.Ask(request, &reply, others)), wire::LinkFault::kNotProved);
  request.set_job_id("other");
  EXPECT_EQ(server.Ask(request, &reply).error_code(), grpc::StatusCode::NOT_FOUND);
  request.set_job_id("job");
  ASSERT_TRUE(server.Ask(request, &reply).ok());
  EXPECT_EQ(reply.phase(), "running");
  EXPECT_EQ(reply.epoch(), 1U);
  EXPECT_EQ(reply.world_size(), 1U);
  EXPECT_EQ(reply.restarts_left(), 1U);
  EXPECT_EQ(reply.nodes(0).state(), "member");
  EXPECT_EQ(reply.nodes(0).hostname(), "a");

  v1::EventsRequest events;
  v1::EventsReply told;
  ASSERT_TRUE(server.Ask(events, &told).ok());
  ASSERT_EQ(told.events_size(), 3);
  EXPECT_EQ(told.events(2).kind(), "round-started");
  EXPECT_EQ(told.events(2).reason(), "the job's node is there");
  events.set_after_id(2);
  ASSERT_TRUE(server.Ask(events, &told).ok());
  EXPECT_EQ(told.events_size(), 1);
  EXPECT_GE(told.events(0).unix_ms(), reply.started_unix_ms());
  EXPECT_LE(told.events(0).unix_ms(), reply.now_unix_ms());
}

std::vector<v1::EventRecord> AllEvents(const Server& server) {
  std::vector<v1::EventRecord> rows;
  v1::EventsRequest request;
  v1::EventsReply reply;
  while (true) {
    EXPECT_TRUE(server.Ask(request, &reply).ok());
    if (reply.events().empty()) return rows;
    rows.insert(rows.end(), reply.events().begin(), reply.events().end());
    request.set_after_id(rows.back().id());
  }
}

TEST(Server, RemembersTheCauseOfARestartBehindAFloodOfRows) {
  Server server;
  TestAgent a(server.address(), "a");
  v1::AgentMessage hello = a.HelloMessage();
  hello.mutable_hello()->mutable_spec()->set_max_restarts(3);
  a.Send(hello);
  EXPECT_TRUE(a.NextDecision().has_welcome());
  EXPECT_EQ(a.NextDecision().start_round().epoch(), 1U);
  a.Exited(1, 0, 9);
  EXPECT_EQ(a.NextDecision().start_round().epoch(), 2U);
  constexpr int kFlood = 10'000;
  for (int i = 0; i < kFlood; ++i) a.Exited(99, 0, 9);  // of a round that never was: a row each
  a.Exited(2, 0, 9);
  EXPECT_EQ(a.NextDecision().start_round().epoch(), 3U);

  const std::vector<v1::EventRecord> rows = AllEvents(server);
  const auto is = [](const char* kind, uint64_t epoch) {
    return [kind, epoch](const v1::EventRecord& row) { return row.kind() == kind && row.epoch() == epoch; };
  };
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), is("worker-exited", 1)));
  EXPECT_TRUE(std::any_of(rows.begin(), rows.end(), is("round-started", 2)));
  EXPECT_TRUE(is("round-started", 3)(rows.back()));
  EXPECT_LT(rows.size(), static_cast<size_t>(kFlood)) << "a bounded part is remembered";
  EXPECT_TRUE(std::is_sorted(rows.begin(), rows.end(), [](const auto& x, const auto& y) { return x.id() < y.id(); }));
}

TEST(Server, FailsWhereThePortIsTaken) {
  Server server;
  ServerOptions options = Server::DefaultOptions();
  options.port = server.port();
  const auto second = MasterServer::Open(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("in use"));
  options.hosts = {"192.0.2.1"};
  EXPECT_FALSE(MasterServer::Open(options).ok());
  options.hosts = {"nonsense"};
  EXPECT_FALSE(MasterServer::Open(options).ok());
}

TEST(Server, ListensOnTheAddressesAskedForOnly) {
  ServerOptions options = Server::DefaultOptions();
  options.hosts = {"127.0.0.1", "127.0.0.3"};
  Server server(options);
  for (const char* host : {"127.0.0.1", "127.0.0.3"}) {
    TestAgent agent(JoinHostPort(host, server.port()), host);
    agent.Hello();
    EXPECT_TRUE(agent.Next().has_welcome()) << host;
  }
  TestAgent elsewhere(JoinHostPort("127.0.0.2", server.port()), "x");
  elsewhere.Hello();
  EXPECT_EQ(elsewhere.Next().body_case(), v1::MasterMessage::BODY_NOT_SET);
}

TEST(Server, EndsWhenItsLastAgentHasGone) {
  ServerOptions options = Server::DefaultOptions();
  options.linger_ms = 0;
  Server server(options);
  {
    TestAgent a(server.address(), "a");
    a.Hello();
    EXPECT_TRUE(a.NextDecision().has_welcome());
    a.Break();
  }
  EXPECT_EQ(server.Code(), 1);
}

TEST(Server, StopsWithOpenStreams) {
  Server server;
  TestAgent a(server.address(), "a");
  a.Hello();
  EXPECT_TRUE(a.NextDecision().has_welcome());
  server.Stop();
  EXPECT_EQ(server.Code(), kStoppedExit);
  EXPECT_FALSE(a.Finish().ok());
}

TEST(Server, KeepsARecordThatOutlivesIt) {
  const std::string folder = fmt::format("{}phalanx-server-test-{}", ::testing::TempDir(), getpid());
  std::filesystem::create_directories(folder);
  ServerOptions options = Server::DefaultOptions();
  options.state_dir = folder;
  {
    Server server(options);
    TestAgent a(server.address(), "a");
    a.Hello();
    EXPECT_TRUE(a.NextDecision().has_welcome());
    EXPECT_TRUE(a.NextDecision().has_start_round());
    a.Exited(1, 0, 0);
    EXPECT_EQ(a.NextDecision().finish().exit_code(), 0);
    EXPECT_TRUE(a.Finish().ok());
    EXPECT_EQ(server.Code(), 0);
  }
  auto reader = RecordReader::Open(fmt::format("{}/events.db", folder));
  ASSERT_TRUE(reader.ok()) << reader.status();
  // A busy disk may hold its writer up for longer than its end waits.
  const Instant end = MonotonicMs() + 60'000;
  auto run = reader->LastRun("job");
  while (run.ok() && *run && (*run)->ended_unix_ms == 0 && MonotonicMs() < end) run = reader->LastRun("job");
  ASSERT_TRUE(run.ok() && run->has_value());
  EXPECT_GT((*run)->ended_unix_ms, 0);
  const auto rows = reader->Rows((*run)->run, 0, 100);
  std::vector<std::string> kinds;
  for (const RecordRow& row : *rows) kinds.push_back(row.kind);
  EXPECT_THAT(kinds, ::testing::ElementsAre("master-started", "node-joined", "round-started", "worker-exited",
                                            "job-finished", "node-gone", "master-stopped"));
  EXPECT_THAT(rows->at(3).detail_json, HasSubstr("no UTF-8"));
  std::filesystem::remove_all(folder);
}

// A master with flags of its own takes a job up that no node had come to.
TEST(Server, ItsFlagsCountWhereTheJournalKnowsNoSize) {
  const std::string folder = fmt::format("{}phalanx-server-resume-test-{}", ::testing::TempDir(), getpid());
  std::filesystem::create_directories(folder);
  JobState nobody_came;
  nobody_came.job_id = "job";
  std::ofstream(folder + "/journal") << WrapJournal(SaveState(nobody_came, MonotonicMs()));
  ServerOptions options = Server::DefaultOptions();
  options.state_dir = folder;
  options.resume = true;
  options.spec = DefaultSpec();
  {
    Server server(options);
    TestAgent two(server.address(), "two");
    two.Hello(2);
    EXPECT_EQ(two.Next().refused().sentence(),
              "--nnodes=2 differs from the job's --nnodes=1: give the same on all nodes");
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace phalanx::master

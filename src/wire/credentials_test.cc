// Handshakes of the real gRPC, both ends.
#include "wire/credentials.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/test_folder.h"
#include "phalanx/v1/admin.grpc.pb.h"
#include "wire/grpc_log.h"
#include "wire/link_fault.h"
#include "wire/test_credentials.h"

namespace phalanx::wire {
namespace {

using ::testing::HasSubstr;

// Says who has called, as the phase of the job.
class Doorman final : public v1::Admin::Service {
 public:
  explicit Doorman(const Credentials& credentials, std::function<void(const std::string&)> on_warning = {}) {
    SilenceGrpc();
    grpc::ServerBuilder builder;
    credentials_ = credentials.ForServer(std::move(on_warning));
    builder.AddListeningPort("127.0.0.1:0", credentials_, &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~Doorman() override { server_->Shutdown(); }

  // The role's name; "in clear"; or what gRPC says.
  std::string Ask(const Credentials& caller) const {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto channel = caller.Dial("127.0.0.1:" + std::to_string(port_), args);
    if (!channel.ok()) return Message(channel.status());
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    v1::StatusReply reply;
    const grpc::Status status = v1::Admin::NewStub(*channel)->Status(&context, v1::StatusRequest(), &reply);
    if (status.ok()) return reply.phase();
    return FaultOf(status) == LinkFault::kNotProved ? "not proved" : status.error_message();
  }

 private:
  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest*, v1::StatusReply* reply) override {
    const std::optional<Role> role = RoleOf(*context->auth_context());
    reply->set_phase(role ? std::string(NameOf(*role)) : "in clear");
    return grpc::Status::OK;
  }

  int port_ = 0;
  std::shared_ptr<grpc::ServerCredentials> credentials_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(Credentials, ProgramsOfOneTokenBelieveEachOther) {
  const Doorman master(TestCredentials(Role::kMaster));
  EXPECT_EQ(master.Ask(TestCredentials(Role::kAgent)), "agent");
  EXPECT_EQ(master.Ask(TestCredentials(Role::kViewer)), "viewer");
  const StatusOr<Credentials> later = Credentials::FromToken("secret", Role::kAgent);
  ASSERT_TRUE(later.ok());
  EXPECT_EQ(master.Ask(*later), "agent");
}

TEST(Credentials, OfAnotherTokenTheyDoNot) {
  const Doorman master(TestCredentials(Role::kMaster));
  EXPECT_EQ(master.Ask(TestCredentials(Role::kAgent, "secreT")), "not proved");
  EXPECT_EQ(master.Ask(TestCredentials(Role::kAgent, "")), "not proved");
  EXPECT_NE(master.Ask(Credentials()), "in clear");
}

// Who has the token might play the master's part; who has a viewer's certificate alone must not.
TEST(Credentials, OnlyAMastersCertificateServes) {
  const Doorman viewer(TestCredentials(Role::kViewer));
  EXPECT_EQ(viewer.Ask(TestCredentials(Role::kAgent)), "not proved");
}

TEST(Credentials, NoneMeansInClear) {
  const Doorman master((Credentials()));
  EXPECT_EQ(master.Ask(Credentials()), "in clear");
  EXPECT_FALSE(Credentials().given());
}

class CredentialFilesTest : public ::testing::Test {
 protected:
  TlsFiles Files(const std::string& who) const {
    return {folder_ / (who + ".crt"), folder_ / (who + ".key"), folder_ / "ca.crt"};
  }
  void Issue(const std::string& token, const std::string& who, Role role) const {
    const StatusOr<Identity> made = MakeIdentity(token, role);
    ASSERT_TRUE(made.ok()) << made.status();
    folder_.Write(who + ".crt", made->certificate);
    folder_.Write(who + ".key", made->key);
    folder_.Write("ca.crt", made->authority);
  }
  StatusOr<Credentials> Of(const std::string& who) const { return Credentials::FromFiles(Files(who), Side::kCaller); }

  TestFolder folder_;
};

TEST_F(CredentialFilesTest, CertificatesOfATokenMayLieInFiles) {
  Issue("authority", "agent", Role::kAgent);
  Issue("authority", "master", Role::kMaster);
  const StatusOr<Credentials> agent = Of("agent");
  const StatusOr<Credentials> serving = Credentials::FromFiles(Files("master"), Side::kMaster);
  ASSERT_TRUE(agent.ok() && serving.ok());
  EXPECT_TRUE(agent->from_files());
  const Doorman master(*serving);
  EXPECT_EQ(master.Ask(*agent), "agent");
  EXPECT_EQ(master.Ask(TestCredentials(Role::kAgent)), "not proved");
  EXPECT_EQ(Doorman(TestCredentials(Role::kMaster, "authority")).Ask(*agent), "agent");
}

// Renewed on both sides, by another authority even, while the master serves.
TEST_F(CredentialFilesTest, RenewedFilesCountWithoutARestart) {
  Issue("authority", "agent", Role::kAgent);
  Issue("authority", "master", Role::kMaster);
  const StatusOr<Credentials> agent = Of("agent");
  const StatusOr<Credentials> serving = Credentials::FromFiles(Files("master"), Side::kMaster);
  ASSERT_TRUE(agent.ok() && serving.ok());
  const Doorman master(*serving);
  ASSERT_EQ(master.Ask(*agent), "agent");
  Issue("next authority", "agent", Role::kAgent);
  Issue("next authority", "master", Role::kMaster);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  std::string answer = "not proved";
  while (answer == "not proved" && std::chrono::steady_clock::now() < until) answer = master.Ask(*agent);
  EXPECT_EQ(answer, "agent");
}

// Two files are not replaced at the same moment; a half-done renewal must shut nobody out.
TEST_F(CredentialFilesTest, FilesThatDoNotFitAreToldAndTheOldOnesCount) {
  Issue("authority", "agent", Role::kAgent);
  Issue("authority", "master", Role::kMaster);
  const StatusOr<Credentials> agent = Of("agent");
  const StatusOr<Credentials> serving = Credentials::FromFiles(Files("master"), Side::kMaster);
  ASSERT_TRUE(agent.ok() && serving.ok());
  std::mutex mutex;
  std::vector<std::string> warnings;
  const Doorman master(*serving, [&](const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex);
    warnings.push_back(text);
  });
  ASSERT_EQ(master.Ask(*agent), "agent");
  const std::string old = folder_.Read("master.crt");
  folder_.Write("master.crt", folder_.Read("agent.crt"));
  EXPECT_EQ(master.Ask(*agent), "agent");
  EXPECT_EQ(master.Ask(*agent), "agent");
  folder_.Write("master.crt", "nothing of use");
  EXPECT_EQ(master.Ask(*agent), "agent");
  folder_.Write("master.crt", old);
  EXPECT_EQ(master.Ask(*agent), "agent");
  const std::lock_guard<std::mutex> lock(mutex);
  ASSERT_EQ(warnings.size(), 2U);
  EXPECT_THAT(warnings[0], HasSubstr("master.key: not the private key of the certificate in"));
  EXPECT_THAT(warnings[1], HasSubstr("master.crt: no PEM certificate; what was there before goes on to count"));
}

TEST_F(CredentialFilesTest, WhatCannotBeUsedIsNamed) {
  Issue("authority", "agent", Role::kAgent);
  Issue("authority", "other", Role::kAgent);
  EXPECT_THAT(Message(Of("nobody").status()), HasSubstr("nobody.crt: open: No such file"));
  TlsFiles files = Files("agent");
  files.key = Files("other").key;
  EXPECT_THAT(Message(Credentials::FromFiles(files, Side::kCaller).status()),
              HasSubstr("other.key: not the private key"));
  files.key = files.certificate;
  EXPECT_THAT(Message(Credentials::FromFiles(files, Side::kCaller).status()),
              HasSubstr("agent.crt: no PEM private key"));
  EXPECT_THAT(
      Message(Credentials::FromFiles(Files("agent"), Side::kMaster).status()),
      HasSubstr("agent.crt: the certificate is not for a TLS server (its extended key usage lacks serverAuth)"));
  files = Files("agent");
  files.authority = files.key;
  EXPECT_THAT(Message(Credentials::FromFiles(files, Side::kCaller).status()),
              HasSubstr("agent.key: no PEM certificate"));
}

TEST(Roles, ATypoGivesNoRights) {
  EXPECT_EQ(RoleOfUri("phalanx:role/viewer"), Role::kViewer);
  EXPECT_EQ(RoleOfUri("phalanx:role/operator"), Role::kOperator);
  EXPECT_EQ(RoleOfUri("phalanx:role/viewr"), Role::kUnknown);
  EXPECT_EQ(RoleOfUri("phalanx:role/"), Role::kUnknown);
  EXPECT_EQ(RoleOfUri("spiffe://site/phalanx"), std::nullopt);
}

}  // namespace
}  // namespace phalanx::wire

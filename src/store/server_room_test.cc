// What the server does where no more connections find room.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "store/test_client.h"

namespace phalanx::store {
namespace {

TEST(StoreRoomTest, TooManyConnectionsAreRefused) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.max_connections = 2;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  std::optional<Client> a(*server);
  Client b(*server);
  EXPECT_TRUE(a->Alive() && b.Alive());
  EXPECT_TRUE(Client(*server).Closed());
  EXPECT_NE(refusals->last().find("2 connections are open, all that it may have"), std::string::npos);
  EXPECT_TRUE(a->Alive() && b.Alive());
  EXPECT_EQ(server->stats().refused_peers, 1u);
  a.reset();
  EXPECT_TRUE(b.Alive());  // served after the close of a was
  Client c(*server);
  EXPECT_TRUE(c.Alive());
}

// How many of `count` clients, all connected at the same time, are not answered.
int Unanswered(uint16_t port, int count) {
  std::vector<Client> clients;
  for (int i = 0; i < count; ++i) clients.emplace_back("127.0.0.1", port).Send(Hello());
  return static_cast<int>(std::count_if(clients.begin(), clients.end(), [](Client& c) { return !c.Alive(); }));
}

TEST(StoreRoomTest, MoreClientsThanTheLimitOfOpenFilesRaiseIt) {
  constexpr int kClients = 600;
  constexpr rlim_t kFiles = 64;
  ListenSocket socket = MustReserve();
  const uint16_t port = socket.port();
  const pid_t clients = fork();  // in a process of their own: their descriptors do not count here
  if (clients == 0) _exit(Unanswered(port, kClients) == 0 ? 0 : 1);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{kFiles, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  int status = -1;
  {
    const auto server = MustOpen({}, std::move(socket));
    EXPECT_EQ(waitpid(clients, &status, 0), clients);
    EXPECT_EQ(server->stats().accept_errors, 0u);
  }
  rlimit raised{};
  getrlimit(RLIMIT_NOFILE, &raised);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(status, 0) << "some were not answered";
  EXPECT_GE(raised.rlim_cur, static_cast<rlim_t>(kClients));
  EXPECT_LT(raised.rlim_cur, 2'048u) << "raised further than so many clients need";
}

// The next descriptor is the last that a limit of this many lets the process have.
rlim_t FilesUpToTheNext(const Client& client) {
  const int next_fd = dup(client.fd());
  close(next_fd);
  return static_cast<rlim_t>(next_fd) + 1;
}

TEST(StoreRoomTest, AProcessWithManyFilesOfItsOwnHasItsLimitRaised) {
  const auto server = MustOpen();
  Client good(*server);
  EXPECT_TRUE(good.Alive());
  // The server reckons with room for hundreds, and the client's socket takes the last descriptor.
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{FilesUpToTheNext(good), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  {
    Client more(*server);
    EXPECT_TRUE(more.Alive());
  }
  EXPECT_EQ(server->stats().accept_errors, 0u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

void RunOutOfDescriptors() {
  const auto server = MustOpen();
  Client good(*server);
  EXPECT_TRUE(good.Alive());
  std::optional<Client> leaving(*server);
  EXPECT_TRUE(leaving->Alive());
  // The client's socket takes the last descriptor, so that there is none to accept it with.
  const rlim_t files = FilesUpToTheNext(good);
  const rlimit tight{files, files};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  {
    Client refused("127.0.0.1", server->port());
    EXPECT_TRUE(refused.Closed()) << "told, not left in silence";
  }
  EXPECT_GE(server->stats().accept_errors, 1u);
  EXPECT_LT(server->stats().accept_errors, 20u);
  EXPECT_TRUE(good.Alive());
  leaving.reset();
  EXPECT_TRUE(good.Alive());  // served after the close was
  Client later(*server);
  EXPECT_TRUE(later.Alive());
}

TEST(StoreRoomTest, RunningOutOfDescriptorsNeitherSpinsNorStalls) {
  const pid_t child = fork();  // a hard limit that was lowered stays so
  if (child == 0) {
    RunOutOfDescriptors();
    _exit(HasFailure() ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace phalanx::store

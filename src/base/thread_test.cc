#include "base/thread.h"

#include <gtest/gtest.h>
#include <signal.h>

#include "base/test_threads.h"

namespace phalanx {
namespace {

TEST(StartThreadTest, RunsWithAllSignalsBlocked) {
  sigset_t mask;
  sigemptyset(&mask);
  StatusOr<std::thread> thread = StartThread([&mask] { pthread_sigmask(SIG_SETMASK, nullptr, &mask); });
  ASSERT_TRUE(thread.ok());
  thread->join();
  EXPECT_EQ(sigismember(&mask, SIGTERM), 1);
  sigset_t ours;
  pthread_sigmask(SIG_SETMASK, nullptr, &ours);
  EXPECT_EQ(sigismember(&ours, SIGTERM), 0);
}

TEST(StartThreadTest, SaysThatThereIsNoRoomForOne) {
  bool ran = false;
  {
    const NoThreads full;
    const StatusOr<std::thread> thread = StartThread([&ran] { ran = true; });
    ASSERT_FALSE(thread.ok());
    EXPECT_NE(Message(thread.status()).find("no thread could be started"), std::string::npos) << thread.status();
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace phalanx

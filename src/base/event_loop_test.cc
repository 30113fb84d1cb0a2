#include "base/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <thread>

namespace phalanx {
namespace {

TEST(EventLoop, RunsTimersInOrderOfTimeThenAge) {
  EventLoop loop;
  std::vector<int> order;
  const Instant now = loop.Now();
  loop.At(now + 2, [&] {
    order.push_back(3);
    loop.Stop();
  });
  loop.At(now + 1, [&] { order.push_back(1); });
  loop.At(now + 1, [&] { order.push_back(2); });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoop, CancelledTimerDoesNotRun) {
  EventLoop loop;
  bool ran = false;
  const auto id = loop.At(loop.Now(), [&] { ran = true; });
  loop.Cancel(id);
  loop.At(loop.Now() + 1, [&] { loop.Stop(); });
  loop.Run();
  EXPECT_FALSE(ran);
}

TEST(EventLoop, PostFromAnotherThreadWakesTheLoop) {
  EventLoop loop;
  std::thread poster([&] { loop.Post([&] { loop.Stop(); }); });
  loop.Run();
  poster.join();
}

TEST(EventLoop, CallbackMayUnwatchItself) {
  EventLoop loop;
  int pipe_fds[2];
  ASSERT_EQ(pipe(pipe_fds), 0);
  Fd reader(pipe_fds[0]);
  Fd writer(pipe_fds[1]);
  int calls = 0;
  loop.Watch(reader.get(), EPOLLIN, [&](uint32_t) {
    ++calls;
    loop.Unwatch(reader.get());
    loop.At(loop.Now() + 1, [&] { loop.Stop(); });
  });
  ASSERT_EQ(write(writer.get(), "x", 1), 1);
  loop.Run();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace phalanx

#include "base/task_thread.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "base/test_threads.h"

namespace phalanx {
namespace {

TEST(TaskThread, RunsTasksInOrderOnAnotherThread) {
  TaskThread thread("test");
  std::vector<int> order;
  std::promise<std::thread::id> done;
  thread.Post([&] { order.push_back(1); });
  thread.Post([&] { order.push_back(2); });
  thread.Post([&] { done.set_value(std::this_thread::get_id()); });
  EXPECT_NE(done.get_future().get(), std::this_thread::get_id());
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

TEST(TaskThread, WhereNoThreadCanBeHadTheCallerRunsTheTask) {
  TaskThread thread("test");
  std::thread::id ran_on;
  {
    const NoThreads full;
    thread.Post([&] { ran_on = std::this_thread::get_id(); });
  }
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  std::promise<std::thread::id> done;
  thread.Post([&] { done.set_value(std::this_thread::get_id()); });
  EXPECT_NE(done.get_future().get(), std::this_thread::get_id()) << "there is room again";
}

TEST(TaskThread, ItsEndWaitsForTheTaskUnderWay) {
  std::promise<void> begun, may_end;
  bool ended = false;
  {
    TaskThread thread("test");
    thread.Post([&] {
      begun.set_value();
      may_end.get_future().wait();
      ended = true;
    });
    begun.get_future().wait();
    may_end.set_value();
  }
  EXPECT_TRUE(ended);
}

TEST(TaskThread, NothingRunsBehindItsFinish) {
  TaskThread thread("test");
  std::promise<void> begun, may_end;
  int ran = 0;
  thread.Post([&] {
    begun.set_value();
    may_end.get_future().wait();
    ++ran;
  });
  // The first one ends when the second has been given up, and not before.
  std::shared_ptr<void> given_up(nullptr, [&](void*) { may_end.set_value(); });
  thread.Post([&, kept = std::move(given_up)] { ++ran; });
  begun.get_future().wait();
  thread.Finish();
  thread.Post([&] { ++ran; });
  thread.Finish();
  EXPECT_EQ(ran, 1);
}

TEST(TaskThread, AnAbandonedTaskIsWaitedForByNobody) {
  auto release = std::make_shared<std::promise<void>>();
  auto over = std::make_shared<std::promise<void>>();
  {
    TaskThread thread("test");
    auto begun = std::make_shared<std::promise<void>>();
    thread.Post([=] {
      begun->set_value();
      release->get_future().wait();
      over->set_value();
    });
    begun->get_future().wait();
    thread.Abandon();
  }
  release->set_value();
  over->get_future().wait();
}

}  // namespace
}  // namespace phalanx

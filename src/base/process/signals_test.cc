#include "base/process/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <vector>

#include "base/signal_name.h"

namespace phalanx {
namespace {

TEST(SignalSource, TurnsSignalsIntoCallbacks) {
  EventLoop loop;
  std::vector<int> seen;
  SignalSource source(loop, {SIGUSR1, SIGUSR2}, [&](int signal) {
    seen.push_back(signal);
    if (seen.size() == 2) loop.Stop();
  });
  kill(getpid(), SIGUSR1);
  kill(getpid(), SIGUSR2);
  loop.Run();
  EXPECT_EQ(seen, (std::vector<int>{SIGUSR1, SIGUSR2}));
}

TEST(SignalSource, CallbackMayEndItAndTheSignalStaysBlocked) {
  EventLoop loop;
  std::unique_ptr<SignalSource> source;
  int calls = 0;
  source = std::make_unique<SignalSource>(loop, std::set<int>{SIGUSR1}, [&](int) {
    ++calls;
    source.reset();
    loop.At(loop.Now(), [&] { loop.Stop(); });
  });
  kill(getpid(), SIGUSR1);
  loop.Run();
  EXPECT_EQ(calls, 1);
  kill(getpid(), SIGUSR1);  // would end this process
}

TEST(SignalName, IsForPeople) {
  EXPECT_EQ(SignalName(9), "SIGKILL");
  EXPECT_EQ(SignalName(77), "signal 77");
}

}  // namespace
}  // namespace phalanx

// Who reads our console goes away: real pipes, sockets, terminals and files.
#include "agent/output/reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/clock.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

struct Ends {
  Fd reader;
  Fd writer;
};

Ends MakeEnds() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
  return {Fd(fds[0]), Fd(fds[1])};
}

class ConsoleReaderTest : public testing::Test {
 protected:
  ConsoleReaderTest() : before_(signal(SIGPIPE, SIG_IGN)) {}
  ~ConsoleReaderTest() override { signal(SIGPIPE, before_); }

  // Serves what is there, and what that brings.
  void Turn() {
    loop_.At(loop_.Now(), [this] { loop_.Post([this] { loop_.Stop(); }); });
    loop_.Run();
  }

  // Until somebody tells that it has gone; the time is for silence alone.
  void UntilGone() {
    const EventLoop::TimerId limit = loop_.At(MonotonicMs() + 20'000, [this] { loop_.Stop(); });
    loop_.Run();
    loop_.Cancel(limit);
  }

  std::function<void()> OnGone() {
    return [this] {
      ++told_;
      loop_.Stop();
    };
  }

  EventLoop loop_;
  int told_ = 0;
  sighandler_t before_;
};

TEST_F(ConsoleReaderTest, TakesThePlaceOfAPipesReader) {
  Ends pipe = MakeEnds();
  const ConsoleReader reader(loop_, pipe.writer.get(), OnGone());
  Turn();
  EXPECT_FALSE(reader.gone());
  pipe.reader.Reset();
  ASSERT_EQ(write(pipe.writer.get(), "x", 1), -1);
  UntilGone();
  EXPECT_TRUE(reader.gone());
  EXPECT_EQ(told_, 1);
  const std::string much(64 << 10, 'x');
  for (int i = 0; i < 8; ++i) {  // more than the pipe holds
    EXPECT_EQ(write(pipe.writer.get(), much.data(), much.size()), static_cast<ssize_t>(much.size())) << i;
    Turn();
    Turn();
  }
  EXPECT_EQ(told_, 1);
}

TEST_F(ConsoleReaderTest, LeavesAPipeWithANameToItsNextReader) {
  const fs::path path = fs::temp_directory_path() / fmt::format("phalanx-reader-{}", getpid());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  Fd first(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const Fd writer(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const ConsoleReader reader(loop_, writer.get(), OnGone());
  first.Reset();
  UntilGone();
  EXPECT_TRUE(reader.gone());
  EXPECT_EQ(write(writer.get(), "x", 1), -1);
  const Fd next(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(write(writer.get(), "x", 1), 1);
  Turn();
  char byte = 0;
  EXPECT_EQ(read(next.get(), &byte, 1), 1);
  fs::remove(path);
}

TEST_F(ConsoleReaderTest, TellsOfASocketAndOfATerminal) {
  int fds[2] = {-1, -1};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const Fd ours(fds[0]);
  Fd theirs(fds[1]);
  const ConsoleReader socket(loop_, ours.get(), OnGone());
  Turn();
  EXPECT_FALSE(socket.gone());
  theirs.Reset();
  UntilGone();
  EXPECT_TRUE(socket.gone());
  Fd screen(posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_EQ(unlockpt(screen.get()), 0);
  const Fd terminal(open(ptsname(screen.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
  const ConsoleReader hung_up(loop_, terminal.get(), OnGone());
  Turn();
  EXPECT_FALSE(hung_up.gone());
  screen.Reset();
  UntilGone();
  EXPECT_TRUE(hung_up.gone());
  EXPECT_EQ(told_, 2);
}

TEST_F(ConsoleReaderTest, AFileHasNone) {
  const Fd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const Fd null(open("/dev/null", O_WRONLY | O_CLOEXEC));
  const ConsoleReader of_file(loop_, file.get(), OnGone());
  const ConsoleReader of_null(loop_, null.get(), OnGone());
  Turn();
  EXPECT_FALSE(of_file.gone() || of_null.gone());
}

}  // namespace
}  // namespace phalanx::agent

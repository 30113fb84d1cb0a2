#include "agent/device_count.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <utility>

namespace phalanx::agent {
namespace {

constexpr size_t kMaxOutput = 4096;
constexpr uint32_t kMaxDevices = 4096;

// As in torchrun, `gpu` and `xpu` ask for that kind and `auto` for whichever torch finds.
constexpr char kGpu[] = "import torch; print('devices', torch.cuda.device_count() if torch.cuda.is_available() else 0)";
constexpr char kXpu[] = "import torch; print('devices', torch.xpu.device_count() if torch.xpu.is_available() else 0)";
constexpr char kAuto[] =
    "import torch\n"
    "a = getattr(torch, 'accelerator', None)\n"
    "if a is not None and a.is_available(): n = a.device_count()\n"
    "else: n = torch.cuda.device_count() if torch.cuda.is_available() else 0\n"
    "print('devices', n)";

const char* FlagValue(NprocKind kind) { return kind == NprocKind::kGpu ? "gpu" : kind == NprocKind::kXpu ? "xpu" : "auto"; }

}  // namespace

std::vector<std::string> DeviceCountCommand(NprocKind kind, const std::string& python) {
  return {python, "-c", kind == NprocKind::kGpu ? kGpu : kind == NprocKind::kXpu ? kXpu : kAuto};
}

StatusOr<uint32_t> ParseDeviceCount(NprocKind kind, const std::string& output, uint32_t cpu_count) {
  const std::string flag = fmt::format("--nproc-per-node={}", FlagValue(kind));
  // The last line that we wrote: libraries greet on stdout.
  constexpr std::string_view kMark = "devices ";
  const size_t at = output.rfind(kMark);
  uint32_t count = 0;
  const char* const begin = at == std::string::npos ? nullptr : output.data() + at + kMark.size();
  const char* const end = output.data() + output.size();
  if (begin == nullptr || std::from_chars(begin, end, count).ec != std::errc() || count > kMaxDevices) {
    return absl::UnavailableError(fmt::format("{}: Python could not count the devices; give a number instead", flag));
  }
  if (count > 0) return count;
  if (kind == NprocKind::kAuto) return std::max(1u, cpu_count);
  return absl::InvalidArgumentError(fmt::format("{}: torch sees no such device here; give a number, or 'auto'", flag));
}

StatusOr<std::unique_ptr<DeviceProbe>> DeviceProbe::Start(EventLoop& loop, Reaper& reaper, const LaunchConfig& config,
                                                          const std::map<std::string, std::string>& env,
                                                          uint32_t cpu_count, Done done) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  std::unique_ptr<DeviceProbe> probe(new DeviceProbe(loop, reaper));
  probe->output_.Reset(fds[0]);
  const Fd child_end(fds[1]);
  SpawnSpec spec;
  const std::string python = config.python.empty() ? "python3" : config.python;
  spec.program = python;
  spec.args = DeviceCountCommand(config.nproc_kind, python);
  spec.env = env;
  spec.stdout_fd = child_end.get();
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(spec));
  probe->pid_ = child.pid;
  DeviceProbe* const self = probe.get();
  fcntl(probe->output_.get(), F_SETFL, O_NONBLOCK);
  loop.Watch(probe->output_.get(), EPOLLIN, [self](uint32_t) { self->Read(); });
  const NprocKind kind = config.nproc_kind;
  reaper.Await(std::move(child), [self, kind, cpu_count, done = std::move(done)](const ProcessEnd&) {
    self->pid_ = 0;
    if (self->output_.valid()) self->Read();
    done(ParseDeviceCount(kind, self->text_, cpu_count));
  });
  return probe;
}

DeviceProbe::~DeviceProbe() {
  if (output_.valid()) loop_.Unwatch(output_.get());
  if (pid_ == 0) return;
  kill(-pid_, SIGKILL);
  reaper_.Forget(pid_);
}

// Takes all there is, so that a library that greets at length never waits for us, and keeps the end of it.
void DeviceProbe::Read() {
  char buffer[kMaxOutput];
  ssize_t n = 0;
  while ((n = read(output_.get(), buffer, sizeof buffer)) > 0) text_.append(buffer, static_cast<size_t>(n));
  if (text_.size() > kMaxOutput) text_.erase(0, text_.size() - kMaxOutput);
  if (n == 0) {
    loop_.Unwatch(output_.get());
    output_.Reset();
  }
}

}  // namespace phalanx::agent

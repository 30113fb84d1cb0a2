#include "agent/machine/device_count.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "agent/output/streams.h"
#include "base/pipe.h"

namespace phalanx::agent {
namespace {

constexpr size_t kOutputBytesMax = 64 << 10;
constexpr uint32_t kDevicesMax = 4096;
// Behind it stands the count: what an import prints may come before.
constexpr std::string_view kMarker = "phalanx-devices=";
// Behind it stand the addresses, with spaces between them and a semicolon at the end.
constexpr std::string_view kAddressMarker = "phalanx-addresses=";

const char* Flag(NprocKind kind) {
  switch (kind) {
    case NprocKind::kGpu:
      return "--nproc-per-node=gpu";
    case NprocKind::kXpu:
      return "--nproc-per-node=xpu";
    default:
      return "--nproc-per-node=auto";
  }
}

const char* Question(NprocKind kind) {
  switch (kind) {
    case NprocKind::kGpu:
      return "torch.cuda.device_count() if torch.cuda.is_available() else 0";
    case NprocKind::kXpu:
      return "torch.xpu.device_count() if torch.xpu.is_available() else 0";
    default:
      return "torch.accelerator.device_count() if torch.accelerator.is_available() else 0";
  }
}

// "0000:dc:00.0", as it becomes part of a path.
bool IsPciAddress(std::string_view word) {
  return word.size() >= 12 && word.size() <= 16 &&
         word.find_first_not_of("0123456789abcdef:.") == std::string_view::npos &&
         word.find("..") == std::string_view::npos;
}

}  // namespace

std::vector<std::string> DeviceCountCommand(NprocKind kind, const std::string& python) {
  return {python, "-c", fmt::format("import torch; print('\\n{}' + str({}))", kMarker, Question(kind))};
}

StatusOr<uint32_t> ParseDeviceCount(NprocKind kind, const std::string& output, uint32_t cpu_count) {
  const size_t at = output.rfind(kMarker);
  uint32_t count = 0;
  std::errc code = std::errc::invalid_argument;
  if (at != std::string::npos) {
    const char* const digits = output.data() + at + kMarker.size();
    code = std::from_chars(digits, output.data() + output.size(), count).ec;
  }
  if (code != std::errc() || count > kDevicesMax) {
    return absl::FailedPreconditionError(
        fmt::format("{}: Python could not count the devices: {}", Flag(kind), TailForPeople(output, 500)));
  }
  if (count > 0) return count;
  if (kind == NprocKind::kAuto) return cpu_count;
  return absl::FailedPreconditionError(
      fmt::format("{}: torch sees no such device on this machine; give a number, or 'auto'", Flag(kind)));
}

std::vector<std::string> DeviceAddressCommand(const std::string& python) {
  // A torch whose devices have no pci_domain_id says so itself, and its words are passed on.
  return {python, "-c",
          fmt::format("import torch\n"
                      "kinds = [k for k in (torch.cuda, torch.xpu) if k.is_available()]\n"
                      "found = [k.get_device_properties(i) for k in kinds[:1] for i in range(k.device_count())]\n"
                      "print('\\n{}' + ' '.join('%04x:%02x:%02x.0' % (d.pci_domain_id, d.pci_bus_id, d.pci_device_id)\n"
                      "                       for d in found) + ';')",
                      kAddressMarker)};
}

StatusOr<std::vector<std::string>> ParseDeviceAddresses(const std::string& output) {
  const size_t at = output.rfind(kAddressMarker);
  const size_t first = at == std::string::npos ? at : at + kAddressMarker.size();
  const size_t end = first == std::string::npos ? first : output.find(';', first);
  std::vector<std::string> addresses;
  bool good = end != std::string::npos;
  std::string_view rest = good ? std::string_view(output).substr(first, end - first) : "";
  while (good && !rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(' '));
    good = IsPciAddress(word) && addresses.size() < kDevicesMax;
    addresses.emplace_back(word);
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
  }
  if (good) return addresses;
  const std::string words = output.substr(0, output.find_last_not_of(" \n") + 1);
  return absl::FailedPreconditionError(
      fmt::format("Python could not say where the devices lie: {}", TailForPeople(words, 500)));
}

StatusOr<std::unique_ptr<DeviceProbe>> DeviceProbe::Start(EventLoop& loop, Reaper& reaper,
                                                          std::vector<std::string> command,
                                                          const std::map<std::string, std::string>& env,
                                                          const Done& done, int64_t limit_ms) {
  PHX_ASSIGN_OR_RETURN(Pipe words, MakePipe());
  DoNotBlock(words.reader);
  std::unique_ptr<DeviceProbe> probe(new DeviceProbe(loop, reaper));
  DeviceProbe* const self = probe.get();
  self->output_ = std::move(words.reader);
  const Fd writer = std::move(words.writer);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  SpawnSpec spec;
  spec.program = command.front();
  spec.args = std::move(command);
  spec.env = env;
  spec.stdin_fd = null.get();
  spec.stdout_fd = writer.get();
  spec.stderr_fd = writer.get();
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(spec));
  self->pid_ = child.pid;
  loop.Watch(self->output_.get(), EPOLLIN, [self](uint32_t) { self->Read(); });
  self->limit_ = loop.At(MonotonicMs() + limit_ms, [self, limit_ms] { self->GiveUp(limit_ms); });
  reaper.Await(std::move(child), [self, done](const ProcessEnd&) {
    self->loop_.Cancel(self->limit_);
    self->pid_ = 0;
    if (self->output_.valid()) self->Read();
    if (!self->given_up_.empty()) self->text_ += self->given_up_;
    const std::string output = std::move(self->text_);
    done(output);  // may destroy the probe
  });
  return probe;
}

DeviceProbe::~DeviceProbe() {
  if (output_.valid()) loop_.Unwatch(output_.get());
  if (pid_ == 0) return;
  loop_.Cancel(limit_);
  reaper_.Forget(pid_);
  kill(-pid_, SIGKILL);
}

void DeviceProbe::GiveUp(int64_t limit_ms) {
  given_up_ = fmt::format("\nit has not answered within {} s, and was ended", limit_ms / 1'000);
  kill(-pid_, SIGKILL);
}

void DeviceProbe::Read() {
  std::array<char, 16 << 10> buffer;
  while (true) {
    const ssize_t n = read(output_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) break;
    text_.append(buffer.data(), static_cast<size_t>(n));
    if (text_.size() > kOutputBytesMax) text_.erase(0, text_.size() - kOutputBytesMax / 2);
  }
  loop_.Unwatch(output_.get());
  output_.Reset();
}

}  // namespace phalanx::agent

#include "replay/recorder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>
#include <utility>

namespace phalanx::replay {
namespace {

v1::ReplayFrame EndFrame(bool full) {
  v1::ReplayFrame frame;
  frame.mutable_end()->set_full(full);
  return frame;
}

}  // namespace

StatusOr<std::unique_ptr<Recorder>> Recorder::Open(const std::string& folder, const std::string& name,
                                                   const v1::ReplayStart& start,
                                                   std::function<void(const std::string&)> warn, uint64_t max_bytes) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, folder);
  const std::string path = fmt::format("{}/{}.replay", folder, name);
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return ErrnoStatus(errno, path);
  v1::ReplayFrame first;
  *first.mutable_start() = start;
  std::unique_ptr<Recorder> recorder(new Recorder(path, std::move(file), std::move(warn), max_bytes));
  PHX_RETURN_IF_ERROR(recorder->Write(LogHeader() + FrameBytes(first)));
  return recorder;
}

Recorder::Recorder(std::string path, Fd file, std::function<void(const std::string&)> warn, uint64_t max_bytes)
    : path_(std::move(path)), file_(std::move(file)), warn_(std::move(warn)), max_bytes_(max_bytes) {}

Recorder::~Recorder() { End(false); }

void Recorder::Add(const v1::ReplayFrame& frame) {
  if (!file_.valid()) return;
  static const uint64_t room_for_end = FrameBytes(EndFrame(true)).size();
  const std::string bytes = FrameBytes(frame);
  if (bytes_ + bytes.size() + room_for_end > max_bytes_) {
    End(true);
    return warn_(fmt::format("{} has come to its bound of {} bytes: nothing more is recorded", path_, max_bytes_));
  }
  const Status written = Write(bytes);
  if (written.ok()) return;
  file_.Reset();
  warn_(fmt::format("{}: nothing more is recorded", Message(written)));
}

void Recorder::End(bool full) {
  if (!file_.valid()) return;
  // Nothing is lost where the disk does not take it: the reader knows logs without an end.
  Write(FrameBytes(EndFrame(full))).IgnoreError();
  file_.Reset();
}

Status Recorder::Write(const std::string& bytes) {
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t n = write(file_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path_);
    rest.remove_prefix(static_cast<size_t>(n));
  }
  bytes_ += bytes.size();
  return absl::OkStatus();
}

}  // namespace phalanx::replay

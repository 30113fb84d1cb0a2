#include "agent/watch/watcher.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <variant>

#include "base/clock.h"

namespace phalanx::agent::watch {

Watcher::Watcher(EventLoop& loop, Reaper& reaper, Options options, Events events)
    : loop_(loop),
      reaper_(reaper),
      options_(std::move(options)),
      events_(std::move(events)),
      sysfs_(loop, options_.place, [this] { OnSysfsRead(); }),
      recent_(options_.every_ms) {
  StartGpus();
  OnTimer();
}

Watcher::~Watcher() { loop_.Cancel(timer_); }

void Watcher::StartGpus() {
  std::error_code error;
  if (!std::filesystem::exists(options_.place.sysfs_root + "/module/nvidia", error)) return;
  GpuHelper::Events events;
  events.on_line = [this](const GpuLine& line) { OnGpuLine(line); };
  events.on_end = [this](const std::string& why) { OnGpusEnded(why); };
  auto started = GpuHelper::Start(loop_, reaper_, options_.python, options_.env, options_.every_ms, std::move(events));
  if (!started.ok()) return NoteGpus(Message(started.status()));
  gpus_ = *std::move(started);
  gpus_expected_ = true;
}

void Watcher::OnTimer() {
  timer_ = loop_.At(MonotonicMs() + options_.every_ms, [this] { OnTimer(); });
  sysfs_.Ask(/*scans=*/true);
  CheckSysfs();
  CheckGpus();
}

void Watcher::CheckSysfs() {
  if (++sysfs_silent_ <= kSilentReadings || sysfs_told_) return;
  sysfs_told_ = true;
  events_.on_notice(fmt::format("{} has not answered for {} s: what the kernel counts is not watched till it does",
                                sysfs_.UnderWay(), kSilentReadings * options_.every_ms / 1'000));
}

void Watcher::CheckGpus() {
  // Counted in readings: while this process stands still, as at Ctrl-Z, what the helper says is not heard.
  if (!gpus_expected_ || ++gpus_silent_ <= kSilentReadings) return;
  gpus_expected_ = false;
  const int64_t silent_ms = kSilentReadings * options_.every_ms;
  events_.on_notice(fmt::format("NVML has not answered for {} s: GPUs are not watched", silent_ms / 1'000));
}

void Watcher::OnSysfsRead() {
  sysfs_silent_ = 0;
  TakeSysfs();
}

void Watcher::TakeSysfs() {
  for (const Batch& batch : sysfs_.Take()) {
    Take(Compare(differ_, batch.readings, batch.at, UnixMs() - (MonotonicMs() - batch.at)));
  }
}

void Watcher::Take(const std::vector<Found>& all) {
  for (const Found& found : all) {
    recent_.Note(found);
    if (found.told) events_.on_fact(found);
  }
}

std::string Watcher::Explain(Instant ended_at) {
  if (gpus_) gpus_->ReadNow();
  // Not one of the timer's, however young: what ended the worker may have happened behind it.
  const Instant now = MonotonicMs();
  if (now - read_for_end_at_ > kSharedReadingMs && sysfs_.Ask(/*scans=*/false)) {
    read_for_end_at_ = now;
    sysfs_.Wait(kEndReadingUs);
  }
  TakeSysfs();
  return recent_.Explain(ended_at);
}

void Watcher::OnGpuLine(const GpuLine& line) {
  gpus_expected_ = true;
  gpus_silent_ = 0;
  std::visit([this](const auto& each) { On(each); }, line);
}

void Watcher::On(const GpusFound& line) {
  if (line.count > 0 && !line.events) {
    events_.on_notice("this machine's NVIDIA driver tells of no XIDs; counters of GPUs are watched alone");
  };
}

void Watcher::On(const GpuXid& line) {
  Take(OnXid(differ_, line.gpu, line.number, line.times, MonotonicMs(), UnixMs()));
}

void Watcher::On(const GpuValue& line) {
  if (gpu_readings_.size() < kMaxTracks) {
    gpu_readings_.push_back({FindKind(line.name), GpuName(line.gpu), "NVML", line.value});
  }
}

void Watcher::On(const GpusRead& /*line*/) {
  const Readings readings = std::exchange(gpu_readings_, {});
  Take(Compare(differ_, readings, MonotonicMs(), UnixMs()));
}

void Watcher::On(const GpusDeaf& line) {
  events_.on_notice(fmt::format("XIDs are heard no more ({}); counters of GPUs are watched alone", line.why));
}

void Watcher::On(const GpusUnwatched& line) {
  NoteGpus(line.why);
  gpus_expected_ = false;
}

// Where it has said why, that was heard.
void Watcher::OnGpusEnded(const std::string& why) {
  if (gpus_expected_) NoteGpus(fmt::format("the program that asks NVML has ended: {}", why));
  gpus_expected_ = false;
}

void Watcher::NoteGpus(const std::string& why) { events_.on_notice(fmt::format("GPUs are not watched: {}", why)); }

}  // namespace phalanx::agent::watch

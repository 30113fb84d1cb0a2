// How a node leaves its job: storage takes the last checkpoint, reports are written, the stream and an embedded master
// end. Steps of NodeAgent (shell.h).
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "agent/node/named_file.h"
#include "agent/node/shell.h"
#include "base/clock.h"

namespace phalanx::agent {
namespace {

// The master needs the last words of a node that ends (a moment on a live stream), and its own record needs a moment
// more.
constexpr int64_t kGoodbyeMs = 2'000;
// The last checkpoint of a job is waited for that long; --stop-timeout where the node was asked to go.
constexpr int64_t kStorageAtEndMs = 600'000;
constexpr int64_t kTidyMs = 10'000;

}  // namespace

void NodeAgent::Do(const Exit& action) {
  exit_code_ = action.code;
  if (checkpoints_ && core_.stop_signal != 0) checkpoints_->OnLeaving();
  if (checkpoints_ && exit_code_ == 0) checkpoints_->Tidy();
  if (checkpoints_ && checkpoints_->Storing() && core_.attached) return AwaitStorage();
  Leave();
}

// What is on its way to storage needs this node, its memory and its word.
void NodeAgent::AwaitStorage() {
  const std::string storing = checkpoints_->StoringText();
  const int64_t longest_ms = storing.empty() ? kTidyMs : kStorageAtEndMs;
  leave_by_ = MonotonicMs() + (core_.stop_signal != 0 ? config_.stop_timeout_ms : longest_ms);
  if (!storing.empty()) Do(Say{fmt::format("checkpoint: waiting for storage to take {}", storing)});
  checkpoints_->WhenStored([this] { loop_.Post([this] { Leave(); }); });
  BeatWhileWaiting();
}

void NodeAgent::BeatWhileWaiting() {
  if (leave_by_ == kNever) return;
  if (MonotonicMs() >= leave_by_) {
    const std::string storing = checkpoints_->StoringText();
    Warn(storing.empty() ? "checkpoint: storage has not removed its recycled files in time"
                         : fmt::format("checkpoint: storage has not taken {}", storing));
    return Leave();
  }
  Do(SendBeat{0});
  loop_.At(std::min(leave_by_, MonotonicMs() + core_.beat_interval_ms), [this] { BeatWhileWaiting(); });
}

void NodeAgent::Leave() {
  if (std::exchange(left_, true)) return;
  leave_by_ = kNever;
  if (checkpoints_) checkpoints_->End(exit_code_ != 0);
  if (event_writer_) event_writer_->TellOfAgent(exit_code_ == 0 ? "SUCCEEDED" : "FAILED", std::nullopt);
  WriteReport();
  if (!supervisor_) return loop_.Stop();
  for (const std::string& stray : supervisor_->Strays()) {
    Do(Say{fmt::format("left running, as the script left it: {}", stray)});
  }
  supervisor_->WantSpares(0);
  if (!link_) return AwaitMaster();
  link_->Close(kGoodbyeMs, [this] { AwaitMaster(); });
}

void NodeAgent::WriteReport() {
  JobEnd end;
  end.exit_code = exit_code_;
  end.job_id = config_.rdzv_id;
  end.script = config_.ShownScript();
  end.local_world_size = config_.nproc_per_node;
  end.round = last_round_;
  end.in_round = core_.round.has_value();
  end.workers = last_workers_;
  end.finish = core_.finish;
  FillReports(JobReport(end));
}

void NodeAgent::FillReports(const std::string& text) {
  for (const std::string& path : config_.report_files) {
    const Status written = WriteNamed({path}, text);
    if (!written.ok()) Do(Say{fmt::format("--report-file={}: {}", path, Message(written))});
  }
}

// A master that serves nobody else ends with us; its record is whole when this program is over.
void NodeAgent::AwaitMaster() {
  const bool ends_with_us = core_.finish.has_value() || config_.max_nodes == 1;
  if (!master_ || !ends_with_us) return loop_.Stop();
  master_->AwaitEnd(kGoodbyeMs, [this] { LeaveMaster(); });
}

// A master that was killed at the job's end may not have told all nodes. The next one does, and ends after that.
void NodeAgent::LeaveMaster() {
  const bool told_all = !core_.finish || config_.max_nodes == 1 || !master_->was_killed();
  leaving_master_ = true;
  if (told_all || !master_->Start(config_, env_, master_place_, true).ok()) return loop_.Stop();
  loop_.At(MonotonicMs() + kGoodbyeMs, [this] { loop_.Stop(); });
}

}  // namespace phalanx::agent

// How a node leaves its job: storage takes the last checkpoint, reports are written, the stream and an embedded master
// end. Steps of NodeAgent (shell.h).
#include <fmt/format.h>

#include <utility>

#include "agent/node/named_file.h"
#include "agent/node/shell.h"

namespace phalanx::agent {

void NodeAgent::Do(const Exit& action) {
  exit_code_ = action.code;
  Feed(joining::GivenUp{});
  leaving::Begun begun;
  begun.exit_code = action.code;
  begun.asked = core_.stop_signal != 0;
  begun.attached = core_.attached;
  begun.finished = core_.finish.has_value();
  begun.has_workers = supervisor_ != nullptr;
  begun.has_stream = link_ != nullptr;
  begun.has_master = master_ && !core_.moved_on && !core_.candidate;
  begun.beat_interval_ms = core_.beat_interval_ms;
  Feed(begun);
}

void NodeAgent::Do(const leaving::SettleStorage& action) {
  if (!checkpoints_) return Feed(leaving::StorageSettled{});
  if (action.leaving) checkpoints_->OnLeaving();
  if (action.tidy) checkpoints_->Tidy();
  const bool storing = checkpoints_->Storing();
  const bool lending = checkpoints_->Lending();
  if (storing || lending) {
    checkpoints_->WhenUnneeded([this] { loop_.Post([this] { Feed(leaving::StorageIdle{}); }); });
  }
  Feed(leaving::StorageSettled{storing, checkpoints_->StoringText(), lending});
}

void NodeAgent::Do(const leaving::Say& action) { Do(Say{action.text}); }

void NodeAgent::Do(const leaving::Warn& action) { Warn(action.text); }

void NodeAgent::Do(const leaving::Beat& /*action*/) { Do(SendBeat{0}); }

void NodeAgent::Do(const leaving::Depart& action) {
  if (checkpoints_) checkpoints_->End(action.exit_code != 0);
  Feed(checking::Over{});
  watcher_.reset();
  if (event_writer_) event_writer_->TellOfAgent(action.exit_code == 0 ? "SUCCEEDED" : "FAILED", std::nullopt);
  WriteReport();
  heralds_.clear();
  if (!supervisor_) return;
  for (const std::string& stray : supervisor_->Strays()) {
    if (stray.starts_with(fmt::format("{} ", last_helper_))) continue;  // it ends
    Do(Say{fmt::format("left running, as the script left it: {}", stray)});
  }
  supervisor_->WantSpares(0);
}

void NodeAgent::Do(const leaving::CloseStream& action) {
  link_->Close(action.longest_ms, [this] { Feed(leaving::StreamClosed{}); });
}

void NodeAgent::Do(const leaving::AwaitMaster& action) {
  master_->AwaitEnd(action.longest_ms, [this] { Feed(leaving::MasterEnded{master_->was_killed()}); });
}

void NodeAgent::Do(const leaving::StartMaster& /*action*/) {
  if (!master_->Start(config_, env_, master_place_, {true, !core_.search.own.empty(), core_.search.term, 0, "", false})
           .ok())
    Feed(leaving::MasterAnswered{});
}

void NodeAgent::Do(const leaving::EndProgram& /*action*/) { loop_.Stop(); }

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

}  // namespace phalanx::agent

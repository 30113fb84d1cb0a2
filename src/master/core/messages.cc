#include "master/core/messages.h"

#include <variant>

namespace phalanx::master {

v1::MasterMessage WelcomeTo(const JobState& job, const Node& node) {
  v1::MasterMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_master_id(job.master_id);
  welcome.set_beat_interval_ms(node.beat_interval_ms);
  welcome.set_lease_ms(node.lease_ms);
  welcome.set_job_id(job.job_id);
  welcome.set_term(job.term);
  return message;
}

v1::MasterMessage RefusedFor(const std::string& sentence) {
  v1::MasterMessage message;
  message.mutable_refused()->set_sentence(sentence);
  return message;
}

v1::MasterMessage NotElectedFor(const std::string& sentence) {
  v1::MasterMessage message = RefusedFor(sentence);
  message.mutable_refused()->set_not_elected(true);
  return message;
}

v1::MasterMessage MessageOf(const v1::Refused& refused) {
  v1::MasterMessage message;
  *message.mutable_refused() = refused;
  return message;
}

v1::MasterMessage HoldOf(uint64_t epoch, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_hold_round()->set_epoch(epoch);
  message.mutable_hold_round()->set_reason(reason);
  return message;
}

v1::MasterMessage NoticeOf(const std::string& text) {
  v1::MasterMessage message;
  message.mutable_notice()->set_text(text);
  return message;
}

v1::MasterMessage AnnouncementOf(const Round& round, bool node_leaves) {
  v1::MasterMessage message;
  v1::AnnounceRescale& announce = *message.mutable_announce_rescale();
  announce.set_epoch(round.epoch);
  announce.set_reason(round.rescale_why);
  announce.set_at_step(round.safe_step);
  announce.set_node_leaves(node_leaves);
  return message;
}

v1::MasterMessage FinishOf(const Outcome& outcome) {
  v1::MasterMessage message;
  v1::Finish& finish = *message.mutable_finish();
  finish.set_exit_code(outcome.exit_code);
  finish.set_reason(outcome.reason);
  finish.set_restart_count(outcome.restart_count);
  for (size_t i = 0; i < outcome.failures.size(); ++i) {
    *(i == 0 ? finish.mutable_first_cause() : finish.add_others()) = outcome.failures[i].told;
  }
  return message;
}

const v1::StartRound* StartRoundIn(const Action& action) {
  const auto* send = std::get_if<Send>(&action);
  return send != nullptr && send->message->has_start_round() ? &send->message->start_round() : nullptr;
}

const v1::Finish* FinishIn(const Action& action) {
  const auto* send = std::get_if<Send>(&action);
  return send != nullptr && send->message->has_finish() ? &send->message->finish() : nullptr;
}

bool EndsStream(const v1::MasterMessage& message) { return message.has_refused() || message.has_finish(); }

}  // namespace phalanx::master

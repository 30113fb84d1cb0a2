#include "master/serve/messages.h"

namespace phalanx::master {

v1::MasterMessage MessageOf(const SendWelcome& action, const std::string& master_id, const std::string& job_id) {
  v1::MasterMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_master_id(master_id);
  welcome.set_beat_interval_ms(action.beat_interval_ms);
  welcome.set_lease_ms(action.lease_ms);
  welcome.set_job_id(job_id);
  return message;
}

v1::MasterMessage MessageOf(const SendRefused&, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_refused()->set_sentence(reason);
  return message;
}

v1::MasterMessage MessageOf(const SendHold& action, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_hold_round()->set_epoch(action.epoch);
  message.mutable_hold_round()->set_reason(reason);
  return message;
}

v1::MasterMessage MessageOf(const SendNotice&, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_notice()->set_text(reason);
  return message;
}

v1::MasterMessage MessageOf(const SendAnnounceRescale& action, const std::string& reason) {
  v1::MasterMessage message;
  v1::AnnounceRescale& announce = *message.mutable_announce_rescale();
  announce.set_epoch(action.epoch);
  announce.set_reason(reason);
  announce.set_at_step(action.at_step);
  return message;
}

v1::MasterMessage MessageOf(const SendCheckpoint& action, const std::string&) {
  v1::MasterMessage message;
  *message.mutable_checkpoint() = action.order;
  return message;
}

}  // namespace phalanx::master

#include "master/core/admit.h"

#include <algorithm>
#include <utility>

#include "elasticity/job_sizes.h"
#include "master/core/door.h"
#include "master/core/succession.h"
#include "master/rules/lease.h"
#include "wire/limits.h"

namespace phalanx::master {
namespace {

// Numbers that no job can come to are bounded, as all from outside.
constexpr int64_t kMaxStep = int64_t{1} << 48;
constexpr uint32_t kMaxRounds = uint32_t{1} << 30;
// Sums of a rank's life: their products with a step's number stay numbers.
constexpr uint64_t kMaxPaceSteps = uint64_t{1} << 40;
constexpr int64_t kMaxPaceUs = kMaxSpanMs * 1'000;

constexpr size_t kMaxReasonBytes = 512;

// To the first `max` bytes at most, without half a character at the end.
void Cut(std::string& text, size_t max) {
  if (text.size() <= max) return;
  while (max > 0 && (static_cast<unsigned char>(text[max]) & 0xC0) == 0x80) --max;
  text.resize(max);
}

// Of one store: what is added up stays a number.
constexpr uint64_t kMaxRefused = uint64_t{1} << 40;

int64_t BoundedStep(int64_t step) { return std::clamp<int64_t>(step, 0, kMaxStep); }

int64_t Span(int64_t ms) { return std::clamp<int64_t>(ms, 0, kMaxSpanMs); }

// What is kept has no parts that nobody bounds. Protobuf's own DiscardUnknownFields makes a place for them in each
// message that has none, which is almost every one and then goes wherever the message is copied.
void DropUnknownFields(google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  if (!reflection.GetUnknownFields(message).empty()) reflection.MutableUnknownFields(&message)->Clear();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const field = type.field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (reflection.HasField(message, field)) DropUnknownFields(*reflection.MutableMessage(&message, field));
      continue;
    }
    for (int part = 0; part < reflection.FieldSize(message, field); ++part) {
      DropUnknownFields(*reflection.MutableRepeatedMessage(&message, field, part));
    }
  }
}

void AdmitRound(v1::StartRound& round) {
  round.set_term(std::min(round.term(), kMaxEpoch));
  round.set_epoch(std::min(round.epoch(), kMaxEpoch));
  round.set_restart_count(std::min(round.restart_count(), kMaxRounds));
  round.set_restarts_used(std::min(round.restarts_used(), kMaxRounds));
  round.set_lives_without_step(std::min(round.lives_without_step(), kMaxRounds));
  if (round.has_highest_step() && round.highest_step() < 0) round.clear_highest_step();
  if (round.has_highest_step()) round.set_highest_step(std::min(round.highest_step(), kMaxStep));
  Cut(*round.mutable_reason(), kMaxReasonBytes);
}

void AdmitProgress(v1::Progress& told) {
  if (told.has_step() && told.step() < 0) told.clear_step();
  if (told.has_step()) told.set_step(std::min(told.step(), kMaxStep));
  if (told.has_from_step() && told.from_step() < 0) told.clear_from_step();
  if (told.has_from_step()) told.set_from_step(std::min(told.from_step(), kMaxStep));
  told.set_saving_ms(Span(told.saving_ms()));
  if (told.has_caught_up_ms_ago()) told.set_caught_up_ms_ago(Span(told.caught_up_ms_ago()));
}

void AdmitExit(v1::WorkerExited& exit) {
  DropUnknownFields(exit);
  if (exit.has_progress()) AdmitProgress(*exit.mutable_progress());
  exit.set_for_rescale(exit.for_rescale() && exit.exit_code() == 0 && exit.signal() == 0);
  // A longer text is not what an agent sends, and a part of an error file is none.
  if (exit.error_json().size() > kMaxErrorJsonBytes) exit.clear_error_json();
  // What is kept is the end, where the exception stands.
  std::string& words = *exit.mutable_last_words();
  words.erase(0, words.size() - std::min(words.size(), kMaxLastWordsBytes));
  exit.set_peak_resident_bytes(std::max<int64_t>(0, exit.peak_resident_bytes()));
  // A longer text is not what an agent sends, and a cut could fall within a character.
  if (exit.killed_by().size() > kMaxEndTextBytes) exit.clear_killed_by();
  if (exit.end_note().size() > kMaxEndTextBytes) exit.clear_end_note();
  if (exit.blamed_on().size() > kMaxEndTextBytes) exit.clear_blamed_on();
}

void AdmitWorld(v1::World& world) {
  world.set_term(std::min(world.term(), kMaxEpoch));
  world.set_epoch(std::min(world.epoch(), kMaxEpoch));
  world.set_nodes(std::min(world.nodes(), kMaxNodes));
}

// That can be dialled.
bool IsPlace(const v1::MasterPlace& place) {
  return IsIpAddress(place.address()) && place.port() > 0 &&
         std::max(place.port(), place.presence_port()) <= UINT16_MAX && place.node_id().size() <= kMaxNameBytes;
}

bool AreSane(const v1::Successors& successors) {
  const auto is_member = [](const v1::MasterPlace& place) {
    return IsIpAddress(place.address()) && place.presence_port() <= UINT16_MAX &&
           place.node_id().size() <= kMaxNameBytes;
  };
  return successors.places_size() <= kSuccessors && is_member(successors.host()) &&
         std::all_of(successors.places().begin(), successors.places().end(), is_member);
}

void AdmitHello(v1::Hello& hello) {
  DropUnknownFields(hello);
  hello.clear_node_key();  // is looked at before, and kept nowhere
  Cut(*hello.mutable_software_version(), kMaxNameBytes);
  // One more than allowed, so that the door sees it.
  const int addresses = std::min<int>(hello.interface_addresses_size(), static_cast<int>(kMaxInterfaceAddresses) + 1);
  hello.mutable_interface_addresses()->DeleteSubrange(addresses, hello.interface_addresses_size() - addresses);
  AdmitSpec(*hello.mutable_spec());
  hello.set_seen_epoch(std::min(hello.seen_epoch(), kMaxEpoch));
  if (hello.has_live_round()) AdmitRound(*hello.mutable_live_round());
  if (hello.has_last_round()) AdmitRound(*hello.mutable_last_round());
  if (hello.has_world()) AdmitWorld(*hello.mutable_world());
  if (hello.has_confirmed()) AdmitWorld(*hello.mutable_confirmed());
  hello.set_term(std::min(hello.term(), kMaxEpoch));
  if (hello.has_master() && !IsPlace(hello.master())) hello.clear_master();
  if (hello.has_successors() && !AreSane(hello.successors())) hello.clear_successors();
}

// What no agent of ours would tell of checkpoints is not heard.
constexpr size_t kMaxPathBytes = 4'096;
constexpr int kMaxHeldSaves = 1'024;
constexpr int kMaxImagesAsked = 65'536;

bool IsSane(const v1::SaveId& save) { return save.epoch() <= kMaxEpoch && save.step() >= 0 && save.step() <= kMaxStep; }

bool IsPath(const std::string& dir) {
  return dir.starts_with('/') && dir.size() <= kMaxPathBytes && dir.find('\0') == std::string::npos;
}

// Of a file or folder inside a checkpoint directory.
bool IsName(const std::string& name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

constexpr uint32_t kMaxPort = 65'535;
// Of one save; as many as fit into a message.
constexpr int kMaxFilesOfNode = 8'192;
constexpr size_t kMaxAddressBytes = 64;
constexpr size_t kImageKeyBytes = 32;  // docs/formats/image-read.md

bool IsSane(const v1::ImageSource& source) {
  return !source.address().empty() && source.address().size() <= kMaxAddressBytes && source.port() != 0 &&
         source.port() <= kMaxPort && source.key().size() == kImageKeyBytes;
}

bool IsSane(const v1::CheckpointsHeld& held) {
  const bool saves = std::all_of(held.saves().begin(), held.saves().end(), [](const v1::HeldSave& save) {
    return IsPath(save.dir()) && IsSane(save.save()) && IsForm(save.form()) &&
           save.ranks_size() <= static_cast<int>(kMaxLocalWorldSize);
  });
  const bool awaited = std::all_of(held.awaited().begin(), held.awaited().end(), [](const v1::AwaitedStore& store) {
    return IsPath(store.dir()) && IsSane(store.save());
  });
  const bool source = !held.has_source() || IsSane(held.source());
  return held.saves_size() <= kMaxHeldSaves && held.awaited_size() <= kMaxHeldSaves && saves && awaited && source;
}

bool IsSane(const v1::CheckpointSealed& sealed) {
  const bool values = std::all_of(sealed.values().begin(), sealed.values().end(), [](const v1::SharedValue& value) {
    return value.name().size() <= wire::kMaxSharedValueNameBytes && value.local_rank() < kMaxLocalWorldSize;
  });
  return IsSane(sealed.save()) && sealed.values_size() <= static_cast<int>(2 * wire::kMaxSharedValues) && values;
}

bool IsSane(const v1::ShardsWritten& written) {
  const bool is_named = written.name().empty() || IsName(written.name());
  return IsSane(written.save()) && is_named && written.shards_size() <= kMaxFilesOfNode &&
         std::all_of(written.shards().begin(), written.shards().end(), [](const v1::Shard& shard) {
           return (IsName(shard.file()) || shard.file() == ".metadata") && v1::FileNeed_IsValid(shard.needed_by());
         });
}

bool IsSane(const v1::CheckpointReport& report) {
  if (report.has_held()) return IsSane(report.held());
  if (report.has_going()) return true;  // of all directories
  if (!IsPath(report.dir())) return false;
  switch (report.body_case()) {
    case v1::CheckpointReport::kOpened:
      return IsForm(report.opened().form());
    case v1::CheckpointReport::kRestoreAsked:
      return report.restore_asked().images_size() <= kMaxImagesAsked;
    case v1::CheckpointReport::kSealed:
      return IsSane(report.sealed());
    case v1::CheckpointReport::kSkipped:
      return IsSane(report.skipped().save());
    case v1::CheckpointReport::kFound:
      return report.found().step() == -1 ||
             (report.found().step() >= 0 && report.found().step() <= kMaxStep && IsName(report.found().name()));
    case v1::CheckpointReport::kChecked:
      return IsName(report.checked().name());
    case v1::CheckpointReport::kStorePrepared: {
      const v1::StorePrepared& prepared = report.store_prepared();
      return IsSane(prepared.save()) && (!prepared.error().empty() || IsName(prepared.name()));
    }
    case v1::CheckpointReport::kShardsWritten:
      return IsSane(report.shards_written());
    case v1::CheckpointReport::kManifestWritten:
      return IsSane(report.manifest_written().save());
    case v1::CheckpointReport::kDeparting:
      return IsSane(report.departing().save());
    default:
      return true;
  }
}

void AdmitReport(v1::CheckpointReport& report) {
  DropUnknownFields(report);
  for (std::string* text :
       {report.has_skipped() ? report.mutable_skipped()->mutable_why() : nullptr,
        report.has_held() ? report.mutable_held()->mutable_unreadable() : nullptr,
        report.has_found() ? report.mutable_found()->mutable_why() : nullptr,
        report.has_checked() ? report.mutable_checked()->mutable_error() : nullptr,
        report.has_store_prepared() ? report.mutable_store_prepared()->mutable_error() : nullptr,
        report.has_shards_written() ? report.mutable_shards_written()->mutable_error() : nullptr,
        report.has_manifest_written() ? report.mutable_manifest_written()->mutable_error() : nullptr}) {
    if (text != nullptr) Cut(*text, kMaxReasonBytes);
  }
}

void AdmitBeat(v1::Beat& beat) {
  beat.set_min_step(BoundedStep(beat.min_step()));
  beat.set_max_step(BoundedStep(beat.max_step()));
  beat.set_min_optimizer_steps(BoundedStep(beat.min_optimizer_steps()));
  beat.set_max_optimizer_steps(BoundedStep(beat.max_optimizer_steps()));
  beat.set_store_refused(std::min(beat.store_refused(), kMaxRefused));
  beat.set_told_ranks(std::min(beat.told_ranks(), kMaxLocalWorldSize));
  if (static_cast<uint32_t>(beat.ranks_size()) > kMaxLocalWorldSize) beat.clear_ranks();
  for (v1::RankStatus& rank : *beat.mutable_ranks()) {
    rank.set_local_rank(std::min(rank.local_rank(), kMaxLocalWorldSize));
    rank.set_step(BoundedStep(rank.step()));
    rank.set_optimizer_steps(BoundedStep(rank.optimizer_steps()));
    rank.set_quiet_ms(std::clamp<int64_t>(rank.quiet_ms(), -1, kMaxSpanMs));
    rank.set_age_ms(std::clamp<int64_t>(rank.age_ms(), -1, kMaxSpanMs));
    if (!v1::RankStatus::Doing_IsValid(rank.doing())) rank.set_doing(v1::RankStatus::STARTING);
  }
  if (beat.has_progress()) AdmitProgress(*beat.mutable_progress());
  if (static_cast<uint32_t>(beat.paces_size()) > kMaxLocalWorldSize) beat.clear_paces();
  for (v1::RankPace& pace : *beat.mutable_paces()) {
    pace.set_steps(std::min<uint64_t>(pace.steps(), kMaxPaceSteps));
    pace.set_own_us(std::clamp<int64_t>(pace.own_us(), 0, kMaxPaceUs));
    pace.set_waited_us(std::clamp<int64_t>(pace.waited_us(), 0, kMaxPaceUs));
  }
}

void AdmitFirstStep(v1::FirstStep& first) {
  first.set_step(BoundedStep(first.step()));
  if (first.has_progress()) AdmitProgress(*first.mutable_progress());
}

// As many as an agent sends; texts for people.
constexpr int kMaxCheckResults = 64;
constexpr int kMaxCheckValues = 256;
constexpr size_t kMaxUnitBytes = 32;
// Sums over all values of all nodes stay far from overflow.
constexpr int64_t kMaxCheckValue = int64_t{1} << 36;

void AdmitCheck(v1::CheckReport& report) {
  DropUnknownFields(report);
  Cut(*report.mutable_ended(), kMaxReasonBytes);
  if (report.results_size() > kMaxCheckResults) {
    report.mutable_results()->DeleteSubrange(kMaxCheckResults, report.results_size() - kMaxCheckResults);
  }
  for (v1::CheckResult& result : *report.mutable_results()) {
    Cut(*result.mutable_check(), kMaxNameBytes);
    Cut(*result.mutable_sentence(), kMaxReasonBytes);
    result.set_took_us(std::clamp<int64_t>(result.took_us(), 0, kMaxSpanMs));
    if (!v1::CheckResult::Outcome_IsValid(result.outcome())) result.set_outcome(v1::CheckResult::FAILED);
    if (result.values_size() > kMaxCheckValues) {
      result.mutable_values()->DeleteSubrange(kMaxCheckValues, result.values_size() - kMaxCheckValues);
    }
    for (v1::CheckValue& value : *result.mutable_values()) {
      Cut(*value.mutable_name(), kMaxNameBytes);
      Cut(*value.mutable_unit(), kMaxUnitBytes);
      value.set_value(std::clamp<int64_t>(value.value(), -kMaxCheckValue, kMaxCheckValue));
      if (!v1::CheckValue::Better_IsValid(value.better())) value.set_better(v1::CheckValue::NEITHER);
    }
  }
}

void AdmitFact(v1::NodeFact& fact) {
  DropUnknownFields(fact);
  Cut(*fact.mutable_kind(), kMaxUnitBytes);
  Cut(*fact.mutable_device(), kMaxNameBytes);
  Cut(*fact.mutable_sentence(), kMaxReasonBytes);
  Cut(*fact.mutable_source(), kMaxReasonBytes);
  fact.set_unix_ms(std::max<int64_t>(0, fact.unix_ms()));
}

// What no agent of ours would ask for is not heard; which numbers make sense together, the topic says to the rank.
bool IsSane(const v1::ShardRequest& request) {
  const bool one_of_few = request.done().shards_size() <= static_cast<int>(kMaxShardsOfRank) &&
                          request.back().shards_size() <= static_cast<int>(kMaxShardsOfRank);
  return !request.dataset().empty() && request.dataset().size() <= kMaxNameBytes &&
         request.local_rank() < kMaxLocalWorldSize && request.epoch() <= kMaxEpoch && one_of_few &&
         request.restore().undone_gaps_size() <= static_cast<int>(kMaxShardsOut);
}

void AdmitLeaving(v1::Leaving& leaving) {
  Cut(*leaving.mutable_reason(), kMaxReasonBytes);
  leaving.set_signal(std::clamp(leaving.signal(), 0, 64));
}

}  // namespace

void Admit(v1::AgentMessage& message) {
  if (!message.has_hello() && message.next_store_port() > UINT16_MAX) message.set_next_store_port(0);
  switch (message.body_case()) {
    case v1::AgentMessage::kHello:
      return AdmitHello(*message.mutable_hello());
    case v1::AgentMessage::kBeat:
      return AdmitBeat(*message.mutable_beat());
    case v1::AgentMessage::kWorkerExited:
      return AdmitExit(*message.mutable_worker_exited());
    case v1::AgentMessage::kFirstStep:
      return AdmitFirstStep(*message.mutable_first_step());
    case v1::AgentMessage::kLeaving:
      return AdmitLeaving(*message.mutable_leaving());
    case v1::AgentMessage::kSafePoint:
      return message.mutable_safe_point()->set_asked(std::min(message.safe_point().asked(), kMaxLocalWorldSize));
    case v1::AgentMessage::kCheckpoint:
      if (!IsSane(message.checkpoint())) return message.clear_body();
      return AdmitReport(*message.mutable_checkpoint());
    case v1::AgentMessage::kStoreRefused:
      return Cut(*message.mutable_store_refused()->mutable_sentence(), kMaxReasonBytes);
    case v1::AgentMessage::kCheck:
      return AdmitCheck(*message.mutable_check());
    case v1::AgentMessage::kNodeFact:
      return AdmitFact(*message.mutable_node_fact());
    case v1::AgentMessage::kConsoleLost:
      return Cut(*message.mutable_console_lost()->mutable_sentence(), kMaxReasonBytes);
    case v1::AgentMessage::kShardRequest:
      if (!IsSane(message.shard_request())) return message.clear_body();
      return DropUnknownFields(*message.mutable_shard_request());
    case v1::AgentMessage::kReady:
    case v1::AgentMessage::BODY_NOT_SET:
      return;
  }
}

void AdmitSpec(v1::JobSpec& spec) {
  const v1::JobSpec standard = DefaultSpec();
  spec.set_restart_window_ms(spec.restart_window_ms() > 0 ? Span(spec.restart_window_ms())
                                                          : standard.restart_window_ms());
  spec.set_join_timeout_ms(spec.join_timeout_ms() > 0 ? Span(spec.join_timeout_ms()) : standard.join_timeout_ms());
  spec.set_last_call_ms(Span(spec.last_call_ms()));
  spec.set_node_unit(std::max(standard.node_unit(), spec.node_unit()));
  spec.set_rescale_grace_ms(Span(spec.rescale_grace_ms()));
  spec.set_older_save_after_lives(std::min(spec.older_save_after_lives(), kMaxRounds));
  spec.set_hang_timeout_ms(Span(spec.hang_timeout_ms()));
  if (spec.lease_ms() != 0) spec.set_lease_ms(std::max(kLeaseLeastMs, Span(spec.lease_ms())));
  v1::CheckSpec& check = *spec.mutable_check();
  check.set_level(std::min(check.level(), 2u));
  if (!v1::CheckSpec::StragglerRule_IsValid(check.straggler_rule())) check.set_straggler_rule(v1::CheckSpec::MEAN);
  check.set_limit_ms(check.limit_ms() > 0 ? Span(check.limit_ms()) : kDefaultCheckLimitMs);
  check.set_left_out_ms(check.left_out_ms() > 0 ? Span(check.left_out_ms()) : kDefaultLeftOutMs);
  if (check.level() == 0 && !check.excludes_stragglers()) spec.clear_check();
  Cut(*spec.mutable_elastic_config(), elasticity::kBlockBytesMax + 4);  // still too long, so that the door sees it
}

Failure AdmitFailure(v1::Failure failure, const std::string& node) {
  AdmitExit(*failure.mutable_exited());
  const bool collateral = IsCollateral(failure.exited()) || EndedEarly(failure.exited());
  return {std::move(failure), node, collateral};
}

AgentAttached AttachedOf(uint64_t session, v1::AgentMessage message, const std::string& peer_address) {
  Admit(message);
  return {session, std::move(message), peer_address};
}

Event EventOf(uint64_t session, v1::AgentMessage message) {
  Admit(message);
  return AgentSaid{session, std::move(message)};
}

}  // namespace phalanx::master

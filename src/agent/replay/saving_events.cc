#include "agent/replay/saving_events.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace phalanx::agent {
namespace {

using Wire = v1::SavingEvent;

// As --nproc-per-node has it.
constexpr uint32_t kMaxLocalWorldSize = 4'096;
// As the checkpoint socket has them (docs/formats/checkpoint-socket.md).
constexpr size_t kMaxPathBytes = 4'096;
constexpr int64_t kMaxStep = int64_t{1} << 48;
constexpr uint32_t kMaxKeepLast = 1'000'000;
constexpr int kMaxTrackers = 8;

// --- to the log ---------------------------------------------------------------------------------------------------

void Fill(Wire::Page& wire, const HeldPage& page) {
  wire.set_dir(page.dir);
  SetForm(*wire.mutable_form(), page.form);
  wire.set_main(page.page == kMainPage);
  SetKey(*wire.mutable_save(), page.save);
  wire.set_rank(page.rank);
  wire.set_world_size(page.world_size);
  wire.set_committed(page.committed);
  wire.set_sealed_unix_ms(page.sealed_unix_ms);
  wire.set_older_unread(page.older_unread);
}

void Fill(Wire& wire, const saving::RoundBegun& event) {
  wire.mutable_round_begun()->set_epoch(event.epoch);
  wire.mutable_round_begun()->set_group_rank(event.group_rank);
}

void Fill(Wire& wire, const saving::Scanned& event) {
  wire.mutable_scanned()->set_epoch(event.epoch);
  for (const HeldPage& page : event.pages) Fill(*wire.mutable_scanned()->add_pages(), page);
  if (event.source) *wire.mutable_scanned()->mutable_source() = *event.source;
}

void Fill(Wire& wire, const saving::Attached& /*event*/) { wire.mutable_attached(); }

void Fill(Wire& wire, const saving::Ordered& event) { *wire.mutable_ordered() = event.order; }

// Whose request an event is, and about which directory.
template <typename Message, typename Event>
Message& FillAsking(Message& message, const Event& event) {
  message.set_local_rank(static_cast<uint32_t>(event.local_rank));
  message.set_dir(event.dir);
  return message;
}

void Fill(Wire& wire, const saving::Opened& event) {
  auto& opened = FillAsking(*wire.mutable_opened(), event);
  SetForm(*opened.mutable_form(), event.options.form);
  opened.set_at_breakpoint(event.options.at_breakpoint);
  opened.set_keep_last(static_cast<uint32_t>(event.options.keep_last));
  opened.set_keep_every(event.options.keep_every);
  for (const std::string& tracker : event.options.trackers) opened.add_trackers(tracker);
  opened.set_archive(event.options.archive);
  opened.set_archive_every(event.options.archive_every);
}

void Fill(Wire& wire, const saving::Sealed& event) {
  auto& sealed = FillAsking(*wire.mutable_sealed(), event);
  sealed.set_main(event.main);
  sealed.set_step(event.step);
  sealed.set_store(event.store);
  sealed.set_branch(event.branch);
  for (const auto& [name, crc] : event.values) {
    v1::SharedValue& value = *sealed.add_values();
    value.set_name(name);
    value.set_crc32(crc);
  }
}

void Fill(Wire& wire, const saving::Skipped& event) {
  auto& skipped = FillAsking(*wire.mutable_skipped(), event);
  skipped.set_step(event.step);
  skipped.set_why(event.why);
  skipped.set_branch(event.branch);
}

void Fill(Wire& wire, const saving::WaitAsked& event) {
  auto& asked = FillAsking(*wire.mutable_wait_asked(), event);
  asked.set_request(event.request);
  asked.set_step(event.step);
  asked.set_until_stored(event.until_stored);
  asked.set_branch(event.branch);
}

void Fill(Wire& wire, const saving::RestoreAsked& event) {
  auto& asked = FillAsking(*wire.mutable_restore_asked(), event);
  asked.set_request(event.request);
  asked.set_branch(event.branch);
}

void Fill(Wire& wire, const saving::ImagesAsked& event) {
  auto& asked = FillAsking(*wire.mutable_images_asked(), event);
  asked.set_request(event.request);
  asked.set_branch(event.branch);
  for (const auto& [rank, ranges] : event.parts) {
    auto& part = *asked.add_parts();
    part.set_rank(rank);
    for (const checkpoint::ByteRange& range : ranges.All()) {
      part.add_bytes(range.begin);
      part.add_bytes(range.end);
    }
  }
}

void Fill(Wire& wire, const saving::RestoreDone& event) {
  FillAsking(*wire.mutable_restore_done(), event).set_branch(event.branch);
}

void Fill(Wire& wire, const saving::MasterSilent& event) { wire.mutable_master_silent()->set_why(event.why); }

void Fill(Wire& wire, const saving::RankGone& event) {
  wire.mutable_rank_gone()->set_local_rank(static_cast<uint32_t>(event.local_rank));
}

void Fill(Wire& wire, const saving::JobEnded& /*event*/) { wire.mutable_job_ended(); }

void Fill(Wire& wire, const saving::Leaving& /*event*/) { wire.mutable_leaving(); }

void Fill(Wire& wire, const saving::TidyAsked& /*event*/) { wire.mutable_tidy_asked(); }

void Fill(Wire& wire, const saving::Ended& event) {
  wire.mutable_ended()->set_failed(event.failed);
  for (const HeldPage& page : event.in_memory) Fill(*wire.mutable_ended()->add_in_memory(), page);
}

void Fill(Wire& wire, const saving::Found& event) {
  wire.mutable_found()->set_epoch(event.epoch);
  wire.mutable_found()->set_dir(event.dir);
  *wire.mutable_found()->mutable_found() = event.steps.found;
  wire.mutable_found()->set_unreadable(event.steps.unreadable);
}

void Fill(Wire& wire, const saving::Checked& event) {
  wire.mutable_checked()->set_epoch(event.epoch);
  wire.mutable_checked()->set_dir(event.dir);
  wire.mutable_checked()->set_name(event.name);
  wire.mutable_checked()->set_error(event.error);
  wire.mutable_checked()->set_unreadable(event.unreadable);
}

// What storage has done for a save.
template <typename Message, typename Event>
Message& FillStored(Message& message, const Event& event) {
  message.set_dir(event.dir);
  SetKey(*message.mutable_save(), event.save);
  message.set_error(event.error);
  return message;
}

void Fill(Wire& wire, const saving::FolderMade& event) {
  FillStored(*wire.mutable_folder_made(), event).set_name(event.name);
}

void Fill(Wire& wire, const saving::ImagesWritten& event) {
  auto& written = FillStored(*wire.mutable_images_written(), event);
  written.set_name(event.name);
  for (const v1::Shard& shard : event.shards) *written.add_shards() = shard;
}

void Fill(Wire& wire, const saving::StepClosed& event) { FillStored(*wire.mutable_step_closed(), event); }

void Fill(Wire& wire, const saving::Archived& event) {
  wire.mutable_archived()->set_dir(event.dir);
  wire.mutable_archived()->mutable_steps()->Assign(event.steps.begin(), event.steps.end());
  wire.mutable_archived()->set_error(event.error);
}

void Fill(Wire& wire, const saving::Tidied& event) {
  wire.mutable_tidied()->set_dir(event.dir);
  wire.mutable_tidied()->set_error(event.error);
}

void Fill(Wire& wire, const saving::Fetched& event) {
  wire.mutable_fetched()->set_epoch(event.epoch);
  wire.mutable_fetched()->set_dir(event.dir);
  wire.mutable_fetched()->set_branch(event.branch);
  wire.mutable_fetched()->set_request(event.request);
  wire.mutable_fetched()->set_error(event.error);
}

// --- and back -----------------------------------------------------------------------------------------------------

Status Wrong(const std::string& what) {
  return absl::DataLossError(fmt::format("the log contradicts itself: {}", what));
}

StatusOr<int> RankOf(uint32_t local_rank) {
  if (local_rank < kMaxLocalWorldSize) return static_cast<int>(local_rank);
  return Wrong(fmt::format("local rank {}", local_rank));
}

Status CheckStepOf(int64_t step) {
  return step >= 0 && step <= kMaxStep ? absl::OkStatus() : Wrong(fmt::format("step {}", step));
}

// As a rank names it.
Status CheckDir(const std::string& dir) {
  const bool is_path = dir.starts_with('/') && dir.size() <= kMaxPathBytes && dir.find('\0') == std::string::npos;
  return is_path ? absl::OkStatus() : Wrong("the directory of checkpoints");
}

Status CheckForm(const v1::SaveForm& form) { return IsForm(form) ? absl::OkStatus() : Wrong("the form of a save"); }

// What each request of a rank has.
template <typename Message>
StatusOr<int> AskingRankOf(const Message& wire) {
  PHX_RETURN_IF_ERROR(CheckDir(wire.dir()));
  return RankOf(wire.local_rank());
}

// An agent takes directories and steps as it finds them in memory.
StatusOr<std::vector<HeldPage>> PagesOf(const google::protobuf::RepeatedPtrField<Wire::Page>& wire) {
  std::vector<HeldPage> pages;
  pages.reserve(static_cast<size_t>(wire.size()));
  for (const Wire::Page& page : wire) {
    PHX_RETURN_IF_ERROR(CheckForm(page.form()));
    pages.push_back({page.dir(), FormOf(page.form()), page.main() ? kMainPage : 0, KeyOf(page.save()), page.rank(),
                     page.world_size(), page.committed(), page.sealed_unix_ms(), page.older_unread()});
  }
  return pages;
}

StatusOr<saving::Event> From(const Wire::Scanned& wire) {
  PHX_ASSIGN_OR_RETURN(std::vector<HeldPage> pages, PagesOf(wire.pages()));
  saving::Scanned event{wire.epoch(), std::move(pages), std::nullopt};
  if (wire.has_source()) event.source = wire.source();
  return event;
}

StatusOr<saving::Event> From(const Wire::Opened& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  PHX_RETURN_IF_ERROR(CheckForm(wire.form()));
  const bool keeps_sane = wire.keep_last() <= kMaxKeepLast && wire.keep_every() >= 0 && wire.keep_every() <= kMaxStep &&
                          wire.archive_every() >= 0 && wire.archive_every() <= kMaxStep;
  if (!keeps_sane || wire.trackers_size() > kMaxTrackers) return Wrong("what a rank gave its Checkpointer");
  CheckpointOptions options;
  options.form = FormOf(wire.form());
  options.at_breakpoint = wire.at_breakpoint();
  options.keep_last = static_cast<int>(wire.keep_last());
  options.keep_every = wire.keep_every();
  options.trackers.assign(wire.trackers().begin(), wire.trackers().end());
  options.archive = wire.archive();
  options.archive_every = wire.archive_every();
  return saving::Opened{rank, wire.dir(), std::move(options)};
}

StatusOr<saving::Event> From(const Wire::Sealed& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  PHX_RETURN_IF_ERROR(CheckStepOf(wire.step()));
  saving::Sealed event{rank, wire.dir(), wire.main(), wire.step(), wire.store(), wire.branch()};
  for (const v1::SharedValue& value : wire.values()) event.values[value.name()] = value.crc32();
  return event;
}

StatusOr<saving::Event> From(const Wire::Skipped& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  PHX_RETURN_IF_ERROR(CheckStepOf(wire.step()));
  return saving::Skipped{rank, wire.dir(), wire.step(), wire.why(), wire.branch()};
}

StatusOr<saving::Event> From(const Wire::WaitAsked& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  PHX_RETURN_IF_ERROR(CheckStepOf(wire.step()));
  return saving::WaitAsked{rank, wire.request(), wire.dir(), wire.step(), wire.until_stored(), wire.branch()};
}

StatusOr<saving::Event> From(const Wire::RestoreAsked& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  return saving::RestoreAsked{rank, wire.request(), wire.dir(), wire.branch()};
}

StatusOr<saving::Event> From(const Wire::ImagesAsked& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  saving::ImagesAsked asked{rank, wire.request(), wire.dir(), wire.branch(), {}};
  for (const Wire::ImagePart& part : wire.parts()) {
    checkpoint::ByteRanges& ranges = asked.parts[part.rank()];
    if (part.bytes_size() % 2 != 0) return Wrong("the parts of an image");
    for (int i = 0; i < part.bytes_size(); i += 2) ranges.Add({part.bytes(i), part.bytes(i + 1)});
  }
  return asked;
}

StatusOr<saving::Event> From(const Wire::RestoreDone& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, AskingRankOf(wire));
  return saving::RestoreDone{rank, wire.dir(), wire.branch()};
}

StatusOr<saving::Event> From(const Wire::RankGone& wire) {
  PHX_ASSIGN_OR_RETURN(const int rank, RankOf(wire.local_rank()));
  return saving::RankGone{rank};
}

StatusOr<saving::Event> From(const Wire::Ended& wire) {
  PHX_ASSIGN_OR_RETURN(std::vector<HeldPage> pages, PagesOf(wire.in_memory()));
  return saving::Ended{std::move(pages), wire.failed()};
}

saving::Event From(const Wire::ImagesWritten& wire) {
  return saving::ImagesWritten{
      wire.dir(), KeyOf(wire.save()), wire.name(), {wire.shards().begin(), wire.shards().end()}, wire.error()};
}

}  // namespace

v1::SavingEvent MessageOf(const saving::Event& event) {
  v1::SavingEvent wire;
  std::visit([&wire](const auto& e) { Fill(wire, e); }, event);
  return wire;
}

StatusOr<saving::Event> SavingEventOf(const v1::SavingEvent& wire) {
  switch (wire.body_case()) {
    case Wire::kRoundBegun:
      return saving::RoundBegun{wire.round_begun().epoch(), wire.round_begun().group_rank()};
    case Wire::kScanned:
      return From(wire.scanned());
    case Wire::kAttached:
      return saving::Attached{};
    case Wire::kOrdered:
      return saving::Ordered{wire.ordered()};
    case Wire::kOpened:
      return From(wire.opened());
    case Wire::kSealed:
      return From(wire.sealed());
    case Wire::kSkipped:
      return From(wire.skipped());
    case Wire::kWaitAsked:
      return From(wire.wait_asked());
    case Wire::kRestoreAsked:
      return From(wire.restore_asked());
    case Wire::kRankGone:
      return From(wire.rank_gone());
    case Wire::kMasterSilent:
      return saving::MasterSilent{wire.master_silent().why()};
    case Wire::kJobEnded:
      return saving::JobEnded{};
    case Wire::kLeaving:
      return saving::Leaving{};
    case Wire::kTidyAsked:
      return saving::TidyAsked{};
    case Wire::kEnded:
      return From(wire.ended());
    case Wire::kFound:
      return saving::Found{wire.found().epoch(), wire.found().dir(), {wire.found().found(), wire.found().unreadable()}};
    case Wire::kChecked:
      return saving::Checked{wire.checked().epoch(), wire.checked().dir(), wire.checked().name(),
                             wire.checked().error(), wire.checked().unreadable()};
    case Wire::kFolderMade:
      return saving::FolderMade{wire.folder_made().dir(), KeyOf(wire.folder_made().save()), wire.folder_made().name(),
                                wire.folder_made().error()};
    case Wire::kImagesWritten:
      return From(wire.images_written());
    case Wire::kStepClosed:
      return saving::StepClosed{wire.step_closed().dir(), KeyOf(wire.step_closed().save()), wire.step_closed().error()};
    case Wire::kArchived: {
      const Wire::Archived& archived = wire.archived();
      return saving::Archived{archived.dir(), {archived.steps().begin(), archived.steps().end()}, archived.error()};
    }
    case Wire::kTidied:
      return saving::Tidied{wire.tidied().dir(), wire.tidied().error()};
    case Wire::kFetched:
      return saving::Fetched{wire.fetched().epoch(), wire.fetched().dir(), wire.fetched().branch(),
                             wire.fetched().request(), wire.fetched().error()};
    case Wire::kImagesAsked:
      return From(wire.images_asked());
    case Wire::kRestoreDone:
      return From(wire.restore_done());
    case Wire::BODY_NOT_SET:
      break;
  }
  return Wrong("an event that this version does not know");
}

}  // namespace phalanx::agent

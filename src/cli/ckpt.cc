#include "cli/ckpt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "base/read_file.h"
#include "checkpoint/disk/bulk.h"
#include "checkpoint/disk/recycled.h"
#include "checkpoint/disk/shard_json.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/files/files.h"
#include "checkpoint/image/file_table.h"
#include "checkpoint/memory/memory_reader.h"
#include "cli/ckpt_discard.h"
#include "cli/ckpt_image.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

using checkpoint::FoundStep;
using checkpoint::ImageRecord;
using checkpoint::IsMemoryName;
using checkpoint::Manifest;
using checkpoint::MemoryDirectory;
using checkpoint::MemoryFolder;
using checkpoint::MemorySlot;
using checkpoint::ReadMemories;
using checkpoint::ReadMemory;
using checkpoint::Shard;
using checkpoint::SlotState;
using checkpoint::StepState;
using nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

constexpr int64_t kBeingWrittenS = 600;
constexpr int64_t kTrackerBytesMax = 256;

enum class Kind { kFile, kStep, kDirectory, kMemory, kAllMemory };

std::string Trimmed(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string BaseName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

StatusOr<Kind> KindOf(const std::string& path) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return CallFailed(path, "stat", errno);
  if (!S_ISDIR(info.st_mode)) return Kind::kFile;
  if (path == "/dev/shm") return Kind::kAllMemory;
  if (IsMemoryName(BaseName(path))) return Kind::kMemory;
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, checkpoint::ListFolder(path));
  if (std::ranges::any_of(names, [](const std::string& name) { return IsMemoryName(name); })) return Kind::kAllMemory;
  if (std::ranges::find(names, checkpoint::kManifestName) != names.end()) return Kind::kStep;
  const bool holds_steps =
      std::ranges::any_of(names, [](const std::string& name) { return checkpoint::ParseStepName(name).has_value(); });
  return checkpoint::ParseStepName(BaseName(path)) && !holds_steps ? Kind::kStep : Kind::kDirectory;
}

StatusOr<std::vector<MemoryFolder>> Memories(const std::string& path, Kind kind) {
  if (kind == Kind::kAllMemory) return ReadMemories(path);
  PHX_ASSIGN_OR_RETURN(MemoryFolder memory, ReadMemory(path));
  std::vector<MemoryFolder> memories;
  memories.push_back(std::move(memory));
  return memories;
}

std::string Age(int64_t unix_ms, int64_t now_unix_ms) { return unix_ms > 0 ? Span(now_unix_ms - unix_ms) : "-"; }

uint64_t BytesOf(const Manifest& manifest) {
  uint64_t bytes = 0;
  for (const Shard& shard : manifest.shards) bytes += shard.bytes;
  return bytes;
}

const char* StateText(StepState state) {
  switch (state) {
    case StepState::kCommitted:
      return "committed";
    case StepState::kUncommitted:
      return "uncommitted";
    case StepState::kDamaged:
      return "damaged";
    case StepState::kUnreadable:
      return "unreadable";
  }
  return "";
}

std::string StateText(const MemorySlot& slot) {
  if (slot.slot.state == SlotState::kEmpty) return "empty";
  if (slot.slot.state == SlotState::kWriting) return "writing";
  if (!slot.slot.why.empty()) return "damaged";
  return slot.slot.is_committed() ? "committed" : "sealed";
}

// Behind which other one.
std::string BehindText(const Manifest& manifest) {
  if (!manifest.goes_on_from) return "";
  if (*manifest.goes_on_from == 0) return ", going on from none that is known";
  return fmt::format(", going on from number {}", *manifest.goes_on_from);
}

ordered_json SummaryJson(const Manifest& manifest) {
  return {{"sequence", manifest.sequence},
          {"timeline", manifest.timeline},
          {"world_size", manifest.world_size},
          {"kind", manifest.kind},
          {"layout", manifest.layout},
          {"job_id", manifest.job_id},
          {"written_unix_ms", manifest.written_unix_ms},
          {"bytes", BytesOf(manifest)}};
}

ordered_json StepJson(const FoundStep& found) {
  ordered_json json = {{"name", found.name}, {"step", found.step}, {"epoch", found.epoch}};
  json["state"] = StateText(found.state);
  json["why"] = found.why;
  if (found.manifest) json.update(SummaryJson(*found.manifest));
  return json;
}

CkptAnswer StepsAnswer(const std::string& path, const std::vector<FoundStep>& steps, bool json, int64_t now) {
  ordered_json list = ordered_json::array();
  Rows rows = {{"STEP", "STATE", "TIMELINE", "WORLD", "KIND", "SIZE", "AGE", "WHY"}};
  for (const FoundStep& found : steps) {
    list.push_back(StepJson(found));
    if (found.manifest) {
      const Manifest& manifest = *found.manifest;
      rows.push_back({found.name, StateText(found.state), fmt::format("{}", manifest.timeline),
                      fmt::format("{}", manifest.world_size), manifest.kind, Bytes(BytesOf(manifest)),
                      Age(manifest.written_unix_ms, now), ""});
    } else {
      const std::string timeline = found.timeline ? fmt::format("{}", *found.timeline) : "-";
      rows.push_back({found.name, StateText(found.state), timeline, "-", "-", "-", "-", Printable(found.why)});
    }
  }
  if (json) return {Dump({{"directory", path}, {"steps", std::move(list)}}, 2)};
  return {steps.empty() ? fmt::format("no steps in {}\n", path) : Table(rows)};
}

ordered_json SlotJson(const MemorySlot& slot) {
  ordered_json json = {{"page", slot.page}, {"path", slot.path}, {"state", StateText(slot)}};
  json["why"] = slot.slot.why;
  if (!slot.slot.sealed()) return json;
  const checkpoint::SlotImage& image = slot.slot.image;
  json.update({{"step", image.step},
               {"epoch", image.epoch},
               {"rank", image.rank},
               {"world_size", image.world_size},
               {"bytes", image.bytes},
               {"crc32", image.crc32},
               {"sealed_unix_ms", image.sealed_unix_ms}});
  return json;
}

std::vector<std::string> SlotRow(const MemorySlot& slot, int64_t now) {
  std::vector<std::string> row = {slot.path, StateText(slot)};
  if (!slot.slot.sealed()) {
    row.insert(row.end(), {"-", "-", "-", "-", "-", slot.slot.why});
    return row;
  }
  const checkpoint::SlotImage& image = slot.slot.image;
  row.insert(row.end(), {fmt::format("{}", image.step), fmt::format("{}", image.epoch),
                         fmt::format("{}/{}", image.rank, image.world_size), Bytes(image.bytes),
                         Age(image.sealed_unix_ms, now), ""});
  return row;
}

ordered_json MemoryJson(const MemoryFolder& memory) {
  ordered_json json = {{"path", memory.path}, {"own", memory.own}, {"bytes", memory.bytes}};
  if (!memory.own) return json;
  json.update({{"job_id", memory.job_id}, {"address", memory.address}, {"agent_lives", memory.agent_lives}});
  json["problems"] = memory.problems;
  json["directories"] = ordered_json::array();
  for (const MemoryDirectory& directory : memory.directories) {
    ordered_json slots = ordered_json::array();
    for (const MemorySlot& slot : directory.slots) slots.push_back(SlotJson(slot));
    json["directories"].push_back({{"folder", directory.folder},
                                   {"dir", directory.dir},
                                   {"pages", directory.pages},
                                   {"problems", directory.problems},
                                   {"slots", std::move(slots)}});
  }
  return json;
}

std::string MemoryText(const MemoryFolder& memory, int64_t now) {
  const std::string size = fmt::format("{}{}", memory.complete ? "" : "at least ", Bytes(memory.bytes));
  if (!memory.own) return fmt::format("{}: {}, another user's\n", memory.path, size);
  std::string out = fmt::format("{}: {}, job '{}' on {}, its agent {}\n", memory.path, size, Printable(memory.job_id),
                                Printable(memory.address), memory.agent_lives ? "lives" : "is dead");
  for (const std::string& problem : memory.problems) out += fmt::format("  {}\n", Printable(problem));
  for (const MemoryDirectory& directory : memory.directories) {
    out += fmt::format("for {}:\n", directory.dir.empty() ? "an unknown directory" : Printable(directory.dir));
    for (const std::string& problem : directory.problems) out += fmt::format("  {}\n", Printable(problem));
    Rows rows = {{"SLOT", "STATE", "STEP", "EPOCH", "RANK", "SIZE", "AGE", "WHY"}};
    for (const MemorySlot& slot : directory.slots) rows.push_back(SlotRow(slot, now));
    out += Table(rows);
  }
  return out;
}

CkptAnswer MemoriesAnswer(const std::string& path, const std::vector<MemoryFolder>& memories, bool json, int64_t now) {
  ordered_json list = ordered_json::array();
  std::string text;
  for (const MemoryFolder& memory : memories) {
    list.push_back(MemoryJson(memory));
    text += MemoryText(memory, now);
  }
  if (json) return {Dump({{"memories", std::move(list)}}, 2)};
  return {memories.empty() ? fmt::format("no checkpoint memory in {}\n", path) : text};
}

std::string HexText(uint32_t crc) { return fmt::format("{:08x}", crc); }

CkptAnswer ShowStep(const std::string& path, bool json) {
  const FoundStep found = checkpoint::LookAtStep(path);
  ordered_json object = StepJson(found);
  std::string text = fmt::format("step {}, {}\n", found.step, StateText(found.state));
  if (!found.manifest) text = fmt::format("{}: {}\n", StateText(found.state), Printable(found.why));
  if (found.manifest) {
    const Manifest& manifest = *found.manifest;
    text += fmt::format("job '{}', epoch {}, world {}, kind {}, layout {}, written {}\n", Printable(manifest.job_id),
                        manifest.epoch, manifest.world_size, manifest.kind, manifest.layout,
                        manifest.written_unix_ms > 0 ? Clock(manifest.written_unix_ms, true) : "-");
    text += fmt::format("timeline {}, stored as number {} there{}\n", manifest.timeline, manifest.sequence,
                        BehindText(manifest));
    Rows rows = {{"RANK", "NEEDED BY", "SIZE", "CRC32", "FILE"}};
    object["shards"] = ordered_json::array();
    for (const Shard& shard : manifest.shards) {
      const std::string need(NameOf(shard.needed_by));
      rows.push_back(
          {fmt::format("{}", shard.rank), need, Bytes(shard.bytes), HexText(shard.crc32), Printable(shard.file)});
      object["shards"].push_back(checkpoint::ShardJson<ordered_json>(shard));
    }
    text += Table(rows);
  }
  return {json ? Dump(object, 2) : text, found.manifest ? 0 : 1};
}

// Of an image in memory that holds named files; nothing where it is none.
std::optional<CkptAnswer> ShowFiles(const std::string& path, bool json) {
  const StatusOr<checkpoint::MappedFile> file = checkpoint::MappedFile::Open(path);
  std::vector<checkpoint::FileOfImage> files;
  if (!file.ok() || !checkpoint::ParseFileTable(file->data(), file->bytes(), &files).empty()) return std::nullopt;
  Rows rows = {{"OFFSET", "SIZE", "CRC32", "FILE", "ON DISK"}};
  ordered_json list = ordered_json::array();
  for (const checkpoint::FileOfImage& each : files) {
    rows.push_back({fmt::format("{}", each.offset), Bytes(each.bytes), HexText(each.crc32), Printable(each.name),
                    each.copied_elsewhere ? "from another rank" : "from this one"});
    list.push_back({{"name", each.name},
                    {"offset", each.offset},
                    {"bytes", each.bytes},
                    {"crc32", each.crc32},
                    {"copied_elsewhere", each.copied_elsewhere}});
  }
  const ordered_json object = {{"path", path}, {"bytes", file->bytes()}, {"files", std::move(list)}};
  if (json) return CkptAnswer{Dump(object, 2)};
  return CkptAnswer{fmt::format("{} files in {}\n", files.size(), Bytes(file->bytes())) + Table(rows)};
}

StatusOr<CkptAnswer> ShowImage(const std::string& path, bool json) {
  PHX_ASSIGN_OR_RETURN(const Image image, OpenImage(path));
  Rows rows = {{"OFFSET", "SIZE", "CRC32", "RECORD"}};
  ordered_json records = ordered_json::array();
  for (const ImageRecord& record : image.records) {
    rows.push_back(
        {fmt::format("{}", record.offset), Bytes(record.bytes), HexText(record.crc32), Printable(record.name)});
    records.push_back(
        {{"name", record.name}, {"offset", record.offset}, {"bytes", record.bytes}, {"crc32", record.crc32}});
  }
  const ImageInfo& info = image.info;
  ordered_json object = {{"path", path}, {"bytes", image.file.bytes()}};
  std::string text = fmt::format("{} records in {}\n", image.records.size(), Bytes(image.file.bytes()));
  if (info.known) {
    text += fmt::format("step {}, epoch {}, rank {} of {}, kind {}, job '{}'\n", info.step, info.epoch, info.rank,
                        info.world_size, Printable(info.kind), Printable(info.job_id));
    object.update({{"step", info.step},
                   {"epoch", info.epoch},
                   {"rank", info.rank},
                   {"world_size", info.world_size},
                   {"kind", info.kind},
                   {"job_id", info.job_id}});
  }
  object["records"] = std::move(records);
  return CkptAnswer{json ? Dump(object, 2) : text + Table(rows)};
}

// What was read, and what is wrong with it.
struct Checked {
  std::string path;
  uint64_t bytes = 0;
  std::string why;  // empty: nothing
};

// All of the file, and, where it is an image, each record. `crc32`: what all of it must have.
Checked CheckFile(const std::string& path, std::optional<uint32_t> crc32, bool is_image) {
  const StatusOr<checkpoint::MappedFile> file = checkpoint::MappedFile::Open(path);
  if (!file.ok()) return {path, 0, Message(file.status())};
  Checked checked{path, file->bytes(), ""};
  const uint32_t crc = crc32 ? FileCrc(*file) : 0;
  if (crc32 && crc != *crc32) {
    checked.why = fmt::format("its CRC is {} instead of {}", HexText(crc), HexText(*crc32));
  } else if (is_image) {
    checked.why = WhyDamaged(*file);
  }
  return checked;
}

// Files with records and their CRCs, which can be looked into.
bool HoldsImages(const Manifest& manifest) {
  return manifest.layout == checkpoint::kTorchLayout || manifest.layout == checkpoint::kNamedLayout;
}

void VerifyStep(const std::string& folder, const FoundStep& found, std::vector<Checked>& all) {
  if (!found.manifest) {
    all.push_back({folder, 0, found.why});
    return;
  }
  for (const Shard& shard : found.manifest->shards) {
    all.push_back(CheckFile(fmt::format("{}/{}", folder, shard.file), shard.crc32, HoldsImages(*found.manifest)));
  }
}

Status VerifyDirectory(const std::string& path, std::vector<Checked>& all) {
  PHX_ASSIGN_OR_RETURN(const std::vector<FoundStep> steps, checkpoint::FindSteps(path));
  for (const FoundStep& found : steps) {
    // One without a manifest was never finished: nobody will take it for a step.
    if (found.state != StepState::kUncommitted) VerifyStep(fmt::format("{}/{}", path, found.name), found, all);
  }
  return absl::OkStatus();
}

Status VerifyMemories(const std::string& path, Kind kind, std::vector<Checked>& all) {
  PHX_ASSIGN_OR_RETURN(const std::vector<MemoryFolder> memories, Memories(path, kind));
  for (const MemoryFolder& memory : memories) {
    for (const std::string& problem : memory.problems) all.push_back({memory.path, 0, problem});
    for (const MemoryDirectory& directory : memory.directories) {
      for (const std::string& problem : directory.problems) all.push_back({directory.folder, 0, problem});
      for (const MemorySlot& slot : directory.slots) {
        if (!slot.slot.why.empty()) all.push_back({slot.path, 0, slot.slot.why});
        if (slot.slot.sealed())
          all.push_back(CheckFile(slot.path, slot.slot.image.crc32, slot.slot.image.form.own != FileNeed::kAnyRank));
      }
    }
  }
  return absl::OkStatus();
}

std::map<std::string, const ImageRecord*> ByName(const Image& image) {
  std::map<std::string, const ImageRecord*> records;
  for (const ImageRecord& record : image.records) records[record.name] = &record;
  return records;
}

struct Difference {
  std::string shard;  // of steps
  std::string record;
  std::string what;
};

Status DiffImages(const std::string& shard, const std::string& a, const std::string& b, std::vector<Difference>& all) {
  PHX_ASSIGN_OR_RETURN(const Image left, OpenImage(a));
  PHX_ASSIGN_OR_RETURN(const Image right, OpenImage(b));
  const auto rights = ByName(right);
  for (const ImageRecord& record : left.records) {
    const auto it = rights.find(record.name);
    if (it == rights.end()) {
      all.push_back({shard, record.name, fmt::format("only in {}", a)});
    } else if (record.bytes != it->second->bytes) {
      all.push_back({shard, record.name, fmt::format("{} and {} bytes", record.bytes, it->second->bytes)});
    } else if (record.crc32 != it->second->crc32) {
      all.push_back(
          {shard, record.name, fmt::format("CRC {} and {}", HexText(record.crc32), HexText(it->second->crc32))});
    }
  }
  const auto lefts = ByName(left);
  for (const ImageRecord& record : right.records) {
    if (!lefts.contains(record.name)) all.push_back({shard, record.name, fmt::format("only in {}", b)});
  }
  return absl::OkStatus();
}

StatusOr<Manifest> ManifestOf(const std::string& folder) {
  FoundStep found = checkpoint::LookAtStep(folder);
  if (found.manifest) return *std::move(found.manifest);
  return absl::DataLossError(fmt::format("{}: {}", folder, found.why));
}

Status DiffSteps(const std::string& a, const std::string& b, std::vector<Difference>& all) {
  PHX_ASSIGN_OR_RETURN(const Manifest left, ManifestOf(a));
  PHX_ASSIGN_OR_RETURN(const Manifest right, ManifestOf(b));
  const auto find = [](const Manifest& manifest, const std::string& file) {
    const auto it = std::ranges::find(manifest.shards, file, &Shard::file);
    return it == manifest.shards.end() ? nullptr : &*it;
  };
  for (const Shard& shard : left.shards) {
    const Shard* other = find(right, shard.file);
    if (other == nullptr) {
      all.push_back({shard.file, "", fmt::format("only in {}", a)});
    } else if (HoldsImages(left) && HoldsImages(right)) {
      PHX_RETURN_IF_ERROR(
          DiffImages(shard.file, fmt::format("{}/{}", a, shard.file), fmt::format("{}/{}", b, shard.file), all));
    } else if (shard.bytes != other->bytes || shard.crc32 != other->crc32) {
      all.push_back({shard.file, "",
                     fmt::format("{} and {} bytes, CRC {} and {}", shard.bytes, other->bytes, HexText(shard.crc32),
                                 HexText(other->crc32))});
    }
  }
  for (const Shard& shard : right.shards) {
    if (find(left, shard.file) == nullptr) all.push_back({shard.file, "", fmt::format("only in {}", b)});
  }
  return absl::OkStatus();
}

Status CopyNew(const std::string& from, const checkpoint::MappedFile& file, const std::string& to) {
  const Fd source(open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!source.valid()) return CallFailed(from, "open", errno);
  const Fd fd(open(to.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return CallFailed(to, "open", errno);
  const uint32_t crc = FileCrc(file);
  const StatusOr<uint32_t> written = checkpoint::WriteBulk(
      {.fd = fd.get(), .path = to, .source_fd = source.get(), .source = from, .bytes = file.bytes()});
  Status status = written.status();
  if (status.ok() && *written != crc) status = absl::DataLossError("the image changed while it was copied");
  if (status.ok() && fsync(fd.get()) != 0) status = CallFailed(to, "fsync", errno);
  if (!status.ok()) unlink(to.c_str());
  return status;
}

}  // namespace

StatusOr<CkptAnswer> CkptList(const std::string& given, bool json, int64_t now_unix_ms) {
  const std::string path = Trimmed(given);
  PHX_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  if (kind == Kind::kMemory || kind == Kind::kAllMemory) {
    PHX_ASSIGN_OR_RETURN(const std::vector<MemoryFolder> memories, Memories(path, kind));
    return MemoriesAnswer(path, memories, json, now_unix_ms);
  }
  if (kind == Kind::kFile) {
    return absl::InvalidArgumentError(fmt::format("{} is a file; `phalanx ckpt show` tells of an image", path));
  }
  PHX_ASSIGN_OR_RETURN(const std::vector<FoundStep> steps, checkpoint::FindSteps(path));
  return StepsAnswer(path, steps, json, now_unix_ms);
}

StatusOr<CkptAnswer> CkptSteps(const std::string& directory, const std::string& name) {
  ordered_json list = ordered_json::array();
  StatusOr<std::vector<FoundStep>> steps = std::vector<FoundStep>();
  if (name.empty()) {
    steps = checkpoint::FindSteps(directory);
  } else if (std::optional<FoundStep> one = checkpoint::FindStep(directory, name)) {
    steps->push_back(*std::move(one));
  }
  if (!steps.ok() && !absl::IsNotFound(steps.status())) return steps.status();
  for (const FoundStep& found : steps.value_or(std::vector<FoundStep>())) {
    ordered_json step = {
        {"name", found.name}, {"step", found.step}, {"state", StateText(found.state)}, {"why", found.why}};
    if (found.timeline) step["timeline"] = *found.timeline;
    if (found.manifest) step["manifest"] = ordered_json::parse(checkpoint::ManifestJson(*found.manifest));
    list.push_back(std::move(step));
  }
  return CkptAnswer{Dump({{"version", 1}, {"steps", std::move(list)}}, -1)};
}

StatusOr<CkptAnswer> CkptDelete(const std::string& directory, const std::string& name) {
  PHX_RETURN_IF_ERROR(checkpoint::DeleteStep(directory, name));
  return CkptAnswer{};
}

namespace {

// A step without a manifest whose folder has changed a moment ago is being written; who reads a tracker file would look
// for a step that is gone.
Status CheckRemovable(const std::string& path, const std::string& directory, const std::string& name,
                      const FoundStep& step) {
  struct stat info {};
  const bool changed_now = stat(path.c_str(), &info) == 0 && time(nullptr) - info.st_mtime < kBeingWrittenS;
  if (step.state == StepState::kUncommitted && changed_now) {
    return absl::FailedPreconditionError(fmt::format("{}: nothing is removed: it may be being written", path));
  }
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, checkpoint::ListFolder(directory));
  for (const std::string& file : names) {
    const std::string tracker = fmt::format("{}/{}", directory, file);
    if (stat(tracker.c_str(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_size > kTrackerBytesMax) continue;
    const StatusOr<std::string> text = ReadFile(tracker, kTrackerBytesMax);
    if (!text.ok() || text->substr(0, text->find_last_not_of(" \r\n") + 1) != name) continue;
    return absl::FailedPreconditionError(
        fmt::format("{}: nothing is removed: {} names it; remove an older step, or that file first", path, tracker));
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<CkptAnswer> CkptRemove(const std::string& given, bool json) {
  const std::string path = Trimmed(given);
  PHX_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  if (kind == Kind::kMemory || kind == Kind::kAllMemory) return CkptDiscard(path, json);
  const std::string name = BaseName(path);
  if (kind != Kind::kStep || !checkpoint::ParseStepName(name)) {
    return absl::InvalidArgumentError(
        fmt::format("{}: nothing is removed: expected the folder of a step, or what dead jobs have left in memory; "
                    "`phalanx ckpt ls` lists both",
                    path));
  }
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1));
  const FoundStep step = checkpoint::LookAtStep(path);
  PHX_RETURN_IF_ERROR(CheckRemovable(path, directory, name, step));
  const uint64_t bytes = step.manifest ? BytesOf(*step.manifest) : 0;
  PHX_RETURN_IF_ERROR(checkpoint::DeleteStep(directory, name));
  PHX_RETURN_IF_ERROR(checkpoint::RemoveRecycled(directory));
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    return absl::FailedPreconditionError(
        fmt::format("{}: the step is gone; the folder stays, as it holds files that are not the step's", path));
  }
  if (json)
    return CkptAnswer{
        Dump({{"removed", {{{"path", path}, {"bytes", bytes}}}}, {"problems", ordered_json::array()}}, 2)};
  return CkptAnswer{fmt::format("{}: removed, {}\n", path, Bytes(bytes))};
}

StatusOr<CkptAnswer> CkptShow(const std::string& given, bool json) {
  const std::string path = Trimmed(given);
  PHX_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  if (kind == Kind::kFile) {
    const std::optional<CkptAnswer> files = ShowFiles(path, json);
    return files ? *files : ShowImage(path, json);
  }
  if (kind == Kind::kStep) return ShowStep(path, json);
  return absl::InvalidArgumentError(
      fmt::format("{} is neither a step's folder nor an image; `phalanx ckpt ls` lists what is in it", path));
}

StatusOr<CkptAnswer> CkptVerify(const std::string& given, bool json) {
  const std::string path = Trimmed(given);
  PHX_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  std::vector<Checked> all;
  if (kind == Kind::kFile) {
    all.push_back(CheckFile(path, std::nullopt, true));
  } else if (kind == Kind::kStep) {
    VerifyStep(path, checkpoint::LookAtStep(path), all);
  } else if (kind == Kind::kDirectory) {
    PHX_RETURN_IF_ERROR(VerifyDirectory(path, all));
  } else {
    PHX_RETURN_IF_ERROR(VerifyMemories(path, kind, all));
  }
  ordered_json list = ordered_json::array();
  Rows rows;
  size_t damaged = 0;
  for (const Checked& checked : all) {
    damaged += checked.why.empty() ? 0 : 1;
    list.push_back(
        {{"path", checked.path}, {"bytes", checked.bytes}, {"intact", checked.why.empty()}, {"why", checked.why}});
    rows.push_back(
        {checked.why.empty() ? "intact" : "DAMAGED", Bytes(checked.bytes), checked.path, Printable(checked.why)});
  }
  CkptAnswer answer;
  answer.exit_code = damaged > 0 ? 1 : 0;
  answer.text = json ? Dump({{"damaged", damaged}, {"files", std::move(list)}}, 2)
                     : fmt::format("{}{} intact, {} damaged\n", Table(rows), all.size() - damaged, damaged);
  return answer;
}

StatusOr<CkptAnswer> CkptDiff(const std::string& given_a, const std::string& given_b, bool json) {
  const std::string a = Trimmed(given_a);
  const std::string b = Trimmed(given_b);
  PHX_ASSIGN_OR_RETURN(const Kind kind_a, KindOf(a));
  PHX_ASSIGN_OR_RETURN(const Kind kind_b, KindOf(b));
  std::vector<Difference> all;
  if (kind_a == Kind::kFile && kind_b == Kind::kFile) {
    PHX_RETURN_IF_ERROR(DiffImages("", a, b, all));
  } else if (kind_a == Kind::kStep && kind_b == Kind::kStep) {
    PHX_RETURN_IF_ERROR(DiffSteps(a, b, all));
  } else {
    return absl::InvalidArgumentError(fmt::format("{} and {} are neither two images nor two steps' folders", a, b));
  }
  ordered_json list = ordered_json::array();
  Rows rows;
  for (const Difference& found : all) {
    list.push_back({{"shard", found.shard}, {"record", found.record}, {"what", found.what}});
    const std::string place = found.shard + (found.shard.empty() || found.record.empty() ? "" : ": ") + found.record;
    rows.push_back({Printable(place), Printable(found.what)});
  }
  const std::string text = all.empty() ? "no record differs\n" : Table(rows);
  return CkptAnswer{json ? Dump({{"differences", std::move(list)}}, 2) : text, all.empty() ? 0 : 1};
}

StatusOr<CkptAnswer> CkptExport(const std::string& path, const std::string& to, bool json) {
  PHX_ASSIGN_OR_RETURN(const Image image, OpenImage(path));
  PHX_RETURN_IF_ERROR(CheckRecords(path, image));
  PHX_RETURN_IF_ERROR(CopyNew(path, image.file, to));
  const uint64_t bytes = image.file.bytes();
  if (json) return CkptAnswer{Dump({{"path", to}, {"bytes", bytes}}, 2)};
  return CkptAnswer{fmt::format("{}: {}, every record as its CRC says\n", to, Bytes(bytes))};
}

}  // namespace phalanx::cli

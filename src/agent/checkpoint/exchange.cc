#include "agent/checkpoint/exchange.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/disk/manifest.h"
#include "checkpoint/memory/memory.h"
#include "checkpoint/remote/image_fetch.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

namespace {

// Of the memory that is free, for one image that is read ahead: the ranks have hardly begun, and three slots that are
// as large have room beside it.
constexpr uint64_t kPartForAhead = 4;

// Whoever holds the last one gives up what it does.
void Fire(std::shared_ptr<const Fd>& stop) {
  if (stop) {
    const uint64_t one = 1;
    // A counter that has room for it: it cannot fail.
    static_cast<void>(write(stop->get(), &one, sizeof one) == 0);
  }
  stop = std::make_shared<const Fd>(eventfd(0, EFD_CLOEXEC));
}

StatusOr<ckpt::ImageSource> SourceOf(const v1::ImageSource& wire) {
  ckpt::ImageSource source;
  if (wire.port() == 0 || wire.port() > UINT16_MAX || wire.key().size() != source.key.size()) {
    return absl::InvalidArgumentError(
        fmt::format("{} port {} is no place to read images from", wire.address(), wire.port()));
  }
  source.address = wire.address();
  source.port = static_cast<uint16_t>(wire.port());
  std::copy(wire.key().begin(), wire.key().end(), source.key.begin());
  return source;
}

// `ranges`: nothing where all of it is wanted.
Status FetchOne(const FetchJob& job, const v1::ImageElsewhere& elsewhere, const ckpt::PartsFile& to,
                const std::optional<ckpt::ByteRanges>& ranges, const Fd& stop) {
  std::vector<ckpt::ImageSource> sources;
  Status wrong = absl::OkStatus();
  for (const v1::ImageSource& wire : elsewhere.sources()) {
    StatusOr<ckpt::ImageSource> source = SourceOf(wire);
    wrong.Update(source.status());
    if (source.ok()) sources.push_back(*std::move(source));
  }
  if (sources.empty() && !wrong.ok()) return wrong;
  const ckpt::ImageName image = {job.order.dir(), KeyOf(job.order.save()), elsewhere.rank()};
  const uint64_t bytes_max = ckpt::FreeMemoryBytes(job.folder) / (job.ahead ? kPartForAhead : 1);
  if (!ranges) return ckpt::FetchImage(image, std::move(sources), to.path, bytes_max, stop.get());
  return ckpt::FetchRanges(image, std::move(sources), to, *ranges, bytes_max, stop.get());
}

std::optional<ckpt::ByteRanges> PartsOf(const ImageParts& parts, int32_t rank) {
  const auto of_rank = rank < 0 ? parts.end() : parts.find(static_cast<uint32_t>(rank));
  if (of_rank == parts.end() || of_rank->second.empty()) return std::nullopt;
  return of_rank->second;
}

}  // namespace

ckpt::LentImages ToLend(const std::vector<ReadImage>& images) {
  ckpt::LentImages lent;
  for (const ReadImage& read : images) {
    const checkpoint::MemoryImage& image = read.image;
    if (!read.wrong.empty()) continue;
    const ckpt::ImageName name = {image.dir, KeyOf(image.image), static_cast<int32_t>(RankOf(image))};
    // Of a step that was saved twice the same one as ranks here are given (NodePages::Images).
    const ckpt::LentImage as = {image.path, image.image.bytes, image.image.crc32};
    if (image.committed) lent.insert_or_assign(name, as);
    lent.try_emplace(name, as);
  }
  return lent;
}

FetchedFiles FetchAll(const FetchJob& job, const Fd& stop) {
  FetchedFiles fetched;
  if (!stop.valid()) fetched.error = "there is no descriptor for a way to give it up";
  if (!fetched.error.empty()) return fetched;
  for (const v1::ImageElsewhere& elsewhere : job.order.restore().elsewhere()) {
    const std::optional<ckpt::ByteRanges> parts = PartsOf(job.parts, elsewhere.rank());
    const auto begun = job.begun.find(elsewhere.rank());
    const bool goes_on = parts && begun != job.begun.end();
    const std::string path =
        goes_on ? begun->second : fmt::format("{}/{}.{}", job.folder, job.number, elsewhere.rank());
    const Status read = FetchOne(job, elsewhere, {path, goes_on}, parts, stop);
    if (read.ok()) {
      fetched.files[elsewhere.rank()] = {path, parts};
      continue;
    }
    // Random numbers and the like, which ranks of a larger world have not either.
    const bool is_nobodys = job.form.own == FileNeed::kNobody && elsewhere.rank() != ckpt::kMainRank;
    const bool can_do_without = job.ahead || is_nobodys;
    if (can_do_without && !absl::IsCancelled(read)) continue;
    if (job.ahead) break;
    for (const auto& [rank, file] : std::exchange(fetched.files, {})) {
      if (!job.begun.contains(rank) || job.begun.at(rank) != file.path) unlink(file.path.c_str());
    }
    fetched.error = Message(read);
    break;
  }
  return fetched;
}

ImageExchange::~ImageExchange() { OnRound(); }

StatusOr<std::optional<v1::ImageSource>> ImageExchange::Lend(ckpt::LentImages images) {
  // A look at memory may end behind a commit, from when on these are written over.
  std::erase_if(images, [this](const auto& image) { return committed_.contains(image.first.dir); });
  if (images.empty() || address_.empty()) {
    if (server_) server_->Lend({});
    return std::nullopt;
  }
  if (!server_) {
    PHX_ASSIGN_OR_RETURN(server_, ckpt::ImageServer::Start(address_, ports_));
  }
  server_->Lend(std::move(images));
  v1::ImageSource source;
  source.set_address(address_);
  source.set_port(server_->port());
  source.set_key(std::string(server_->key().begin(), server_->key().end()));
  return source;
}

void ImageExchange::OnRound() {
  Fire(stop_);
  Fire(ahead_stop_);
  for (const auto& [dir, kept] : std::exchange(kept_, {})) Remove(kept);
  committed_.clear();
}

void ImageExchange::StopAhead() { Fire(ahead_stop_); }

void ImageExchange::Forget(const std::string& dir) {
  const auto kept = kept_.extract(dir);
  if (!kept.empty()) Remove(kept.mapped());
}

void ImageExchange::OnCommitted(const std::string& dir, const SaveKey& save) {
  if (server_) server_->Withdraw(dir);
  committed_[dir] = save;
  const auto kept = kept_.find(dir);
  if (kept == kept_.end() || kept->second.save >= save) return;
  Remove(kept->second);
  kept_.erase(kept);
}

void ImageExchange::Keep(const std::string& dir, const SaveKey& save, const std::map<int32_t, FetchedFile>& files) {
  if (const auto newer = committed_.find(dir); newer != committed_.end() && save < newer->second) {
    return Remove({save, files, {}});  // it ended behind the commit
  }
  Kept& kept = kept_[dir];
  if (kept.save != save) Remove(std::exchange(kept, {save, {}, {}}));
  for (const auto& [rank, file] : files) {
    const auto [had, is_new] = kept.files.try_emplace(rank, file);
    if (is_new) continue;
    FetchedFile& old = had->second;
    if (old.path == file.path) {
      old.parts->Add(*file.parts);  // a file of parts that has some more now
    } else if (!old.parts) {
      unlink(file.path.c_str());
    } else {
      kept.replaced.push_back(std::exchange(old, file).path);  // ranks may be about to open it
    }
  }
}

const ImageExchange::Kept* ImageExchange::KeptOf(const std::string& dir, const SaveKey& save) const {
  const auto kept = kept_.find(dir);
  return kept != kept_.end() && kept->second.save == save ? &kept->second : nullptr;
}

FetchedImages ImageExchange::WholeOf(const std::string& dir, const SaveKey& save) const {
  FetchedImages whole;
  const Kept* const kept = KeptOf(dir, save);
  if (kept == nullptr) return whole;
  for (const auto& [rank, file] : kept->files) {
    if (!file.parts) whole[rank] = file.path;
  }
  return whole;
}

std::string ImageExchange::Find(const std::string& dir, const SaveKey& save, uint32_t rank,
                                const ckpt::ByteRanges& ranges) const {
  const Kept* const kept = KeptOf(dir, save);
  if (kept == nullptr) return "";
  const FetchedFile* const file = kept->Of(static_cast<int32_t>(rank));
  if (file == nullptr) return "";
  const bool has_all = !file->parts || (!ranges.empty() && ranges.Without(*file->parts).empty());
  return has_all ? file->path : "";
}

FetchJob ImageExchange::WithoutKept(const v1::CheckpointOrder& order, const ImageParts& parts) const {
  FetchJob job;
  job.order = order;
  job.order.mutable_restore()->clear_elsewhere();
  const Kept* const kept = KeptOf(order.dir(), KeyOf(order.save()));
  for (const v1::ImageElsewhere& each : order.restore().elsewhere()) {
    std::optional<ckpt::ByteRanges> wanted = PartsOf(parts, each.rank());
    const FetchedFile* const had = kept == nullptr ? nullptr : kept->Of(each.rank());
    if (had != nullptr && !had->parts) continue;
    if (had != nullptr && wanted) {
      wanted = wanted->Without(*had->parts);
      if (wanted->empty()) continue;
      job.begun[each.rank()] = had->path;
    }
    *job.order.mutable_restore()->add_elsewhere() = each;
    if (wanted) job.parts[static_cast<uint32_t>(each.rank())] = *std::move(wanted);
  }
  return job;
}

// Whoever has it mapped keeps it.
void ImageExchange::Remove(const Kept& kept) {
  for (const auto& [rank, file] : kept.files) unlink(file.path.c_str());
  for (const std::string& path : kept.replaced) unlink(path.c_str());
}

}  // namespace phalanx::agent

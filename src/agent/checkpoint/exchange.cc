#include "agent/checkpoint/exchange.h"

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "checkpoint/disk/manifest.h"
#include "checkpoint/memory/memory.h"
#include "checkpoint/remote/image_fetch.h"

namespace phalanx::agent {

namespace ckpt = phalanx::checkpoint;

namespace {

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

Status FetchOne(const v1::CheckpointOrder& order, const v1::ImageElsewhere& elsewhere, const std::string& folder,
                const std::string& path, const Fd& stop) {
  std::vector<ckpt::ImageSource> sources;
  Status wrong = absl::OkStatus();
  for (const v1::ImageSource& wire : elsewhere.sources()) {
    StatusOr<ckpt::ImageSource> source = SourceOf(wire);
    wrong.Update(source.status());
    if (source.ok()) sources.push_back(*std::move(source));
  }
  if (sources.empty() && !wrong.ok()) return wrong;
  return ckpt::FetchImage({order.dir(), KeyOf(order.save()), elsewhere.rank()}, std::move(sources), path,
                          ckpt::FreeMemoryBytes(folder), stop.get());
}

}  // namespace

ckpt::LentImages ToLend(const std::vector<ReadImage>& images) {
  ckpt::LentImages lent;
  for (const auto& [image, wrong] : images) {
    if (!wrong.empty()) continue;
    const ckpt::ImageName name = {image.dir, KeyOf(image.image), static_cast<int32_t>(RankOf(image))};
    lent[name] = {image.path, image.image.bytes, image.image.crc32};
  }
  return lent;
}

FetchedFiles FetchAll(const v1::CheckpointOrder& order, const SaveForm& form, const std::string& folder, uint64_t number,
                      const Fd& stop) {
  FetchedFiles fetched;
  if (!stop.valid()) fetched.error = "there is no descriptor for a way to give it up";
  if (!fetched.error.empty()) return fetched;
  for (const v1::ImageElsewhere& elsewhere : order.restore().elsewhere()) {
    const std::string path = fmt::format("{}/{}.{}", folder, number, elsewhere.rank());
    const Status read = FetchOne(order, elsewhere, folder, path, stop);
    if (read.ok()) {
      fetched.files[elsewhere.rank()] = path;
      continue;
    }
    // Random numbers and the like, which ranks of a larger world have not either.
    const bool can_do_without = form.own == FileNeed::kNobody && elsewhere.rank() != ckpt::kMainRank;
    if (can_do_without && !absl::IsCancelled(read)) continue;
    for (const auto& [rank, file] : std::exchange(fetched.files, {})) unlink(file.c_str());
    fetched.error = Message(read);
    break;
  }
  return fetched;
}

ImageExchange::~ImageExchange() { OnRound(); }

StatusOr<std::optional<v1::ImageSource>> ImageExchange::Lend(ckpt::LentImages images) {
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
  if (stop_) {
    const uint64_t one = 1;
    // A counter that has room for it: it cannot fail.
    static_cast<void>(write(stop_->get(), &one, sizeof one) == 0);
  }
  stop_ = std::make_shared<const Fd>(eventfd(0, EFD_CLOEXEC));
  for (const auto& [dir, kept] : std::exchange(kept_, {})) Remove(kept.files);
}

void ImageExchange::OnCommitted(const std::string& dir, const SaveKey& save) {
  if (server_) server_->Withdraw(dir);
  const auto kept = kept_.find(dir);
  if (kept == kept_.end() || kept->second.save >= save) return;
  Remove(kept->second.files);
  kept_.erase(kept);
}

void ImageExchange::Keep(const std::string& dir, const SaveKey& save, const FetchedImages& files) {
  Kept& kept = kept_[dir];
  if (kept.save != save) Remove(std::exchange(kept, {save, {}}).files);
  for (const auto& [rank, path] : files) {
    const bool is_new = kept.files.try_emplace(rank, path).second;
    if (!is_new) unlink(path.c_str());
  }
}

FetchedImages ImageExchange::Of(const std::string& dir, const SaveKey& save) const {
  const auto kept = kept_.find(dir);
  return kept != kept_.end() && kept->second.save == save ? kept->second.files : FetchedImages();
}

v1::CheckpointOrder ImageExchange::WithoutKept(const v1::CheckpointOrder& order) const {
  const FetchedImages files = Of(order.dir(), KeyOf(order.save()));
  v1::CheckpointOrder rest = order;
  rest.mutable_restore()->clear_elsewhere();
  for (const v1::ImageElsewhere& each : order.restore().elsewhere()) {
    if (!files.contains(each.rank())) *rest.mutable_restore()->add_elsewhere() = each;
  }
  return rest;
}

// Whoever has it mapped keeps it.
void ImageExchange::Remove(const FetchedImages& files) {
  for (const auto& [rank, path] : files) unlink(path.c_str());
}

}  // namespace phalanx::agent

#include "checkpoint/storage/files_of.h"

#include <fmt/format.h>

#include "checkpoint/files/files.h"
#include "checkpoint/image/file_table.h"
#include "checkpoint/image/safetensors.h"

namespace phalanx::checkpoint {
namespace {

// The table alone is read: the rest when it is written.
StatusOr<std::vector<FileToPut>> FilesIn(const ImageToStore& image) {
  PHX_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(image.path));
  std::vector<FileOfImage> files;
  const std::string why = ParseFileTable(file.data(), std::min(file.bytes(), image.bytes), &files);
  if (!why.empty()) return absl::DataLossError(fmt::format("{}: {}", image.path, why));
  std::vector<FileToPut> to_put;
  for (FileOfImage& each : files) {
    if (each.copied_elsewhere) continue;
    to_put.push_back({.source = image.path,
                      .name = std::move(each.name),
                      .rank = image.rank,
                      .bytes = each.bytes,
                      .crc32 = each.crc32,
                      .needed_by = image.form.own,
                      .offset = each.offset});
  }
  return to_put;
}

}  // namespace

const char* LayoutOf(const ImageToStore& image) {
  if (image.form.several) return kFilesLayout;
  if (image.form.own == FileNeed::kAnyRank) return kDcpLayout;
  const StatusOr<MappedFile> file = MappedFile::Open(image.path);
  return file.ok() && IsSafetensors(file->data(), file->bytes()) ? kNamedLayout : kTorchLayout;
}

StatusOr<std::vector<FileToPut>> FilesOf(const ImageToStore& image) {
  const bool is_shared = image.rank == kMainRank;
  if (image.form.several && is_shared) return std::vector<FileToPut>();  // the manifest says who has which
  if (image.form.several) return FilesIn(image);
  FileToPut file;
  file.source = image.path;
  file.name = ShardName(LayoutOf(image), image.rank);
  file.rank = image.rank;
  file.bytes = image.bytes;
  file.crc32 = image.crc32;
  file.needed_by = is_shared ? FileNeed::kEveryRank : image.form.own;
  return std::vector<FileToPut>{std::move(file)};
}

StatusOr<std::vector<Shard>> PutFiles(Storage& storage, const std::string& step, const std::vector<FileToPut>& files) {
  std::vector<Shard> shards;
  for (const FileToPut& file : files) {
    PHX_ASSIGN_OR_RETURN(Shard shard, storage.Put(step, file));
    shards.push_back(std::move(shard));
  }
  return shards;
}

StatusOr<std::vector<Shard>> PutImage(Storage& storage, const std::string& step, const ImageToStore& image) {
  PHX_ASSIGN_OR_RETURN(const std::vector<FileToPut> files, FilesOf(image));
  return PutFiles(storage, step, files);
}

}  // namespace phalanx::checkpoint

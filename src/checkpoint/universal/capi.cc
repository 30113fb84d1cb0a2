#include "checkpoint/universal/capi.h"

#include <string>
#include <vector>

#include "base/error_text.h"
#include "checkpoint/universal/publish.h"
#include "checkpoint/universal/write_files.h"

using phalanx::universal::Error;
using phalanx::universal::File;
using phalanx::universal::Record;

namespace {

int Fail(const Error& why, char* error, size_t error_size) {
  phalanx::PutErrorText(why.message, error, error_size);
  return -1;
}

File FileOf(const phx_universal_file& from) {
  File file;
  file.name = from.name;
  file.link = from.link;
  file.zipped = from.pickle != nullptr;
  file.pickle = {static_cast<const char*>(from.pickle), from.pickle_bytes};
  const phx_universal_piece* piece = from.pieces;
  for (uint64_t i = 0; i < from.record_count; ++i) {
    Record record;
    for (uint64_t n = 0; n < from.piece_counts[i]; ++n, ++piece) record.push_back({piece->at, piece->bytes});
    file.records.push_back(std::move(record));
  }
  if (!file.zipped) file.records.resize(1);
  return file;
}

}  // namespace

uint32_t phx_universal_abi_version() { return 1; }

int phx_universal_write(const char* folder, const phx_universal_file* files, uint64_t count, int threads,
                        phx_universal_written* written, char* error, size_t error_size) {
  std::vector<File> to_write;
  for (uint64_t i = 0; i < count; ++i) to_write.push_back(FileOf(files[i]));
  const auto done = phalanx::universal::WriteFiles(folder, to_write, threads);
  if (!done.ok()) return Fail(done.error(), error, error_size);
  for (uint64_t i = 0; i < count; ++i) written[i] = {(*done)[i].bytes, (*done)[i].crc32, 0};
  return 0;
}

int phx_universal_publish(const phx_universal_publication* publication, char* error, size_t error_size) {
  const auto done =
      phalanx::universal::Publish({publication->draft,
                                   publication->target,
                                   publication->manifest_name,
                                   {static_cast<const char*>(publication->manifest), publication->manifest_bytes},
                                   publication->tracker_name == nullptr ? std::string() : publication->tracker_name});
  return done.ok() ? 0 : Fail(done.error(), error, error_size);
}

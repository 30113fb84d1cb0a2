#include "data/capi.h"

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "base/error_text.h"
#include "data/join.h"
#include "data/verify.h"

using phalanx::data::CheckPart;
using phalanx::data::Error;
using phalanx::data::Join;
using phalanx::data::JoinCounts;
using phalanx::data::Joined;
using phalanx::data::JoinSpec;
using phalanx::data::Layout;
using phalanx::data::OpenPart;
using phalanx::data::PartHeader;
using phalanx::data::Result;
using phalanx::data::Source;

struct phx_data_join {
  Joined joined;
};

namespace {

int Fail(const Error& why, char* error, size_t error_size) {
  phalanx::PutErrorText(why.message, error, error_size);
  return -1;
}

phx_data_counts CountsOf(const JoinCounts& counts) {
  return {counts.documents, counts.sequences, counts.tokens,    counts.bin_bytes,
          counts.idx_bytes, counts.bin_crc32, counts.idx_crc32, static_cast<uint32_t>(counts.dtype)};
}

Result<Joined> JoinParts(const phx_data_join_spec& from) {
  JoinSpec spec;
  spec.prefix = from.prefix;
  spec.layout = from.layout == PHX_DATA_LAZY ? Layout::kLazy : Layout::kMmap;
  spec.replace = from.replace != 0;
  spec.progress = {from.progress, from.user};
  for (uint64_t i = 0; i < from.part_count; ++i) {
    PHX_TRY(Source source, OpenPart(from.parts[i]));
    spec.sources.push_back(std::move(source));
  }
  return Join(spec);
}

Result<Source> CheckedPart(const char* path) {
  PHX_TRY(Source part, OpenPart(path));
  PHX_TRY_DONE(CheckPart(part));
  return part;
}

}  // namespace

uint32_t phx_data_abi_version() { return 1; }

phx_data_join* phx_data_join_parts(const phx_data_join_spec* spec, phx_data_counts* counts, char* error,
                                   size_t error_size) {
  Result<Joined> joined = JoinParts(*spec);
  if (!joined.ok()) {
    Fail(joined.error(), error, error_size);
    return nullptr;
  }
  *counts = CountsOf(joined->counts());
  return new phx_data_join{*std::move(joined)};
}

int phx_data_publish(phx_data_join* join, const void* sidecar, uint64_t sidecar_bytes, char* error, size_t error_size) {
  const auto done = join->joined.Publish({static_cast<const char*>(sidecar), sidecar_bytes});
  return done.ok() ? 0 : Fail(done.error(), error, error_size);
}

void phx_data_close(phx_data_join* join) { delete join; }

int phx_data_part_check(const char* path, phx_data_part* part, char* error, size_t error_size) {
  const Result<Source> source = CheckedPart(path);
  if (!source.ok()) return Fail(source.error(), error, error_size);
  const PartHeader& header = *source->part;
  *part = {header.number,    header.parts,       {},
           header.documents, header.sequences,   header.tokens,
           NotesAt(header),  header.notes_bytes, static_cast<uint32_t>(header.dtype)};
  std::memcpy(part->fingerprint, header.fingerprint.data(), header.fingerprint.size());
  return 0;
}

int phx_data_check(const char* prefix, phx_data_counts* counts, char* error, size_t error_size) {
  const Result<JoinCounts> checked = phalanx::data::CheckDataset(prefix);
  if (!checked.ok()) return Fail(checked.error(), error, error_size);
  *counts = CountsOf(*checked);
  return 0;
}

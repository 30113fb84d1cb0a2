#include "data/join.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/crc/crc32.h"
#include "data/in_file.h"
#include "data/index_writer.h"

namespace phalanx::data {
namespace {

// What stays in a core's cache between read, CRC and write. Blocks of 1 MiB took five times as long in
// bench/data_merge.py, and copy_file_range would leave the CRC to be read for.
constexpr uint64_t kBlockBytes = uint64_t{128} << 10;

bool IsThere(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

Result<Done> Remove(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return Done{};
  return CallFailed(path, "unlink", errno);
}

// Tells how far all of it is.
class Teller {
 public:
  Teller(const Progress& progress, uint64_t all_bytes) : progress_(progress), all_bytes_(all_bytes) {}

  Result<Done> Tell(uint64_t more_bytes) {
    done_bytes_ += more_bytes;
    if (progress_.report == nullptr || progress_.report(progress_.user, done_bytes_, all_bytes_) == 0) return Done{};
    return Error{"stopped, as was asked for, after " + std::to_string(done_bytes_) + " of " +
                 std::to_string(all_bytes_) + " bytes"};
  }

 private:
  const Progress& progress_;
  uint64_t all_bytes_;
  uint64_t done_bytes_ = 0;
};

Result<Done> CopyTokens(const Source& source, std::vector<char>& block, OutFile& out, Teller& teller) {
  PHX_TRY(const InFile file, InFile::Open(source.tokens_path));
  uint32_t crc = 0;
  Crc32Joiner joiner;
  uint64_t at = source.tokens_at;
  for (uint64_t left = source.token_bytes(); left > 0;) {
    const uint64_t piece = std::min<uint64_t>(left, block.size());
    PHX_TRY_DONE(file.Read(at, block.data(), piece));
    const uint32_t piece_crc = Crc32(0, block.data(), piece);
    crc = joiner.Join(crc, piece_crc, piece);
    PHX_TRY_DONE(out.Write(block.data(), piece, piece_crc));
    PHX_TRY_DONE(teller.Tell(piece));
    at += piece;
    left -= piece;
  }
  if (!source.tokens_crc32 || crc == *source.tokens_crc32) return Done{};
  return file.Wrong("its tokens are damaged: their CRC differs from what was written down when they were made");
}

Result<Done> CopyAllTokens(const JoinSpec& spec, const JoinPlan& plan, OutFile& out) {
  PHX_TRY_DONE(out.Reserve(plan.bin_bytes));
  std::vector<char> block(std::min(kBlockBytes, std::max<uint64_t>(plan.bin_bytes, 1)));
  Teller teller(spec.progress, plan.bin_bytes);
  for (const Source& source : spec.sources) PHX_TRY_DONE(CopyTokens(source, block, out, teller));
  return Done{};
}

Error Inside(const JoinSpec& spec, const Error& error) { return {"joining " + spec.prefix + ": " + error.message}; }

}  // namespace

Result<Joined> Join(const JoinSpec& spec) {
  if (!spec.replace && IsThere(IndexPath(spec.prefix))) {
    return Error{IndexPath(spec.prefix) + " is there already"};
  }
  const Result<JoinPlan> plan = PlanJoin(spec.sources, spec.layout);
  if (!plan.ok()) return Inside(spec, plan.error());
  PHX_TRY(OutFile bin, OutFile::Create(BinPath(spec.prefix)));
  PHX_TRY(OutFile idx, OutFile::Create(IndexPath(spec.prefix)));
  for (const Source& source : spec.sources) PHX_TRY_DONE(CheckTables(source));
  PHX_TRY_DONE(CopyAllTokens(spec, *plan, bin));
  PHX_TRY_DONE(idx.Reserve(IndexBytes(plan->index)));
  PHX_TRY_DONE(WriteIndex(spec.sources, *plan, idx));
  PHX_TRY_DONE(bin.Sync());
  PHX_TRY_DONE(idx.Sync());
  const JoinCounts counts{plan->index.dtype, plan->index.documents, plan->index.sequences, plan->tokens,
                          bin.bytes(),       idx.bytes(),           bin.crc32(),           idx.crc32()};
  return Joined(spec.prefix, counts, std::move(bin), std::move(idx));
}

Result<Done> Joined::Publish(std::string_view sidecar) {
  PHX_TRY(OutFile json, OutFile::Create(SidecarPath(prefix_)));
  PHX_TRY_DONE(json.Write(sidecar.data(), sidecar.size()));
  PHX_TRY_DONE(json.Sync());
  PHX_TRY_DONE(Remove(IndexPath(prefix_)));
  PHX_TRY_DONE(Remove(SidecarPath(prefix_)));
  PHX_TRY_DONE(SyncFolderOf(prefix_));
  PHX_TRY_DONE(bin_.Place());
  PHX_TRY_DONE(json.Place());
  PHX_TRY_DONE(idx_.Place());
  return SyncFolderOf(prefix_);
}

}  // namespace phalanx::data

#include "cli/dataset.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

#include "checkpoint/files/files.h"
#include "data/table_reader.h"

namespace phalanx::cli {
namespace {

constexpr std::string_view kPartSuffix = ".part";

bool IsFolder(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

StatusOr<std::optional<data::Sidecar>> ReadSidecar(const std::string& prefix) {
  const std::string path = data::SidecarPath(prefix);
  const StatusOr<std::string> text = ReadFile(path, data::kMaxSidecarBytes);
  if (absl::IsNotFound(text.status())) return std::optional<data::Sidecar>();
  if (!text.ok()) return text.status();
  StatusOr<data::Sidecar> sidecar = data::ParseSidecar(*text);
  if (!sidecar.ok()) return WithContext(sidecar.status(), path);
  return std::optional<data::Sidecar>(*std::move(sidecar));
}

StatusOr<Dataset> OpenPartAt(const std::string& path) {
  data::Result<data::Source> part = data::OpenPart(path);
  if (!part.ok()) return StatusOf(part.error());
  return Dataset{path, *std::move(part), std::nullopt};
}

StatusOr<std::vector<Dataset>> OpenParts(const std::string& folder) {
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, checkpoint::ListFolder(folder));
  std::vector<Dataset> parts;
  for (const std::string& name : names) {
    if (!name.ends_with(kPartSuffix)) continue;
    PHX_ASSIGN_OR_RETURN(Dataset part, OpenPartAt(fmt::format("{}/{}", folder, name)));
    parts.push_back(std::move(part));
  }
  if (parts.empty()) return absl::NotFoundError(fmt::format("{}: no parts (*.part) lie in this folder", folder));
  // Numbers of more digits than the others stand behind them, whatever their first digit is.
  std::ranges::sort(parts, {}, [](const Dataset& part) { return part.source.part->number; });
  return parts;
}

}  // namespace

Status StatusOf(const data::Error& error) { return absl::DataLossError(error.message); }

std::string PrefixOf(const std::string& given) {
  for (const std::string_view suffix : {".bin", ".idx", ".json"}) {
    if (given.ends_with(suffix)) return given.substr(0, given.size() - suffix.size());
  }
  return given;
}

StatusOr<Dataset> OpenWithSidecar(const std::string& prefix) {
  data::Result<data::Source> source = data::OpenDataset(prefix);
  if (!source.ok()) return StatusOf(source.error());
  Dataset dataset{prefix, *std::move(source), std::nullopt};
  PHX_ASSIGN_OR_RETURN(dataset.sidecar, ReadSidecar(prefix));
  if (!dataset.sidecar) return dataset;
  const data::JoinCounts found{dataset.source.dtype,         dataset.source.documents,
                               dataset.source.sequences,     dataset.source.tokens,
                               dataset.source.token_bytes(), data::IndexBytes(*dataset.source.index)};
  const std::vector<std::string> why =
      data::Contradictions(*dataset.sidecar, dataset.source.index->layout, found, false);
  if (!why.empty()) return absl::DataLossError(fmt::format("{}: {}", data::SidecarPath(prefix), why.front()));
  dataset.source.tokens_crc32 = dataset.sidecar->counts.bin_crc32;
  return dataset;
}

StatusOr<std::vector<Dataset>> OpenInput(const std::string& input) {
  if (IsFolder(input)) return OpenParts(input);
  StatusOr<Dataset> dataset = input.ends_with(kPartSuffix) ? OpenPartAt(input) : OpenWithSidecar(PrefixOf(input));
  if (!dataset.ok()) return dataset.status();
  std::vector<Dataset> one;
  one.push_back(*std::move(dataset));
  return one;
}

StatusOr<DocumentReader> DocumentReader::Of(const data::Source& dataset, uint64_t max_tokens) {
  data::Result<data::InFile> bin = data::InFile::Open(dataset.tokens_path);
  if (!bin.ok()) return StatusOf(bin.error());
  data::Result<data::InFile> idx = data::InFile::Open(dataset.tables_path);
  if (!idx.ok()) return StatusOf(idx.error());
  return DocumentReader(dataset, max_tokens, *std::move(bin), *std::move(idx));
}

StatusOr<Document> DocumentReader::Read(uint64_t document) const {
  data::Result<Document> read = Get(document);
  if (!read.ok()) return StatusOf(read.error());
  return *std::move(read);
}

data::Result<int64_t> DocumentReader::Number(const data::Table& table, uint64_t i) const {
  data::TableReader reader(idx_, {table.at + i * table.element_bytes, 1, table.element_bytes});
  PHX_TRY(const std::span<const int64_t> number, reader.Next());
  return number[0];
}

data::Result<Document> DocumentReader::Get(uint64_t document) const {
  const data::Table boundaries = data::Boundaries(*dataset_.index);
  const uint64_t unit = dataset_.index->layout == data::Layout::kMmap ? 1 : BytesOf(dataset_.dtype);
  PHX_TRY(const int64_t first, Number(boundaries, document));
  PHX_TRY(const int64_t end, Number(boundaries, document + 1));
  if (first < 0 || end < first || static_cast<uint64_t>(end) > dataset_.sequences) {
    return idx_.Wrong(fmt::format("document {} is said to be the sequences {} to {}", document, first, end));
  }
  Document out;
  uint64_t room = max_tokens_;
  for (int64_t i = first; i < end; ++i) {
    PHX_TRY(const int64_t length, Number(dataset_.lengths, static_cast<uint64_t>(i)));
    PHX_TRY(const int64_t offset, Number(data::Offsets(*dataset_.index), static_cast<uint64_t>(i)));
    const auto tokens = static_cast<uint64_t>(length);
    const uint64_t at = static_cast<uint64_t>(offset) * unit;
    if (tokens > dataset_.tokens || at > bin_.bytes() || tokens * BytesOf(dataset_.dtype) > bin_.bytes() - at) {
      return idx_.Wrong(fmt::format("sequence {}, {} tokens at byte {}, does not lie within {}", i, length, at,
                                    dataset_.tokens_path));
    }
    out.tokens += tokens;
    const uint64_t shown = std::min(room, tokens);
    room -= shown;
    std::vector<uint8_t> raw(shown * BytesOf(dataset_.dtype));
    PHX_TRY_DONE(bin_.Read(at, raw.data(), raw.size()));
    std::vector<int64_t>& numbers = out.sequences.emplace_back(shown);
    for (uint64_t k = 0; k < shown; ++k) {
      numbers[k] = LoadToken(dataset_.dtype, raw.data() + k * BytesOf(dataset_.dtype));
    }
  }
  return out;
}

}  // namespace phalanx::cli

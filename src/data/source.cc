#include "data/source.h"

#include <algorithm>
#include <vector>

#include "data/bytes.h"
#include "data/table_reader.h"

namespace phalanx::data {
namespace {

std::string Text(int64_t number) { return std::to_string(number); }
std::string Text(uint64_t number) { return std::to_string(number); }

Result<std::vector<uint8_t>> Begin(const InFile& file, uint64_t bytes) {
  std::vector<uint8_t> begin(std::min(bytes, file.bytes()));
  PHX_TRY_DONE(file.Read(0, begin.data(), begin.size()));
  return begin;
}

// Where `.idx` says that sequences begin, against their lengths.
class OffsetCheck {
 public:
  OffsetCheck(const InFile& file, const IndexHeader& header)
      : file_(file),
        unit_(header.layout == Layout::kMmap ? BytesOf(header.dtype) : 1),
        reader_(file, Offsets(header)) {}

  Result<Done> Check(uint64_t sequence, uint64_t tokens_before) {
    if (next_ == chunk_.size()) {
      PHX_TRY(chunk_, reader_.Next());
      next_ = 0;
    }
    const int64_t offset = chunk_[next_++];
    if (offset == static_cast<int64_t>(tokens_before * unit_)) return Done{};
    return file_.Wrong("sequence " + Text(sequence) + " is said to begin at " + (unit_ == 1 ? "token " : "byte ") +
                       Text(offset) + ", but those before it end at " + Text(tokens_before * unit_));
  }

 private:
  const InFile& file_;
  uint64_t unit_;
  TableReader reader_;
  std::span<const int64_t> chunk_;
  size_t next_ = 0;
};

Error WrongTokens(const Source& source, uint64_t tokens) {
  const std::string sum = "the sequences of " + source.tables_path + " add up to " + Text(tokens) + " tokens, but ";
  if (source.part) return {sum + "its header says " + Text(source.tokens)};
  return {sum + source.tokens_path + " has " + Text(source.tokens) +
          ": the two files do not belong together, or one is damaged"};
}

Result<Done> CheckLengths(const Source& source, const InFile& tables) {
  std::optional<OffsetCheck> offsets;
  if (source.index) offsets.emplace(tables, *source.index);
  uint64_t tokens = 0;
  const auto check = [&](uint64_t i, int64_t length) -> Result<Done> {
    if (length < 0) return tables.Wrong("sequence " + Text(i) + " has a length of " + Text(length));
    if (offsets) PHX_TRY_DONE(offsets->Check(i, tokens));
    tokens += static_cast<uint64_t>(length);
    if (tokens > source.tokens) {
      return Error{tables.path() + ": sequence " + Text(i) + " ends at token " + Text(tokens) + ", but " +
                   source.tokens_path + " has " + Text(source.tokens)};
    }
    return Done{};
  };
  PHX_TRY_DONE(ForEach(tables, source.lengths, check));
  if (tokens != source.tokens) return WrongTokens(source, tokens);
  if (offsets && source.index->layout == Layout::kLazy) return offsets->Check(source.sequences, tokens);
  return Done{};
}

Result<Done> CheckEnds(const Source& source, const InFile& tables) {
  int64_t before = 0;
  const auto check = [&](uint64_t i, int64_t end) -> Result<Done> {
    if (end < before) {
      return tables.Wrong("document " + Text(i) + " ends at sequence " + Text(end) + ", before it begins at " +
                          Text(before));
    }
    before = end;
    return Done{};
  };
  PHX_TRY_DONE(ForEach(tables, source.ends, check));
  if (static_cast<uint64_t>(before) == source.sequences) return Done{};
  return tables.Wrong("the last document ends at sequence " + Text(before) + ", but there are " +
                      Text(source.sequences));
}

// The tables that an index has and a part has not.
Result<Done> CheckIndexOnly(const IndexHeader& header, const InFile& tables) {
  Table first = Boundaries(header);
  first.count = 1;
  const auto check = [&](uint64_t, int64_t boundary) -> Result<Done> {
    if (boundary == 0) return Done{};
    return tables.Wrong("the first document begins at sequence " + Text(boundary) + " instead of 0");
  };
  PHX_TRY_DONE(ForEach(tables, first, check));
  return ForEach(tables, Dimensions(header), [&](uint64_t i, int64_t dimension) -> Result<Done> {
    if (dimension == static_cast<int64_t>(i)) return Done{};
    return tables.Wrong("dimension offset " + Text(i) + " is " + Text(dimension) +
                        ", as if sequences had several dimensions");
  });
}

Result<Done> CheckTablesCrc(const PartHeader& part, const InFile& tables) {
  const uint64_t at = TablesAt(part);
  PHX_TRY(const uint32_t crc, tables.Crc(at, tables.bytes() - at));
  if (crc == part.tables_crc32) return Done{};
  return tables.Wrong("its tables are damaged: their CRC differs from the header's");
}

}  // namespace

std::string BinPath(const std::string& prefix) { return prefix + ".bin"; }
std::string IndexPath(const std::string& prefix) { return prefix + ".idx"; }
std::string SidecarPath(const std::string& prefix) { return prefix + ".json"; }

Result<Source> OpenPart(const std::string& path) {
  PHX_TRY(const InFile file, InFile::Open(path));
  return PartIn(file);
}

Result<Source> OpenDataset(const std::string& prefix) {
  PHX_TRY(const InFile index, InFile::Open(IndexPath(prefix)));
  PHX_TRY(const InFile bin, InFile::Open(BinPath(prefix)));
  return DatasetIn(index, bin);
}

Result<Source> PartIn(const InFile& file) {
  PHX_TRY(const std::vector<uint8_t> begin, Begin(file, kPartHeaderBytes));
  const Result<PartHeader> header = ParsePartHeader(begin.data(), begin.size(), file.bytes());
  if (!header.ok()) return file.Wrong(header.error().message);
  Source source;
  source.tokens_path = source.tables_path = file.path();
  source.dtype = header->dtype;
  source.tokens_at = kPartHeaderBytes;
  source.tokens = header->tokens;
  source.sequences = header->sequences;
  source.documents = header->documents;
  source.lengths = Lengths(*header);
  source.ends = DocumentEnds(*header);
  source.tokens_crc32 = header->tokens_crc32;
  source.part = *header;
  return source;
}

Result<Source> DatasetIn(const InFile& index, const InFile& bin) {
  PHX_TRY(const std::vector<uint8_t> begin, Begin(index, kMaxIndexHeaderBytes));
  const Result<IndexHeader> header = ParseIndexHeader(begin.data(), begin.size(), index.bytes());
  if (!header.ok()) return index.Wrong(header.error().message);
  if (bin.bytes() % BytesOf(header->dtype) != 0) {
    return bin.Wrong("it has " + Text(bin.bytes()) + " bytes, which are no whole tokens of " +
                     Text(BytesOf(header->dtype)) + " bytes (" + NameOf(header->dtype) + ")");
  }
  Source source;
  source.tokens_path = bin.path();
  source.tables_path = index.path();
  source.dtype = header->dtype;
  source.tokens = bin.bytes() / BytesOf(header->dtype);
  source.sequences = header->sequences;
  source.documents = header->documents;
  source.lengths = Lengths(*header);
  const Table boundaries = Boundaries(*header);
  source.ends = {boundaries.at + 8, boundaries.count - 1, 8};
  source.modes = Modes(*header);
  source.index = *header;
  return source;
}

Result<Done> CheckTables(const Source& source) {
  PHX_TRY(const InFile tables, InFile::Open(source.tables_path));
  return CheckTables(source, tables);
}

Result<Done> CheckTables(const Source& source, const InFile& tables) {
  if (source.part) PHX_TRY_DONE(CheckTablesCrc(*source.part, tables));
  if (source.index) PHX_TRY_DONE(CheckIndexOnly(*source.index, tables));
  PHX_TRY_DONE(CheckLengths(source, tables));
  return CheckEnds(source, tables);
}

Result<Done> CheckPart(const Source& part) {
  PHX_TRY(const InFile file, InFile::Open(part.tables_path));
  PHX_TRY_DONE(CheckTables(part, file));
  PHX_TRY(const uint32_t crc, file.Crc(part.tokens_at, part.token_bytes()));
  if (crc == part.part->tokens_crc32) return Done{};
  return file.Wrong("its tokens are damaged: their CRC differs from the header's");
}

}  // namespace phalanx::data

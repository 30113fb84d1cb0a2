#include "data/index.h"

#include <cstring>
#include <string_view>

#include "data/bytes.h"

namespace phalanx::data {
namespace {

constexpr std::string_view kMmapMagic("MMIDIDX\0\0", 9);
constexpr std::string_view kLazyMagic("TNTIDX\0\0", 8);
constexpr uint64_t kVersion = 1;
constexpr uint64_t kMmapHeaderBytes = 34;
constexpr uint64_t kLazyHeaderBytes = 56;

bool BeginsWith(const void* begin, uint64_t bytes, std::string_view magic) {
  return bytes >= magic.size() && std::memcmp(begin, magic.data(), magic.size()) == 0;
}

// The length of the file, without modes.
Sum TableBytes(const IndexHeader& header) {
  if (header.layout == Layout::kMmap) {
    return Sum().Add(kMmapHeaderBytes).AddProduct(header.sequences, 12).AddProduct(header.documents, 8).Add(8);
  }
  return Sum().Add(kLazyHeaderBytes).AddProduct(header.sequences, 24).AddProduct(header.documents, 8).Add(24);
}

Sum AllBytes(const IndexHeader& header) {
  Sum sum = TableBytes(header);
  return header.has_modes ? sum.Add(header.sequences) : sum;
}

Result<Done> CheckVersion(uint64_t version) {
  if (version == kVersion) return Done{};
  return Error{"its version is " + std::to_string(version) + ": 1 is known"};
}

Result<IndexHeader> ParseMmap(const uint8_t* begin) {
  PHX_TRY_DONE(CheckVersion(Load<uint64_t>(begin + 9)));
  PHX_TRY(const Dtype dtype, DtypeOfCode(begin[17]));
  const auto boundaries = Load<uint64_t>(begin + 26);
  if (boundaries == 0) return Error{"it has no document boundary, where an empty dataset has one"};
  return IndexHeader{Layout::kMmap, dtype, Load<uint64_t>(begin + 18), boundaries - 1};
}

Result<IndexHeader> ParseLazy(const uint8_t* begin) {
  PHX_TRY_DONE(CheckVersion(Load<uint64_t>(begin + 8)));
  PHX_TRY(const Dtype dtype, DtypeOfCode(Load<uint64_t>(begin + 16)));
  const auto token_bytes = Load<uint64_t>(begin + 24);
  const auto sequences = Load<uint64_t>(begin + 32);
  const auto sizes = Load<uint64_t>(begin + 40);
  const auto boundaries = Load<uint64_t>(begin + 48);
  if (token_bytes != BytesOf(dtype)) {
    return Error{"it says that a token has " + std::to_string(token_bytes) + " bytes, but " + NameOf(dtype) + " has " +
                 std::to_string(BytesOf(dtype))};
  }
  if (sizes != sequences) {
    return Error{"it has " + std::to_string(sizes) + " sizes for " + std::to_string(sequences) +
                 " sequences, as if they had several dimensions"};
  }
  if (boundaries == 0) return Error{"it has no document boundary, where an empty dataset has one"};
  return IndexHeader{Layout::kLazy, dtype, sequences, boundaries - 1};
}

Error WrongLength(const IndexHeader& header, const Sum& wanted, uint64_t file_bytes) {
  const std::string counts =
      std::to_string(header.sequences) + " sequences and " + std::to_string(header.documents) + " documents";
  if (!wanted.fits()) return Error{"its header speaks of " + counts + ", more than any file holds"};
  return Error{"it has " + std::to_string(file_bytes) + " bytes, but " + counts + " take " +
               std::to_string(wanted.value())};
}

}  // namespace

Result<IndexHeader> ParseIndexHeader(const void* begin, uint64_t begin_bytes, uint64_t file_bytes) {
  const bool is_mmap = BeginsWith(begin, begin_bytes, kMmapMagic);
  if (!is_mmap && !BeginsWith(begin, begin_bytes, kLazyMagic)) {
    return Error{"it is no index of a dataset: it begins with neither MMIDIDX nor TNTIDX"};
  }
  const uint64_t header_bytes = is_mmap ? kMmapHeaderBytes : kLazyHeaderBytes;
  if (begin_bytes < header_bytes) {
    return Error{"it ends within its header, after " + std::to_string(begin_bytes) + " of " +
                 std::to_string(header_bytes) + " bytes"};
  }
  const auto* bytes = static_cast<const uint8_t*>(begin);
  PHX_TRY(IndexHeader header, is_mmap ? ParseMmap(bytes) : ParseLazy(bytes));
  const Sum tables = TableBytes(header);
  // Modes are told by the file's length alone; without sequences there is nothing to tell.
  header.has_modes = is_mmap && tables.fits() && header.sequences > 0 && file_bytes > tables.value() &&
                     file_bytes - tables.value() == header.sequences;
  if (!tables.fits() || (!header.has_modes && tables.value() != file_bytes)) {
    return WrongLength(header, tables, file_bytes);
  }
  return header;
}

bool Fits(const IndexHeader& header) { return AllBytes(header).fits(); }

std::string IndexHeaderBytes(const IndexHeader& header) {
  const bool is_mmap = header.layout == Layout::kMmap;
  std::string bytes(is_mmap ? kMmapMagic : kLazyMagic);
  Append(bytes, kVersion);
  if (is_mmap) {
    Append(bytes, static_cast<uint8_t>(header.dtype));
  } else {
    Append(bytes, static_cast<uint64_t>(header.dtype));
    Append(bytes, BytesOf(header.dtype));
    Append(bytes, header.sequences);
  }
  Append(bytes, header.sequences);
  Append(bytes, header.documents + 1);
  return bytes;
}

uint64_t IndexBytes(const IndexHeader& header) { return AllBytes(header).value(); }

Table Lengths(const IndexHeader& header) {
  if (header.layout == Layout::kMmap) return {kMmapHeaderBytes, header.sequences, 4};
  return {kLazyHeaderBytes + 16 * (header.sequences + 1), header.sequences, 8};
}

Table Offsets(const IndexHeader& header) {
  if (header.layout == Layout::kMmap) return {kMmapHeaderBytes + 4 * header.sequences, header.sequences, 8};
  return {kLazyHeaderBytes + 8 * (header.sequences + 1), header.sequences + 1, 8};
}

Table Boundaries(const IndexHeader& header) {
  return {TableBytes(header).value() - 8 * (header.documents + 1), header.documents + 1, 8};
}

Table Modes(const IndexHeader& header) {
  return {TableBytes(header).value(), header.has_modes ? header.sequences : 0, 1};
}

Table Dimensions(const IndexHeader& header) {
  return {kLazyHeaderBytes, header.layout == Layout::kLazy ? header.sequences + 1 : 0, 8};
}

}  // namespace phalanx::data

#include "data/part.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/crc/crc32.h"
#include "data/bytes.h"

namespace phalanx::data {
namespace {

constexpr std::string_view kMagic("PHXPART\0", 8);
constexpr uint32_t kVersion = 1;
constexpr uint64_t kCheckedBytes = 104;
constexpr uint64_t kFieldBytes = 108;

Sum FileBytes(const PartHeader& header) {
  return Sum()
      .Add(kPartHeaderBytes)
      .AddProduct(header.tokens, BytesOf(header.dtype))
      .Pad()
      .AddProduct(header.sequences, 4)
      .Pad()
      .AddProduct(header.documents, 8)
      .Add(header.notes_bytes);
}

Result<Done> CheckFrame(const uint8_t* begin, uint64_t begin_bytes) {
  if (begin_bytes < kPartHeaderBytes) {
    return Error{"it ends within its header, after " + std::to_string(begin_bytes) + " of 4096 bytes"};
  }
  if (std::all_of(begin, begin + kMagic.size(), [](uint8_t byte) { return byte == 0; })) {
    return Error{"it was never finished: its header is still empty"};
  }
  if (std::memcmp(begin, kMagic.data(), kMagic.size()) != 0) {
    return Error{"it is no part of a dataset: it does not begin with PHXPART"};
  }
  if (Load<uint32_t>(begin + 8) != kVersion) {
    return Error{"its version is " + std::to_string(Load<uint32_t>(begin + 8)) + ": 1 is known"};
  }
  if (Crc32(0, begin, kCheckedBytes) != Load<uint32_t>(begin + kCheckedBytes)) {
    return Error{"its header is damaged: the CRC differs"};
  }
  if (!std::all_of(begin + kFieldBytes, begin + kPartHeaderBytes, [](uint8_t byte) { return byte == 0; })) {
    return Error{"its header is damaged: there is something behind the fields"};
  }
  return Done{};
}

}  // namespace

Result<PartHeader> ParsePartHeader(const void* begin, uint64_t begin_bytes, uint64_t file_bytes) {
  const auto* bytes = static_cast<const uint8_t*>(begin);
  PHX_TRY_DONE(CheckFrame(bytes, begin_bytes));
  PartHeader header;
  PHX_TRY(header.dtype, DtypeOfCode(Load<uint32_t>(bytes + 12)));
  header.number = Load<uint64_t>(bytes + 16);
  header.parts = Load<uint64_t>(bytes + 24);
  std::memcpy(header.fingerprint.data(), bytes + 32, header.fingerprint.size());
  header.tokens = Load<uint64_t>(bytes + 64);
  header.sequences = Load<uint64_t>(bytes + 72);
  header.documents = Load<uint64_t>(bytes + 80);
  header.notes_bytes = Load<uint64_t>(bytes + 88);
  header.tokens_crc32 = Load<uint32_t>(bytes + 96);
  header.tables_crc32 = Load<uint32_t>(bytes + 100);
  if (header.number >= header.parts) {
    return Error{"it calls itself part " + std::to_string(header.number) + " of " + std::to_string(header.parts) +
                 ", and they are counted from 0"};
  }
  const Sum wanted = FileBytes(header);
  if (!wanted.fits() || wanted.value() != file_bytes) {
    return Error{"it has " + std::to_string(file_bytes) + " bytes, but its header speaks of " +
                 (wanted.fits() ? std::to_string(wanted.value()) : "more than any file holds")};
  }
  return header;
}

uint64_t TokenBytes(const PartHeader& header) { return header.tokens * BytesOf(header.dtype); }

uint64_t TablesAt(const PartHeader& header) { return kPartHeaderBytes + Padded(TokenBytes(header)); }

Table Lengths(const PartHeader& header) { return {TablesAt(header), header.sequences, 4}; }

Table DocumentEnds(const PartHeader& header) {
  return {TablesAt(header) + Padded(4 * header.sequences), header.documents, 8};
}

uint64_t NotesAt(const PartHeader& header) { return DocumentEnds(header).at + 8 * header.documents; }

}  // namespace phalanx::data

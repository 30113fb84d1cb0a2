// A part as anybody may have left it. Its CRCs are also made right: a fuzzer would not come past them.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/crc/crc32.h"
#include "data/memory_file.h"
#include "data/source.h"

namespace phalanx::data {
namespace {

void Try(const std::vector<uint8_t>& bytes) {
  const InFile file = MemoryFile("part", bytes.data(), bytes.size(), bytes.size());
  const Result<Source> part = PartIn(file);
  if (!part.ok()) {
    PHX_CHECK(!part.error().message.empty(), "a refusal without a reason");
    return;
  }
  PHX_CHECK(NotesAt(*part->part) + part->part->notes_bytes == file.bytes(), "another length");
  const Result<Done> checked = CheckTables(*part, file);
  PHX_CHECK(checked.ok() || !checked.error().message.empty(), "a refusal without a reason");
}

void Put(std::vector<uint8_t>& bytes, size_t at, uint32_t value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

}  // namespace
}  // namespace phalanx::data

// The input has no zeros behind the header's fields: an input of 4 KiB would be slow to learn.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::data;
  constexpr size_t kFields = 108;
  if (size < kFields) return 0;
  std::vector<uint8_t> bytes(data, data + kFields);
  bytes.resize(kPartHeaderBytes);
  bytes.insert(bytes.end(), data + kFields, data + size);
  Try(bytes);
  Put(bytes, 104, phalanx::Crc32(0, bytes.data(), 104));
  const auto header = ParsePartHeader(bytes.data(), bytes.size(), bytes.size());
  if (!header.ok()) return 0;
  const uint64_t tables = TablesAt(*header);
  Put(bytes, 100, phalanx::Crc32(0, bytes.data() + tables, bytes.size() - tables));
  Put(bytes, 104, phalanx::Crc32(0, bytes.data(), 104));
  Try(bytes);
  return 0;
}

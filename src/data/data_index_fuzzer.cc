// An `.idx` as anybody may have left it, beside a `.bin` of as many bytes as the input's first two say.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "data/bytes.h"
#include "data/memory_file.h"
#include "data/source.h"
#include "data/table_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::data;
  using phalanx::Done;
  if (size < 2) return 0;
  const InFile bin = MemoryFile("bin", nullptr, 0, Load<uint16_t>(data));
  const InFile index = MemoryFile("index", data + 2, size - 2, size - 2);
  const Result<Source> source = DatasetIn(index, bin);
  if (!source.ok()) {
    PHX_CHECK(!source.error().message.empty(), "a refusal without a reason");
    return 0;
  }
  PHX_CHECK(source->token_bytes() == bin.bytes() && IndexBytes(*source->index) == index.bytes(), "another length");
  const Result<Done> checked = CheckTables(*source, index);
  if (!checked.ok()) return 0;
  uint64_t tokens = 0;
  const Result<Done> added = ForEach(index, source->lengths, [&](uint64_t, int64_t length) -> Result<Done> {
    tokens += static_cast<uint64_t>(length);
    return Done{};
  });
  PHX_CHECK(added.ok() && tokens == source->tokens, "sequences that are not all of the tokens");
  return 0;
}

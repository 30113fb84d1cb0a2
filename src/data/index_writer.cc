#include "data/index_writer.h"

#include <string>

#include "data/bytes.h"
#include "data/table_reader.h"

namespace phalanx::data {
namespace {

constexpr size_t kBufferBytes = 128 << 10;

// Numbers on their way into a file.
class NumberWriter {
 public:
  explicit NumberWriter(OutFile& out) : out_(out) {}

  template <typename T>
  Result<Done> Put(T number) {
    Append(buffer_, number);
    return buffer_.size() < kBufferBytes ? Result<Done>(Done{}) : Flush();
  }

  Result<Done> Flush() {
    PHX_TRY_DONE(out_.Write(buffer_.data(), buffer_.size()));
    buffer_.clear();
    return Done{};
  }

 private:
  OutFile& out_;
  std::string buffer_;
};

using PickTable = const Table& (*)(const Source&);

// Calls `use(source, number)` for each number of the table that `pick` picks of each source.
template <typename Use>
Result<Done> ForEachOf(const std::vector<Source>& sources, PickTable pick, Use use) {
  for (const Source& source : sources) {
    if (pick(source).count == 0) continue;
    PHX_TRY(const InFile file, InFile::Open(source.tables_path));
    PHX_TRY_DONE(ForEach(file, pick(source), [&](uint64_t, int64_t number) { return use(source, number); }));
  }
  return Done{};
}

const Table& LengthsOf(const Source& source) { return source.lengths; }
const Table& EndsOf(const Source& source) { return source.ends; }
const Table& ModesOf(const Source& source) { return source.modes; }

// `unit`: what one token counts.
Result<Done> PutOffsets(const std::vector<Source>& sources, int64_t unit, bool with_end, NumberWriter& numbers) {
  int64_t offset = 0;
  PHX_TRY_DONE(ForEachOf(sources, LengthsOf, [&](const Source&, int64_t length) {
    const int64_t begin = offset;
    offset += length * unit;
    return numbers.Put(begin);
  }));
  return with_end ? numbers.Put(offset) : Done{};
}

Result<Done> PutShortLengths(const std::vector<Source>& sources, NumberWriter& numbers) {
  return ForEachOf(sources, LengthsOf, [&](const Source& source, int64_t length) -> Result<Done> {
    if (length <= INT32_MAX) return numbers.Put(static_cast<int32_t>(length));
    return Error{source.tables_path + ": a sequence has " + std::to_string(length) +
                 " tokens; the `mmap` layout holds at most 2147483647, `lazy` and `cached` hold more"};
  });
}

Result<Done> PutBoundaries(const std::vector<Source>& sources, NumberWriter& numbers) {
  PHX_TRY_DONE(numbers.Put(int64_t{0}));
  const Source* current = sources.data();
  int64_t before = 0;  // sequences of the sources before `current`
  return ForEachOf(sources, EndsOf, [&](const Source& source, int64_t end) {
    for (; current != &source; ++current) before += static_cast<int64_t>(current->sequences);
    return numbers.Put(before + end);
  });
}

Result<Done> PutMmap(const std::vector<Source>& sources, const JoinPlan& plan, NumberWriter& numbers) {
  PHX_TRY_DONE(PutShortLengths(sources, numbers));
  PHX_TRY_DONE(PutOffsets(sources, static_cast<int64_t>(BytesOf(plan.index.dtype)), false, numbers));
  PHX_TRY_DONE(PutBoundaries(sources, numbers));
  return ForEachOf(sources, ModesOf,
                   [&](const Source&, int64_t mode) { return numbers.Put(static_cast<int8_t>(mode)); });
}

Result<Done> PutLazy(const std::vector<Source>& sources, const JoinPlan& plan, NumberWriter& numbers) {
  for (uint64_t i = 0; i <= plan.index.sequences; ++i) PHX_TRY_DONE(numbers.Put(i));
  PHX_TRY_DONE(PutOffsets(sources, 1, true, numbers));
  PHX_TRY_DONE(ForEachOf(sources, LengthsOf, [&](const Source&, int64_t length) { return numbers.Put(length); }));
  return PutBoundaries(sources, numbers);
}

}  // namespace

Result<Done> WriteIndex(const std::vector<Source>& sources, const JoinPlan& plan, OutFile& out) {
  const std::string header = IndexHeaderBytes(plan.index);
  PHX_TRY_DONE(out.Write(header.data(), header.size()));
  NumberWriter numbers(out);
  if (plan.index.layout == Layout::kMmap) {
    PHX_TRY_DONE(PutMmap(sources, plan, numbers));
  } else {
    PHX_TRY_DONE(PutLazy(sources, plan, numbers));
  }
  return numbers.Flush();
}

}  // namespace phalanx::data

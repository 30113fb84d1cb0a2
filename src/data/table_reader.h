// A table of a file, chunk by chunk: memory stays the same however long it is.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/in_file.h"
#include "data/index.h"

namespace phalanx::data {

class TableReader {
 public:
  // The file must outlive this, and the table must lie within it.
  TableReader(const InFile& file, const Table& table) : file_(&file), table_(table) {}

  // How many of its numbers have been handed out.
  uint64_t done() const { return done_; }

  // The next numbers, until the next call; none: that was all.
  Result<std::span<const int64_t>> Next();

 private:
  const InFile* file_;
  Table table_;
  uint64_t done_ = 0;
  std::vector<uint8_t> raw_;
  std::vector<int64_t> numbers_;
};

// Calls `use(number's place, number)`, which returns Result<Done>, for each number of a table, until one is an error.
template <typename Use>
Result<Done> ForEach(const InFile& file, const Table& table, Use use) {
  TableReader reader(file, table);
  while (true) {
    uint64_t at = reader.done();
    PHX_TRY(const std::span<const int64_t> numbers, reader.Next());
    if (numbers.empty()) return Done{};
    for (const int64_t number : numbers) PHX_TRY_DONE(use(at++, number));
  }
}

}  // namespace phalanx::data

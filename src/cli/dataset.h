// Datasets as a command meets them: named by people, with a sidecar or without.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "data/sidecar.h"
#include "data/source.h"

namespace phalanx::cli {

Status StatusOf(const data::Error& error);

// "out/x" of "out/x", "out/x.bin", "out/x.idx" and "out/x.json".
std::string PrefixOf(const std::string& given);

struct Dataset {
  std::string prefix;
  data::Source source;
  std::optional<data::Sidecar> sidecar;
};

// By headers and sidecar alone, which must not contradict each other. What the sidecar says of the tokens' CRC is then
// the source's.
StatusOr<Dataset> OpenWithSidecar(const std::string& prefix);

// What a merge is given: a prefix; a part file; a folder of parts, which are taken in the order of their names.
StatusOr<std::vector<Dataset>> OpenInput(const std::string& input);

struct Document {
  std::vector<std::vector<int64_t>> sequences;  // together at most as many tokens as are asked for
  uint64_t tokens = 0;                          // all that it has
};

// Documents one by one, in any order.
class DocumentReader {
 public:
  static StatusOr<DocumentReader> Of(const data::Source& dataset, uint64_t max_tokens);
  StatusOr<Document> Read(uint64_t document) const;

 private:
  DocumentReader(const data::Source& dataset, uint64_t max_tokens, data::InFile bin, data::InFile idx)
      : dataset_(dataset), max_tokens_(max_tokens), bin_(std::move(bin)), idx_(std::move(idx)) {}
  data::Result<Document> Get(uint64_t document) const;
  data::Result<int64_t> Number(const data::Table& table, uint64_t i) const;

  data::Source dataset_;
  uint64_t max_tokens_;
  data::InFile bin_;
  data::InFile idx_;
};

}  // namespace phalanx::cli

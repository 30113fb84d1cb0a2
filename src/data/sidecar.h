// `<prefix>.json` (docs/formats/data-sidecar.md): which tokenizer made a dataset, and what its bytes must be. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "data/join.h"

namespace phalanx::data {

constexpr size_t kMaxSidecarBytes = size_t{64} << 20;

struct Tokenizer {
  std::string type;
  std::string fingerprint;
  uint64_t vocab_size = 0;
  std::optional<int64_t> eod;

  bool operator==(const Tokenizer&) const = default;
};

struct Sidecar {
  Layout layout = Layout::kMmap;
  JoinCounts counts;
  std::optional<Tokenizer> tokenizer;
  nlohmann::ordered_json options;   // an object
  nlohmann::ordered_json inputs;    // an array
  nlohmann::ordered_json versions;  // an object
  uint64_t errors = 0;
  int64_t written_unix_ms = 0;
};

StatusOr<Sidecar> ParseSidecar(std::string_view text);
std::string SidecarText(const Sidecar& sidecar);

// What the sidecar says otherwise than what was found; without CRCs, counts and sizes alone are compared. Sentences.
std::vector<std::string> Contradictions(const Sidecar& sidecar, Layout layout, const JoinCounts& found, bool with_crcs);

// The tokenizer of datasets that are to be merged, by what their sidecars say of it; none where one has none, or says
// nothing. An error where two of them differ. `names`: of the sidecars, for it.
StatusOr<std::optional<Tokenizer>> CommonTokenizer(const std::vector<std::optional<Sidecar>>& sidecars,
                                                   const std::vector<std::string>& names);

}  // namespace phalanx::data

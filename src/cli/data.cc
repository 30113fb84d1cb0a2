#include "cli/data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/dataset.h"
#include "cli/rows.h"
#include "data/join.h"
#include "data/verify.h"

namespace phalanx::cli {
namespace {

using data::JoinCounts;
using data::Layout;
using data::Sidecar;
using data::Source;
using nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

constexpr uint64_t kShownTokens = 64;  // of a document, to people

const char* LayoutName(Layout layout) { return layout == Layout::kMmap ? "mmap" : "lazy"; }

ordered_json CountsJson(Layout layout, const JoinCounts& counts) {
  return {{"dataset_impl", LayoutName(layout)},
          {"dtype", data::NameOf(counts.dtype)},
          {"documents", counts.documents},
          {"sequences", counts.sequences},
          {"tokens", counts.tokens},
          {"bytes", counts.bin_bytes + counts.idx_bytes}};
}

JoinCounts CountsOf(const Source& source) {
  return {.dtype = source.dtype,
          .documents = source.documents,
          .sequences = source.sequences,
          .tokens = source.tokens,
          .bin_bytes = source.token_bytes(),
          .idx_bytes = data::IndexBytes(*source.index)};
}

// Everything that is wrong with a dataset, in sentences.
std::vector<std::string> WhyDamaged(const std::string& prefix, JoinCounts& counts) {
  const StatusOr<Dataset> dataset = OpenWithSidecar(prefix);
  if (!dataset.ok()) return {Message(dataset.status())};
  const data::Result<JoinCounts> checked = data::CheckDataset(prefix);
  if (!checked.ok()) return {checked.error().message};
  counts = *checked;
  if (!dataset->sidecar) return {};
  std::vector<std::string> all = data::Contradictions(*dataset->sidecar, dataset->source.index->layout, counts, true);
  for (std::string& why : all) why = fmt::format("{}: {}", data::SidecarPath(prefix), why);
  return all;
}

struct MergeInputs {
  std::vector<Source> sources;
  std::vector<std::optional<Sidecar>> sidecars;
  std::vector<std::string> names;  // of the sidecars
};

StatusOr<MergeInputs> OpenInputs(const std::vector<std::string>& given) {
  MergeInputs inputs;
  for (const std::string& input : given) {
    PHX_ASSIGN_OR_RETURN(std::vector<Dataset> datasets, OpenInput(input));
    for (Dataset& dataset : datasets) {
      inputs.names.push_back(data::SidecarPath(dataset.prefix));
      inputs.sources.push_back(std::move(dataset.source));
      inputs.sidecars.push_back(std::move(dataset.sidecar));
    }
  }
  return inputs;
}

// A field of all sidecars, where it is the same in all.
ordered_json Common(const std::vector<std::optional<Sidecar>>& sidecars, ordered_json Sidecar::*field) {
  for (const std::optional<Sidecar>& sidecar : sidecars) {
    if (!sidecar || *sidecar.*field != *sidecars.front().*field) return ordered_json::object();
  }
  return *sidecars.front().*field;
}

ordered_json InputsJson(const std::vector<Source>& sources) {
  ordered_json list = ordered_json::array();
  for (const Source& source : sources) {
    list.push_back({{"path", source.tokens_path},
                    {"documents", source.documents},
                    {"sequences", source.sequences},
                    {"tokens", source.tokens}});
  }
  return list;
}

StatusOr<Layout> LayoutOf(const std::string& dataset_impl) {
  if (dataset_impl == "mmap") return Layout::kMmap;
  if (dataset_impl == "lazy" || dataset_impl == "cached") return Layout::kLazy;
  return absl::InvalidArgumentError(
      fmt::format("--dataset-impl is '{}': mmap, lazy or cached are known", dataset_impl));
}

// One document as text: its sequences apart, and not too long.
std::string DocumentText(uint64_t number, const std::vector<std::vector<int64_t>>& sequences, uint64_t tokens) {
  std::vector<std::string> texts;
  uint64_t shown = 0;
  for (const std::vector<int64_t>& sequence : sequences) {
    texts.push_back(fmt::format("{}", fmt::join(sequence, " ")));
    shown += sequence.size();
  }
  const std::string more = shown < tokens ? fmt::format(" .. {} more", tokens - shown) : "";
  return fmt::format("{}: {}{}\n", number, tokens == 0 ? "(empty)" : fmt::format("{}", fmt::join(texts, " | ")), more);
}

}  // namespace

StatusOr<DataAnswer> DataMergeAll(const DataMerge& merge, bool json, int64_t now_unix_ms) {
  const std::string out = PrefixOf(merge.out);
  data::JoinSpec spec;
  spec.prefix = out;
  spec.replace = merge.replace;
  PHX_ASSIGN_OR_RETURN(spec.layout, LayoutOf(merge.dataset_impl));
  PHX_ASSIGN_OR_RETURN(MergeInputs inputs, OpenInputs(merge.inputs));
  Sidecar sidecar;
  PHX_ASSIGN_OR_RETURN(sidecar.tokenizer, data::CommonTokenizer(inputs.sidecars, inputs.names));
  spec.sources = std::move(inputs.sources);
  data::Result<data::Joined> joined = data::Join(spec);
  if (!joined.ok()) return StatusOf(joined.error());
  sidecar.layout = spec.layout;
  sidecar.counts = joined->counts();
  sidecar.options = Common(inputs.sidecars, &Sidecar::options);
  sidecar.inputs = InputsJson(spec.sources);
  sidecar.versions = {{"phalanx", PHALANX_VERSION}};
  for (const std::optional<Sidecar>& from : inputs.sidecars) sidecar.errors += from ? from->errors : 0;
  sidecar.written_unix_ms = now_unix_ms;
  const data::Result<Done> published = (*joined).Publish(data::SidecarText(sidecar));
  if (!published.ok()) return StatusOf(published.error());
  if (json) {
    ordered_json object = {{"prefix", out}};
    object.update(CountsJson(sidecar.layout, sidecar.counts));
    return DataAnswer{Dump(object, 2)};
  }
  return DataAnswer{fmt::format("{}: {} documents, {} tokens, {}, of {} inputs\n", out, sidecar.counts.documents,
                                sidecar.counts.tokens, Bytes(sidecar.counts.bin_bytes + sidecar.counts.idx_bytes),
                                spec.sources.size())};
}

StatusOr<DataAnswer> DataVerify(const std::vector<std::string>& prefixes, bool json) {
  Rows rows = {{"STATE", "SIZE", "PREFIX", "WHY"}};
  ordered_json list = ordered_json::array();
  size_t damaged = 0;
  for (const std::string& given : prefixes) {
    const std::string prefix = PrefixOf(given);
    JoinCounts counts;
    const std::vector<std::string> why = WhyDamaged(prefix, counts);
    const uint64_t bytes = counts.bin_bytes + counts.idx_bytes;
    damaged += why.empty() ? 0 : 1;
    list.push_back({{"prefix", prefix}, {"bytes", bytes}, {"intact", why.empty()}, {"why", why}});
    rows.push_back({why.empty() ? "intact" : "DAMAGED", Bytes(bytes), prefix, why.empty() ? "" : Printable(why[0])});
    for (size_t i = 1; i < why.size(); ++i) rows.push_back({"", "", "", Printable(why[i])});
  }
  DataAnswer answer;
  answer.exit_code = damaged > 0 ? 1 : 0;
  answer.text = json ? Dump({{"damaged", damaged}, {"datasets", std::move(list)}}, 2)
                     : fmt::format("{}{} intact, {} damaged\n", Table(rows), prefixes.size() - damaged, damaged);
  return answer;
}

StatusOr<DataAnswer> DataInfo(const std::vector<std::string>& prefixes, bool json) {
  Rows rows = {{"IMPL", "DTYPE", "DOCUMENTS", "SEQUENCES", "TOKENS", "SIZE", "TOKENIZER", "PREFIX"}};
  ordered_json list = ordered_json::array();
  for (const std::string& given : prefixes) {
    PHX_ASSIGN_OR_RETURN(const Dataset dataset, OpenWithSidecar(PrefixOf(given)));
    const JoinCounts counts = CountsOf(dataset.source);
    const Layout layout = dataset.source.index->layout;
    ordered_json object = {{"prefix", dataset.prefix}};
    object.update(CountsJson(layout, counts));
    object["sidecar"] = nullptr;
    if (dataset.sidecar) object["sidecar"] = ordered_json::parse(data::SidecarText(*dataset.sidecar));
    list.push_back(std::move(object));
    const bool is_known = dataset.sidecar && dataset.sidecar->tokenizer;
    rows.push_back({LayoutName(layout), data::NameOf(counts.dtype), fmt::format("{}", counts.documents),
                    fmt::format("{}", counts.sequences), fmt::format("{}", counts.tokens),
                    Bytes(counts.bin_bytes + counts.idx_bytes),
                    is_known ? Printable(dataset.sidecar->tokenizer->type) : "-", dataset.prefix});
  }
  return DataAnswer{json ? Dump({{"datasets", std::move(list)}}, 2) : Table(rows)};
}

StatusOr<DataAnswer> DataHead(const std::string& given, uint64_t documents, bool json) {
  PHX_ASSIGN_OR_RETURN(const Dataset dataset, OpenWithSidecar(PrefixOf(given)));
  PHX_ASSIGN_OR_RETURN(DocumentReader reader, DocumentReader::Of(dataset.source, json ? UINT64_MAX : kShownTokens));
  ordered_json list = ordered_json::array();
  std::string text;
  for (uint64_t i = 0; i < std::min(documents, dataset.source.documents); ++i) {
    PHX_ASSIGN_OR_RETURN(const Document document, reader.Read(i));
    if (json) list.push_back(document.sequences);
    text += DocumentText(i, document.sequences, document.tokens);
  }
  if (json) return DataAnswer{Dump({{"prefix", dataset.prefix}, {"documents", std::move(list)}}, -1)};
  return DataAnswer{text.empty() ? fmt::format("{} has no documents\n", dataset.prefix) : text};
}

}  // namespace phalanx::cli

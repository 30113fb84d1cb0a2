#include "data/join_plan.h"

#include "data/bytes.h"

namespace phalanx::data {
namespace {

Result<Done> CheckPlace(const Source& source, uint64_t place, const Source& first, uint64_t count) {
  const PartHeader& part = *source.part;
  if (part.fingerprint != first.part->fingerprint) {
    return Error{source.tables_path + " was made with other options than " + first.tables_path +
                 ": parts of one run go together"};
  }
  if (part.number == place && part.parts == count) return Done{};
  return Error{source.tables_path + " is part " + std::to_string(part.number) + " of " + std::to_string(part.parts) +
               ", where part " + std::to_string(place) + " of " + std::to_string(count) + " was to come"};
}

Result<Done> CheckTogether(const Source& source, const Source& first) {
  if (source.dtype != first.dtype) {
    return Error{source.tokens_path + " has tokens of type " + NameOf(source.dtype) + ", " + first.tokens_path +
                 " of type " + NameOf(first.dtype) + ": they cannot be joined"};
  }
  if (source.part.has_value() != first.part.has_value()) {
    return Error{source.tokens_path + " and " + first.tokens_path + ": one is a part, the other a whole dataset"};
  }
  // Without a sequence there is no mode to be missed.
  if (source.sequences > 0 && first.sequences > 0 && (source.modes.count > 0) != (first.modes.count > 0)) {
    return Error{source.tables_path + " and " + first.tables_path + ": one has modes (multimodal), the other has none"};
  }
  return Done{};
}

// The first with sequences, which says whether there are modes; the first at all where none has any.
const Source& Model(const std::vector<Source>& sources) {
  for (const Source& source : sources) {
    if (source.sequences > 0) return source;
  }
  return sources.front();
}

}  // namespace

Result<JoinPlan> PlanJoin(const std::vector<Source>& sources, Layout layout) {
  if (sources.empty()) return Error{"there is nothing to join: at least one part or dataset is needed"};
  const Source& model = Model(sources);
  Sum tokens;
  Sum sequences;
  Sum documents;
  for (size_t i = 0; i < sources.size(); ++i) {
    const Source& source = sources[i];
    PHX_TRY_DONE(CheckTogether(source, model));
    if (source.part) PHX_TRY_DONE(CheckPlace(source, i, sources.front(), sources.size()));
    tokens.Add(source.tokens);
    sequences.Add(source.sequences);
    documents.Add(source.documents);
  }
  const bool has_modes = model.modes.count > 0;
  if (has_modes && layout == Layout::kLazy) {
    return Error{model.tables_path + " has modes (multimodal), which `lazy` and `cached` cannot hold"};
  }
  JoinPlan plan{{layout, model.dtype, sequences.value(), documents.value(), has_modes}, tokens.value(), 0};
  const Sum bin_bytes = Sum().AddProduct(tokens.value(), BytesOf(model.dtype));
  if (!tokens.fits() || !sequences.fits() || !documents.fits() || !bin_bytes.fits() || !Fits(plan.index)) {
    return Error{"together these are larger than a file can be"};
  }
  plan.bin_bytes = bin_bytes.value();
  return plan;
}

}  // namespace phalanx::data

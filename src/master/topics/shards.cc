#include "master/topics/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/fnv.h"

namespace phalanx::master {
namespace {

constexpr size_t kMaxNameBytes = 256;

std::string TextOf(const v1::DatasetSpec& spec) {
  static constexpr const char* kOrders[] = {"not shuffled", "shards shuffled", "records shuffled"};
  const std::string passes = spec.passes() == 0 ? "passes without end" : fmt::format("{} passes", spec.passes());
  return fmt::format("{} records in shards of {}, {}, {}, seed {}", spec.size(), spec.shard_size(), passes,
                     kOrders[spec.order()], spec.seed());
}

// Whether both count the same shards of the same records. The number of passes may change between two lives.
bool IsSameData(const v1::DatasetSpec& one, const v1::DatasetSpec& other) {
  return one.size() == other.size() && one.shard_size() == other.shard_size() && one.order() == other.order() &&
         one.seed() == other.seed();
}

// Never 0.
uint64_t StateDigest(const v1::DatasetState& state) {
  Fnv1a hash;
  for (const uint64_t value : {state.spec().size(), state.spec().shard_size(), state.spec().passes(),
                               static_cast<uint64_t>(state.spec().order()), state.spec().seed(), state.next()}) {
    hash.Add(value);
  }
  for (const uint64_t gap : state.undone_gaps()) hash.Add(gap);
  return std::max<uint64_t>(hash.value(), 1);
}

// The shards that are not done, from their gaps; nothing where they are none of before `next`.
std::optional<std::set<uint64_t>> UndoneIn(const v1::DatasetState& state) {
  std::set<uint64_t> undone;
  uint64_t shard = 0;
  for (const uint64_t gap : state.undone_gaps()) {
    if (gap >= state.next() || (gap == 0 && !undone.empty())) return std::nullopt;
    shard += gap;
    if (shard >= state.next()) return std::nullopt;
    undone.insert(undone.end(), shard);
  }
  return undone;
}

std::string StateFault(const v1::DatasetState& state) {
  if (std::string fault = DatasetFault(state.spec()); !fault.empty()) return fault;
  if (state.next() > ShardsIn(state.spec())) {
    return fmt::format("its next shard is {}, and there are {}", state.next(), ShardsIn(state.spec()));
  }
  if (static_cast<size_t>(state.undone_gaps_size()) > kMaxShardsOut) {
    return fmt::format("{} shards are not done; at most {} can be", state.undone_gaps_size(), kMaxShardsOut);
  }
  return UndoneIn(state) ? "" : "a shard that is not done was never given";
}

// What its round's ranks hold waits.
void BeginRound(ShardState& state, uint64_t epoch) {
  if (state.epoch == epoch) return;
  state.epoch = epoch;
  for (auto& [name, dataset] : state.datasets) {
    for (const auto& [shard, holder] : dataset.given) dataset.waiting.insert(shard);
    dataset.given.clear();
    dataset.of_request.clear();
    dataset.restored = 0;
    dataset.restored_by.clear();
  }
}

void Give(Dataset& dataset, uint64_t shard, const ShardHolder& holder) {
  dataset.given[shard] = holder;
  dataset.of_request[{holder.rank, holder.request}] = shard;
}

// Nobody holds it any more.
void TakeFrom(Dataset& dataset, std::map<uint64_t, ShardHolder>::iterator given) {
  dataset.of_request.erase({given->second.rank, given->second.request});
  dataset.given.erase(given);
}

size_t HeldBy(const Dataset& dataset, uint32_t rank) {
  const auto first = dataset.of_request.lower_bound({rank, 0});
  const auto last = dataset.of_request.upper_bound({rank, UINT64_MAX});
  return static_cast<size_t>(std::distance(first, last));
}

// One request, and what becomes of it.
class Desk {
 public:
  Desk(ShardState& state, const v1::ShardRequest& request, uint32_t rank, uint64_t ledger)
      : state_(state), request_(request), rank_(rank), ledger_(ledger) {
    outcome_.reply.set_epoch(request.epoch());
    outcome_.reply.set_local_rank(request.local_rank());
    outcome_.reply.set_request(request.request());
    outcome_.reply.set_dataset(request.dataset());
  }

  ShardOutcome Serve() {
    switch (request_.body_case()) {
      case v1::ShardRequest::kOpen:
        Open(request_.open());
        break;
      case v1::ShardRequest::kRestore:
        Restore(request_.restore());
        break;
      default:
        if (Dataset* const dataset = Find()) Serve(*dataset);
    }
    return std::move(outcome_);
  }

 private:
  void Refuse(const std::string& why) {
    outcome_.reply.set_refused(fmt::format("dataset '{}': {}", request_.dataset(), why));
  }

  // Null: it is refused.
  Dataset* Find() {
    const auto found = state_.datasets.find(request_.dataset());
    Dataset* const dataset = found == state_.datasets.end() ? nullptr : &found->second;
    const bool is_known = request_.ledger() != 0;
    if (dataset == nullptr && !is_known) {
      Refuse("no rank has begun it");
      return nullptr;
    }
    const bool is_it = dataset != nullptr && (!is_known || dataset->from_state || dataset->ledger == request_.ledger());
    if (!is_it) {
      Refuse(
          "which of its shards are done is lost with the master that handed them out: restore a state of it on all "
          "ranks, or begin it anew under another name");
      return nullptr;
    }
    outcome_.reply.set_ledger(dataset->ledger);
    return dataset;
  }

  void Serve(Dataset& dataset) {
    switch (request_.body_case()) {
      case v1::ShardRequest::kTake:
        return Take(dataset);
      case v1::ShardRequest::kDone:
        return EndOf(dataset, request_.done().shards(), true);
      case v1::ShardRequest::kBack:
        return EndOf(dataset, request_.back().shards(), false);
      case v1::ShardRequest::kRead:
        *outcome_.reply.mutable_state() = StateOf(dataset);
        return;
      default:
        return Refuse("a request that this master does not know");
    }
  }

  void Open(const v1::DatasetSpec& spec) {
    if (const std::string fault = DatasetFault(spec); !fault.empty()) return Refuse(fault);
    if (!state_.datasets.contains(request_.dataset()) && request_.ledger() == 0) {
      Begin(spec, "begins", false);
      return;
    }
    Dataset* const dataset = Find();
    if (dataset == nullptr) return;
    const bool is_it = IsSameData(dataset->spec, spec) && dataset->spec.passes() == spec.passes();
    if (!is_it) {
      Refuse(fmt::format("it has begun with {}; this rank says {}", TextOf(dataset->spec), TextOf(spec)));
    }
  }

  // Null: it is refused.
  Dataset* Begin(const v1::DatasetSpec& spec, const std::string& how, bool from_state) {
    if (state_.datasets.size() >= kMaxDatasets) {
      Refuse(fmt::format("a job has at most {} datasets", kMaxDatasets));
      return nullptr;
    }
    Dataset& dataset = state_.datasets[request_.dataset()];
    dataset.spec = spec;
    dataset.ledger = ledger_;
    dataset.from_state = from_state;
    outcome_.reply.set_ledger(ledger_);
    outcome_.changed = true;
    Note("dataset-begun", fmt::format("dataset '{}' {}: {}", request_.dataset(), how, TextOf(spec)));
    return &dataset;
  }

  void Note(const std::string& kind, const std::string& text) {
    outcome_.note_kind = kind;
    outcome_.note = text;
  }

  void Take(Dataset& dataset) {
    const auto said_before = dataset.of_request.find({rank_, request_.request()});
    if (said_before != dataset.of_request.end()) return outcome_.reply.set_shard(said_before->second);
    const bool any_waits = !dataset.waiting.empty();
    if (!any_waits && dataset.next >= ShardsIn(dataset.spec)) return;
    if (HeldBy(dataset, rank_) >= kMaxShardsOfRank) {
      return Refuse(fmt::format("rank {} holds {} shards that it has not reported done; more it is not given", rank_,
                                kMaxShardsOfRank));
    }
    if (!any_waits && dataset.given.size() >= kMaxShardsOut) {
      return Refuse(
          fmt::format("ranks hold {} shards of it that are not done; more are not given out: use one dataset "
                      "for each part of so large a world",
                      kMaxShardsOut));
    }
    const uint64_t shard = any_waits ? *dataset.waiting.begin() : dataset.next++;
    dataset.waiting.erase(shard);
    Give(dataset, shard, {rank_, request_.request()});
    outcome_.reply.set_shard(shard);
    outcome_.changed = true;
  }

  // All of them or none.
  template <typename Shards>
  void EndOf(Dataset& dataset, const Shards& shards, bool done) {
    for (const uint64_t shard : shards) {
      if (const std::string why = WhyNotToEnd(dataset, shard, done); !why.empty()) return Refuse(why);
    }
    for (const uint64_t shard : shards) {
      const auto given = dataset.given.find(shard);
      if (given == dataset.given.end() || !IsMeant(given->second)) continue;  // the request was said before
      TakeFrom(dataset, given);
      if (!done) dataset.waiting.insert(shard);
      outcome_.changed = true;
    }
    const bool over = outcome_.changed && done && dataset.next == ShardsIn(dataset.spec) && dataset.given.empty() &&
                      dataset.waiting.empty();
    if (over) Note("dataset-done", fmt::format("dataset '{}' is done: all its shards are", request_.dataset()));
  }

  // A request that is said again may come when the shard was given once more, also to the same rank.
  bool IsMeant(const ShardHolder& holder) const { return holder.rank == rank_ && holder.request < request_.request(); }

  std::string WhyNotToEnd(const Dataset& dataset, uint64_t shard, bool done) const {
    if (shard >= dataset.next) return fmt::format("shard {} was given to no rank", shard);
    if (!done) return "";  // what this rank does not hold stays as it is
    const auto given = dataset.given.find(shard);
    if (given != dataset.given.end() && given->second.rank == rank_) return "";
    if (given == dataset.given.end() && !dataset.waiting.contains(shard)) return "";
    return fmt::format("this rank does not hold shard {}, or no more", shard);
  }

  void Restore(const v1::DatasetState& saved) {
    if (const std::string fault = StateFault(saved); !fault.empty()) return Refuse(fmt::format("no state: {}", fault));
    const auto found = state_.datasets.find(request_.dataset());
    Dataset* dataset = found == state_.datasets.end() ? nullptr : &found->second;
    if (dataset != nullptr) {
      outcome_.reply.set_ledger(dataset->ledger);
      if (!IsSameData(dataset->spec, saved.spec())) {
        return Refuse(
            fmt::format("it has begun with {}; the state is of {}", TextOf(dataset->spec), TextOf(saved.spec())));
      }
      if (IsRestored(*dataset, saved)) return;
      for (const auto& [shard, holder] : dataset->given) {
        if (holder.rank == rank_) continue;
        return Refuse(
            fmt::format("rank {} holds a shard of it: restore it on all ranks before one takes a shard", holder.rank));
      }
    }
    if (dataset == nullptr) dataset = Begin(saved.spec(), "begins from a state", true);
    if (dataset != nullptr) Put(*dataset, saved);
  }

  // This round's ranks have that state already, and this one is not to go back to it: it comes to it late, or its
  // request was said before. Or it is refused.
  bool IsRestored(Dataset& dataset, const v1::DatasetState& saved) {
    const auto mine = dataset.restored_by.find(rank_);
    const bool said_before = mine != dataset.restored_by.end() && mine->second == request_.request();
    if (said_before) return true;
    if (dataset.restored == 0 || mine != dataset.restored_by.end()) return false;
    if (dataset.restored != StateDigest(saved)) {
      Refuse(fmt::format("rank {} has restored another state of it in this round: all ranks restore the same one",
                         dataset.restored_by.begin()->first));
      return true;
    }
    dataset.restored_by[rank_] = request_.request();
    outcome_.changed = true;
    return true;
  }

  void Put(Dataset& dataset, const v1::DatasetState& saved) {
    dataset.spec = saved.spec();
    dataset.next = saved.next();
    dataset.waiting = *UndoneIn(saved);
    dataset.given.clear();
    dataset.of_request.clear();
    dataset.restored = StateDigest(saved);
    dataset.restored_by = {{rank_, request_.request()}};
    dataset.from_state = true;
    outcome_.changed = true;
    Note("dataset-restored",
         fmt::format("dataset '{}' goes on from a state: {} of its shards are done, {} more were given out",
                     request_.dataset(), saved.next() - dataset.waiting.size(), dataset.waiting.size()));
  }

  ShardState& state_;
  const v1::ShardRequest& request_;
  const uint32_t rank_;
  const uint64_t ledger_;
  ShardOutcome outcome_;
};

Status Wrong(const std::string& name, const std::string& what) {
  return absl::DataLossError(fmt::format("dataset '{}': {}", name, what));
}

StatusOr<Dataset> RestoreDataset(const v1::Snapshot::Dataset& wire) {
  if (std::string fault = DatasetFault(wire.spec()); !fault.empty()) return Wrong(wire.name(), fault);
  Dataset dataset;
  dataset.spec = wire.spec();
  dataset.ledger = wire.ledger();
  dataset.next = wire.next();
  dataset.restored = wire.restored();
  dataset.from_state = wire.from_state();
  dataset.waiting.insert(wire.waiting().begin(), wire.waiting().end());
  for (const v1::Snapshot::GivenShard& given : wire.given())
    Give(dataset, given.shard(), {given.rank(), given.request()});
  for (const v1::Snapshot::RestoredBy& by : wire.restored_by()) dataset.restored_by[by.rank()] = by.request();
  const bool counted_once = dataset.waiting.size() == static_cast<size_t>(wire.waiting_size()) &&
                            dataset.given.size() == static_cast<size_t>(wire.given_size()) &&
                            dataset.of_request.size() == dataset.given.size();
  if ((dataset.restored == 0) != dataset.restored_by.empty()) return Wrong(wire.name(), "it was restored by nobody");
  if (!counted_once || dataset.next > ShardsIn(dataset.spec)) return Wrong(wire.name(), "its shards are miscounted");
  if (dataset.given.size() + dataset.waiting.size() > kMaxShardsOut) return Wrong(wire.name(), "too many are out");
  const auto is_out = [&dataset](uint64_t shard) { return shard < dataset.next; };
  const bool all_out = std::all_of(dataset.waiting.begin(), dataset.waiting.end(), is_out) &&
                       std::all_of(dataset.given.begin(), dataset.given.end(), [&](const auto& given) {
                         return is_out(given.first) && !dataset.waiting.contains(given.first);
                       });
  if (!all_out) return Wrong(wire.name(), "a shard is out that was never given, or twice");
  return dataset;
}

}  // namespace

uint64_t ShardsIn(const v1::DatasetSpec& spec) {
  if (spec.passes() == 0) return kMaxShards;
  return spec.passes() * ((spec.size() - 1) / spec.shard_size() + 1);
}

std::string DatasetFault(const v1::DatasetSpec& spec) {
  if (spec.size() == 0 || spec.size() > kMaxRecords) {
    return fmt::format("{} records; expected 1 to {}", spec.size(), kMaxRecords);
  }
  if (spec.shard_size() == 0 || spec.shard_size() > kMaxRecords) {
    return fmt::format("shards of {} records; expected 1 to {}", spec.shard_size(), kMaxRecords);
  }
  if (!v1::DatasetSpec::Order_IsValid(spec.order())) return fmt::format("order {}", static_cast<int>(spec.order()));
  const uint64_t of_pass = (spec.size() - 1) / spec.shard_size() + 1;
  if (spec.passes() > kMaxShards / of_pass) {
    return fmt::format("{} passes of {} shards; expected at most {} shards in all", spec.passes(), of_pass, kMaxShards);
  }
  return "";
}

v1::DatasetState StateOf(const Dataset& dataset) {
  v1::DatasetState state;
  *state.mutable_spec() = dataset.spec;
  state.set_next(dataset.next);
  std::set<uint64_t> undone = dataset.waiting;
  for (const auto& [shard, holder] : dataset.given) undone.insert(shard);
  uint64_t before = 0;
  for (const uint64_t shard : undone) {
    state.add_undone_gaps(shard - before);
    before = shard;
  }
  return state;
}

ShardOutcome OnShardRequest(ShardState& state, const v1::ShardRequest& request, uint32_t rank, uint64_t ledger) {
  BeginRound(state, request.epoch());
  return Desk(state, request, rank, ledger).Serve();
}

bool OnShardRankEnded(ShardState& state, uint64_t epoch, uint32_t rank) {
  if (state.epoch != epoch) return false;
  bool held = false;
  for (auto& [name, dataset] : state.datasets) {
    auto first = dataset.of_request.lower_bound({rank, 0});
    while (first != dataset.of_request.end() && first->first.first == rank) {
      dataset.waiting.insert(first->second);
      dataset.given.erase(first->second);
      first = dataset.of_request.erase(first);
      held = true;
    }
  }
  return held;
}

void SaveShards(const ShardState& state, v1::Snapshot::Shards& wire) {
  wire.set_epoch(state.epoch);
  for (const auto& [name, dataset] : state.datasets) {
    v1::Snapshot::Dataset& saved = *wire.add_datasets();
    saved.set_name(name);
    *saved.mutable_spec() = dataset.spec;
    saved.set_ledger(dataset.ledger);
    saved.set_next(dataset.next);
    saved.mutable_waiting()->Add(dataset.waiting.begin(), dataset.waiting.end());
    for (const auto& [shard, holder] : dataset.given) {
      v1::Snapshot::GivenShard& given = *saved.add_given();
      given.set_shard(shard);
      given.set_rank(holder.rank);
      given.set_request(holder.request);
    }
    saved.set_restored(dataset.restored);
    for (const auto& [rank, request] : dataset.restored_by) {
      v1::Snapshot::RestoredBy& by = *saved.add_restored_by();
      by.set_rank(rank);
      by.set_request(request);
    }
    saved.set_from_state(dataset.from_state);
  }
}

StatusOr<ShardState> RestoreShards(const v1::Snapshot::Shards& saved) {
  ShardState state;
  state.epoch = saved.epoch();
  if (saved.datasets_size() > static_cast<int>(kMaxDatasets)) {
    return absl::DataLossError(fmt::format("{} datasets", saved.datasets_size()));
  }
  for (const v1::Snapshot::Dataset& wire : saved.datasets()) {
    const bool named = !wire.name().empty() && wire.name().size() <= kMaxNameBytes;
    if (!named || state.datasets.contains(wire.name())) return Wrong(wire.name(), "its name");
    PHX_ASSIGN_OR_RETURN(state.datasets[wire.name()], RestoreDataset(wire));
  }
  return state;
}

}  // namespace phalanx::master

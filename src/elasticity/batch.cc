#include "elasticity/batch.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "elasticity/divisors.h"

namespace phalanx::elasticity {
namespace {

// The highly composite numbers that DeepSpeed scales with.
constexpr int64_t kFactors[] = {1,      2,      4,      6,      12,     24,     36,     48,    60,    120,
                                180,    240,    360,    720,    840,    1260,   1680,   2520,  5040,  7560,
                                10080,  15120,  20160,  25200,  27720,  45360,  50400,  55440, 83160, 110880,
                                166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720};

constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();

// A batch size that may be chosen. One that comes from the least common multiple is numpy's, and may have overflown.
struct Candidate {
  int64_t size;
  bool is_numpy;
};

// Counts from `min` to `max` are wanted. With NaN as a limit, Python's comparisons leave out counts that take all of a
// batch in one step, and no others.
struct GpuRange {
  int64_t min = 1;
  int64_t max = kLargest;
  bool with_whole = true;
};

// numpy's, of 64-bit integers: an overflow is silent.
int64_t LeastCommonMultiple(int64_t a, int64_t b) {
  const auto magnitude = [](int64_t x) { return x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x); };
  const uint64_t divisor = std::gcd(magnitude(a), magnitude(b));
  return divisor == 0 ? 0 : static_cast<int64_t>(magnitude(a) / divisor * magnitude(b));
}

int64_t MultiplyWrapping(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

// The largest factor up to `quotient`; the last of all where there is none, or none above it: so DeepSpeed indexes.
Result<int64_t> LargestFactor(const Value& quotient) {
  if (const auto* whole = quotient.as<Int>()) {
    const auto* above = std::upper_bound(std::begin(kFactors), std::end(kFactors), *whole);
    return above == std::begin(kFactors) ? *std::rbegin(kFactors) : *(above - 1);
  }
  for (size_t i = 0; i < std::size(kFactors); ++i) {
    PHX_TRY(const Order order, Compare(Value(kFactors[i]), quotient, ">"));
    if (order == Order::kGreater) return i == 0 ? *std::rbegin(kFactors) : kFactors[i - 1];
  }
  return *std::rbegin(kFactors);
}

// The candidate that comes from `base`, if any.
Result<std::optional<Candidate>> Scale(const BatchRequest& request, int64_t base, bool is_numpy) {
  PHX_TRY(const Order order, Compare(Value(base), request.batch_max, ">="));
  if (order == Order::kGreater && request.behaviour == Behaviour::kDeepSpeed0197) return std::optional<Candidate>();
  if (order == Order::kGreater || order == Order::kEqual) return std::optional(Candidate{base, is_numpy});
  Value quotient(0);  // what numpy makes of a base that overflowed to 0 or below: nothing fits
  if (base > 0) {
    PHX_TRY(quotient, FloorDivide(request.batch_max, Value(base)));
  }
  PHX_TRY(const int64_t factor, LargestFactor(quotient));
  return std::optional(Candidate{MultiplyWrapping(factor, base), is_numpy});
}

// Each size once; where two are the same, as the first of them.
Result<std::vector<Candidate>> FindCandidates(const BatchRequest& request, const std::vector<int64_t>& micro_batches) {
  std::vector<Candidate> candidates;
  candidates.reserve(micro_batches.size() + 1);
  int64_t multiple = 1;
  for (const int64_t size : micro_batches) {
    multiple = LeastCommonMultiple(multiple, size);
    PHX_TRY(const std::optional<Candidate> candidate, Scale(request, size, /*is_numpy=*/false));
    if (candidate) candidates.push_back(*candidate);
  }
  PHX_TRY(const std::optional<Candidate> last, Scale(request, multiple, /*is_numpy=*/true));
  if (last) candidates.push_back(*last);
  std::sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.size != b.size ? a.size < b.size : a.is_numpy < b.is_numpy;  // numpy's was the last
  });
  const auto same = [](const Candidate& a, const Candidate& b) { return a.size == b.size; };
  candidates.erase(std::unique(candidates.begin(), candidates.end(), same), candidates.end());
  return candidates;
}

// Without those that another divides: a count that works with a micro batch works with each of its divisors.
std::vector<int64_t> WithoutMultiples(std::vector<int64_t> sizes) {
  std::sort(sizes.begin(), sizes.end());
  std::vector<int64_t> kept;
  for (const int64_t size : sizes) {
    if (std::none_of(kept.begin(), kept.end(), [&](int64_t smaller) { return size % smaller == 0; })) {
      kept.push_back(size);
    }
  }
  return kept;
}

// All counts that split the batch into whole micro batches, in no order.
std::vector<int64_t> FindCounts(int64_t batch, const Divisors& divisors, const std::vector<int64_t>& micro_batches,
                                const GpuRange& range) {
  std::vector<int64_t> counts;
  std::vector<uint8_t> works(divisors.size());  // for the share of each GPU
  for (const int64_t size : micro_batches) {
    if (batch % size == 0) works[divisors.IndexOf(static_cast<uint64_t>(size))] = 1;
  }
  divisors.MarkMultiples(&works);
  if (!range.with_whole) divisors.KeepAboveMarked(&works);
  for (size_t share = 0; share < divisors.size(); ++share) {
    if (works[share] == 0) continue;
    const auto count = static_cast<int64_t>(divisors[divisors.size() - 1 - share]);
    if (count >= range.min && count <= range.max) counts.push_back(count);
  }
  return counts;
}

// A count is numpy's where the batch is, and the first micro batch that it works with is its whole share.
std::vector<bool> FindNumpy(const Candidate& batch, const List& micro_batches, const std::vector<int64_t>& counts,
                            const GpuRange& range) {
  if (!batch.is_numpy || !range.with_whole) return {};
  std::vector<bool> is_numpy(counts.size());
  std::vector<int64_t> wholes;
  for (const Value& micro_batch : micro_batches) {
    const int64_t size = micro_batch.as<bool>() != nullptr ? 1 : static_cast<int64_t>(*micro_batch.as<Int>());
    if (batch.size % size != 0) continue;
    const int64_t whole = batch.size / size;
    const auto at = std::lower_bound(counts.begin(), counts.end(), whole);
    const bool is_earlier =
        std::any_of(wholes.begin(), wholes.end(), [&](int64_t earlier) { return earlier % whole == 0; });
    wholes.push_back(whole);
    if (at != counts.end() && *at == whole && !is_earlier) is_numpy[static_cast<size_t>(at - counts.begin())] = true;
  }
  return is_numpy;
}

int64_t Clamped(double value) { return value >= 0x1p62 ? kLargest : static_cast<int64_t>(value); }

// The limits are checked numbers of at least 1, or NaN.
GpuRange RangeOf(const Value& gpus_min, const Value& gpus_max) {
  GpuRange range;
  if (const auto* whole = gpus_min.as<Int>()) range.min = static_cast<int64_t>(*whole);
  if (const auto* whole = gpus_max.as<Int>()) range.max = static_cast<int64_t>(*whole);
  if (gpus_max.as<bool>() != nullptr) range.max = 1;
  const auto* min = gpus_min.as<double>();
  const auto* max = gpus_max.as<double>();
  range.with_whole = (min == nullptr || !std::isnan(*min)) && (max == nullptr || !std::isnan(*max));
  if (min != nullptr && !std::isnan(*min)) range.min = Clamped(std::ceil(*min));
  if (max != nullptr && !std::isnan(*max)) range.max = Clamped(std::floor(*max));
  return range;
}

// Python's `gpus_max or batch_max // min(micro_batches)`.
Result<Value> LargestCount(const BatchRequest& request) {
  if (Truthy(request.gpus_max)) return request.gpus_max;
  const List& sizes = *request.micro_batches;
  if (sizes.empty()) return Error{"ValueError", "min() arg is an empty sequence"};
  const Value* smallest = sizes.data();
  for (const Value& size : sizes) {
    PHX_TRY(const Order order, Compare(size, *smallest, "<"));
    if (order == Order::kLess) smallest = &size;
  }
  return FloorDivide(request.batch_max, *smallest);
}

Result<Done> CheckSizes(const BatchRequest& request) {
  for (const Value& size : *request.micro_batches) {
    PHX_TRY(const Order order, Compare(size, request.batch_max, "<="));
    if (order == Order::kLess || order == Order::kEqual) continue;
    return Error{"ValueError",
                 "All micro batches must be less than             or equal to max_acceptable_batch_size: " +
                     Str(request.batch_max)};
  }
  return Done{};
}

Result<Done> CheckLimits(const BatchRequest& request) {
  if (request.too_large) return *request.too_large;
  const List& sizes = *request.micro_batches;
  if (sizes.size() > kMicroBatchesMax) {
    return Error{kLimitError, "micro_batch_sizes has " + std::to_string(sizes.size()) + " elements: at most " +
                                  std::to_string(kMicroBatchesMax) + " are taken"};
  }
  for (const Value& size : sizes) PHX_TRY_DONE(CheckLimit("an element of micro_batch_sizes", size, kValueMax));
  PHX_TRY_DONE(CheckLimit("max_train_batch_size", request.batch_max, kValueMax));
  PHX_TRY_DONE(CheckLimit("min_gpus", request.gpus_min, kValueMax));
  return CheckLimit("max_gpus", request.gpus_max, kValueMax);
}

Result<std::vector<int64_t>> Wholes(const List& sizes) {
  if (std::all_of(sizes.begin(), sizes.end(), [](const Value& size) { return size.as<bool>() != nullptr; })) {
    return Error{"UFuncTypeError", "numpy has no least common multiple of an empty list, nor of truth values"};
  }
  std::vector<int64_t> wholes;
  wholes.reserve(sizes.size());
  for (const Value& size : sizes) {
    wholes.push_back(size.as<bool>() != nullptr ? 1 : static_cast<int64_t>(*size.as<Int>()));
  }
  return wholes;
}

}  // namespace

bool GpuCounts::Contains(const Value& count) const {
  if (const auto* whole = count.as<Int>()) return std::binary_search(counts.begin(), counts.end(), *whole);
  return std::any_of(counts.begin(), counts.end(), [&](int64_t own) { return Equal(Value(own), count); });
}

void GpuCounts::AppendCount(size_t index, std::string* out) const {
  if (are_floats) {
    out->append(FloatRepr(static_cast<double>(counts[index])));
    return;
  }
  char digits[20];
  out->append(digits, std::to_chars(digits, std::end(digits), counts[index]).ptr);
}

std::string GpuCounts::Repr() const {
  std::string out = "[";
  for (size_t i = 0; i < counts.size(); ++i) {
    if (i > 0) out += ", ";
    const bool with_type = !is_numpy.empty() && is_numpy[i];
    if (with_type) out += are_floats ? "np.float64(" : "np.int64(";
    AppendCount(i, &out);
    if (with_type) out += ")";
  }
  return out + "]";
}

Result<Done> CheckLimit(const char* name, const Value& value, int64_t max) {
  if (const auto* real = value.as<double>(); real != nullptr && std::isinf(*real)) return Done{};
  const Result<Order> order = Compare(value, Value(max), ">");
  if (!order.ok() || *order != Order::kGreater) return Done{};
  return Error{kLimitError, std::string(name) + " is " + Str(value) + ": at most " + std::to_string(max) + " is taken"};
}

Result<Batch> ChooseBatch(const BatchRequest& request) {
  PHX_TRY_DONE(CheckSizes(request));
  PHX_TRY_DONE(CheckLimits(request));
  PHX_TRY(const Value gpus_max, LargestCount(request));
  PHX_TRY(const std::vector<int64_t> micro_batches, Wholes(*request.micro_batches));
  PHX_TRY(const std::vector<Candidate> candidates, FindCandidates(request, micro_batches));
  const GpuRange range = RangeOf(Truthy(request.gpus_min) ? request.gpus_min : Value(1), gpus_max);
  const std::vector<int64_t> basic = WithoutMultiples(micro_batches);

  Candidate best = {*std::min_element(micro_batches.begin(), micro_batches.end()), false};
  std::vector<int64_t> counts;
  bool is_chosen = false;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {  // large ones, which mostly win, first
    const Candidate& candidate = *it;
    std::vector<int64_t> own;
    if (candidate.size >= 1) {
      const Factors factors = Factorize(static_cast<uint64_t>(candidate.size));
      if (factors.divisor_count() < counts.size()) continue;
      own = FindCounts(candidate.size, Divisors(factors), basic, range);
    }
    const bool is_nicer = request.prefer_larger ? candidate.size > best.size : candidate.size < best.size;
    if (own.size() < counts.size() || (own.size() == counts.size() && !is_nicer)) continue;
    best = candidate;
    counts = std::move(own);
    is_chosen = true;
  }
  if (!is_chosen) return Batch{best.size, std::nullopt};
  std::sort(counts.begin(), counts.end());
  std::vector<bool> is_numpy = FindNumpy(best, *request.micro_batches, counts, range);
  return Batch{best.size, GpuCounts{std::move(counts), std::move(is_numpy), false}};
}

}  // namespace phalanx::elasticity

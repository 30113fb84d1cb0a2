#include "elasticity/batch.h"

#include <algorithm>
#include <compare>
#include <iterator>
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

// A batch size that may be chosen. One that comes from the least common multiple is numpy's, and may have overflown.
struct Candidate {
  int64_t size;
  bool is_numpy;  // of two with the same size numpy's was the last
  auto operator<=>(const Candidate&) const = default;
};

// numpy's, of 64-bit integers: an overflow is silent.
int64_t LeastCommonMultiple(int64_t a, int64_t b) {
  const auto magnitude = [](int64_t x) { return x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x); };
  const uint64_t divisor = std::gcd(magnitude(a), magnitude(b));
  return divisor == 0 ? 0 : static_cast<int64_t>(magnitude(a) / divisor * magnitude(b));
}

// The largest factor up to `quotient`; the last of all where there is none: so DeepSpeed indexes. (And so it does where
// the largest batch is infinite, since Python has no quotient then.)
int64_t LargestFactor(int64_t quotient) {
  const auto* above = std::upper_bound(std::begin(kFactors), std::end(kFactors), quotient);
  return above == std::begin(kFactors) ? *std::rbegin(kFactors) : *(above - 1);
}

void AddCandidate(const BatchRequest& request, int64_t base, bool is_numpy, std::vector<Candidate>* candidates) {
  if (base > request.batch_max && request.within_largest) return;
  if (base < request.batch_max) {
    const bool is_counted = base > 0 && request.batch_max != kInfinite;  // one that has overflown fits no times
    const auto factor = static_cast<uint64_t>(LargestFactor(is_counted ? request.batch_max / base : 0));
    base = static_cast<int64_t>(factor * static_cast<uint64_t>(base));
  }
  candidates->push_back({base, is_numpy});
}

// Each size once; where two are the same, as the first of them.
std::vector<Candidate> FindCandidates(const BatchRequest& request) {
  std::vector<Candidate> candidates;
  candidates.reserve(request.micro_batches.size() + 1);
  int64_t multiple = 1;
  for (const int64_t size : request.micro_batches) {
    multiple = LeastCommonMultiple(multiple, size);
    AddCandidate(request, size, /*is_numpy=*/false, &candidates);
  }
  AddCandidate(request, multiple, /*is_numpy=*/true, &candidates);
  std::sort(candidates.begin(), candidates.end());
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

// All counts that split the batch into whole micro batches, of which none divides another; in no order.
std::vector<int64_t> FindCounts(int64_t batch, const Divisors& divisors, const std::vector<int64_t>& micro_batches,
                                const BatchRequest& request) {
  std::vector<int64_t> counts;
  std::vector<uint8_t> works(divisors.size());  // for the share of each GPU
  const auto mark = [&](uint8_t value) {
    for (const int64_t size : micro_batches) {
      if (batch % size == 0) works[divisors.IndexOf(static_cast<uint64_t>(size))] = value;
    }
  };
  mark(1);
  divisors.MarkMultiples(&works);
  if (!request.with_whole) mark(0);
  for (size_t share = 0; share < divisors.size(); ++share) {
    if (works[share] == 0) continue;
    const auto count = static_cast<int64_t>(divisors[divisors.size() - 1 - share]);
    if (count >= request.gpus_min && count <= request.gpus_max) counts.push_back(count);
  }
  return counts;
}

// A count is numpy's where the batch is, and the first micro batch that it works with is its whole share.
std::vector<uint8_t> FindNumpy(const Candidate& batch, const std::vector<int64_t>& counts,
                               const BatchRequest& request) {
  std::vector<uint8_t> is_numpy(counts.size());
  if (!batch.is_numpy || !request.with_whole) return is_numpy;
  const auto& sizes = request.micro_batches;
  for (size_t i = 0; i < counts.size(); ++i) {
    const auto first = std::find_if(sizes.begin(), sizes.end(), [&](int64_t size) {
      return batch.size % size == 0 && batch.size / size % counts[i] == 0;
    });
    is_numpy[i] = batch.size / *first == counts[i] ? 1 : 0;
  }
  return is_numpy;
}

}  // namespace

bool IsWithinLimits(const BatchRequest& request) {
  const auto is_limit = [](int64_t value) { return value >= 1 && (value <= kValueMax || value == kInfinite); };
  const auto& sizes = request.micro_batches;
  const int64_t size_max = std::min(kValueMax, request.batch_max);
  return !sizes.empty() && sizes.size() <= kMicroBatchesMax && is_limit(request.batch_max) &&
         is_limit(request.gpus_min) && is_limit(request.gpus_max) &&
         std::all_of(sizes.begin(), sizes.end(), [&](int64_t size) { return size >= 1 && size <= size_max; });
}

Batch ChooseBatch(const BatchRequest& request) {
  const std::vector<Candidate> candidates = FindCandidates(request);
  const std::vector<int64_t> basic = WithoutMultiples({request.micro_batches.begin(), request.micro_batches.end()});
  Candidate best = {basic.front(), false};
  std::vector<int64_t> counts;
  bool is_chosen = false;
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {  // large ones, which mostly win, first
    std::vector<int64_t> own;
    if (it->size >= 1) {
      const Divisors divisors(Factorize(static_cast<uint64_t>(it->size)));
      if (divisors.size() < counts.size()) continue;
      own = FindCounts(it->size, divisors, basic, request);
    }
    const bool is_nicer = request.prefer_larger ? it->size > best.size : it->size < best.size;
    if (own.size() < counts.size() || (own.size() == counts.size() && !is_nicer)) continue;
    best = *it;
    counts = std::move(own);
    is_chosen = true;
  }
  if (!is_chosen) return {best.size, std::nullopt};
  std::sort(counts.begin(), counts.end());
  std::vector<uint8_t> is_numpy = FindNumpy(best, counts, request);
  return {best.size, GpuCounts{std::move(counts), std::move(is_numpy)}};
}

}  // namespace phalanx::elasticity

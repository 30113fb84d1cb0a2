#include "elasticity/capi.h"

#include <algorithm>

#include "elasticity/batch.h"

namespace elasticity = phalanx::elasticity;

uint32_t phx_elasticity_abi_version() { return 2; }

int64_t phx_elasticity_choose_batch(const int64_t* micro_batches, size_t micro_batch_count, int64_t batch_max,
                                    int64_t gpus_min, int64_t gpus_max, uint32_t flags, int64_t* batch_size,
                                    int64_t* counts, uint8_t* is_numpy, size_t room) {
  elasticity::BatchRequest request;
  request.micro_batches = {micro_batches, micro_batch_count};
  request.batch_max = batch_max;
  request.gpus_min = gpus_min;
  request.gpus_max = gpus_max;
  request.prefer_larger = (flags & PHX_ELASTICITY_PREFER_LARGER) != 0;
  request.within_largest = (flags & PHX_ELASTICITY_WITHIN_LARGEST) != 0;
  request.with_whole = (flags & PHX_ELASTICITY_WITHOUT_WHOLE) == 0;
  if (!IsWithinLimits(request)) return PHX_ELASTICITY_BEYOND_LIMITS;
  const elasticity::Batch batch = ChooseBatch(request);
  *batch_size = batch.size;
  if (!batch.gpus) return PHX_ELASTICITY_NO_COUNTS;
  const size_t written = std::min(room, batch.gpus->counts.size());
  std::copy_n(batch.gpus->counts.begin(), written, counts);
  if (is_numpy != nullptr) std::copy_n(batch.gpus->is_numpy.begin(), written, is_numpy);
  return static_cast<int64_t>(batch.gpus->counts.size());
}

/* The search for a batch size, for other languages: a plain C interface, used through ctypes. Nothing throws; any
 * thread may call. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHX_ELASTICITY_API __attribute__((visibility("default")))

PHX_ELASTICITY_API uint32_t phx_elasticity_abi_version(void); /* 2 */

/* Flags: see BatchRequest in batch.h. */
#define PHX_ELASTICITY_PREFER_LARGER 1
#define PHX_ELASTICITY_WITHIN_LARGEST 2
#define PHX_ELASTICITY_WITHOUT_WHOLE 4

#define PHX_ELASTICITY_NO_COUNTS (-1)
#define PHX_ELASTICITY_BEYOND_LIMITS (-2)

/* ChooseBatch in batch.h. How many GPU counts `*batch_size` works with; the first `room` of them are in `counts`,
 * ascending, and in `is_numpy`, which may be null, whether DeepSpeed has numpy's number there. Who had too little room
 * asks again. NO_COUNTS where there is a batch size alone, BEYOND_LIMITS where the request is not one that ChooseBatch
 * takes: nothing is written then. */
PHX_ELASTICITY_API int64_t phx_elasticity_choose_batch(const int64_t* micro_batches, size_t micro_batch_count,
                                                       int64_t batch_max, int64_t gpus_min, int64_t gpus_max,
                                                       uint32_t flags, int64_t* batch_size, int64_t* counts,
                                                       uint8_t* is_numpy, size_t room);

#ifdef __cplusplus
}
#endif

/* Batch plans for other languages: a plain C interface, used through ctypes. Nothing throws; any thread may call. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHX_ELASTICITY_API __attribute__((visibility("default")))

PHX_ELASTICITY_API uint32_t phx_elasticity_abi_version(void); /* 1 */

/* Answers a request, JSON as AnswerRequest in rows.h takes it, with JSON. The bytes of the whole answer; it is written
 * with an ending zero, and cut to `answer_size`: where that was too small, the caller asks again with more room. */
PHX_ELASTICITY_API size_t phx_elasticity_answer(const char* request, size_t request_bytes, char* answer,
                                                size_t answer_size);

#ifdef __cplusplus
}
#endif

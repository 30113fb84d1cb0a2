/* Datasets for other languages: a plain C interface, used through ctypes. Returns 0, or -1 and a sentence in the
 * caller's buffer, cut to its size. Nothing throws. Any thread may call; one at a time may use a handle. Calls block
 * for as long as storage takes. Paths and prefixes are the file system's bytes. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHX_DATA_API __attribute__((visibility("default")))

typedef struct phx_data_join phx_data_join;

/* Called between blocks, in the thread that joins. Other than 0: stop. */
typedef int (*phx_data_progress)(void* user, uint64_t done_bytes, uint64_t all_bytes);

enum { PHX_DATA_MMAP = 0, PHX_DATA_LAZY = 1 };

typedef struct {
  const char* prefix;
  const char* const* parts; /* paths of part files, in their order */
  uint64_t part_count;
  int layout;
  int replace;                /* a dataset that is there; else that is an error */
  phx_data_progress progress; /* or null */
  void* user;
} phx_data_join_spec;

typedef struct {
  uint64_t documents, sequences, tokens, bin_bytes, idx_bytes;
  uint32_t bin_crc32, idx_crc32;
  uint32_t dtype; /* the code in the index */
} phx_data_counts;

typedef struct {
  uint64_t number, parts;
  uint8_t fingerprint[32];
  uint64_t documents, sequences, tokens;
  uint64_t notes_at, notes_bytes; /* where they lie in the file */
  uint32_t dtype;
} phx_data_part;

PHX_DATA_API uint32_t phx_data_abi_version(void); /* 1 */

/* All of the parts of a run to `.bin` and `.idx`, complete on the disk but not yet in their place. Null, with the
 * reason, where that cannot be. */
PHX_DATA_API phx_data_join* phx_data_join_parts(const phx_data_join_spec* spec, phx_data_counts* counts, char* error,
                                                size_t error_size);
/* Both files and the sidecar, these bytes, to their place. */
PHX_DATA_API int phx_data_publish(phx_data_join* join, const void* sidecar, uint64_t sidecar_bytes, char* error,
                                  size_t error_size);
/* What was not published is removed. */
PHX_DATA_API void phx_data_close(phx_data_join* join);

/* Reads all of a part: whether it is one that was finished and is as it was written; its counts. Whether it belongs to
 * a run, the caller sees by number, parts and fingerprint. */
PHX_DATA_API int phx_data_part_check(const char* path, phx_data_part* part, char* error, size_t error_size);

/* Reads all of a dataset: whether its two files fit together; its counts and the CRCs of both. */
PHX_DATA_API int phx_data_check(const char* prefix, phx_data_counts* counts, char* error, size_t error_size);

#ifdef __cplusplus
}
#endif

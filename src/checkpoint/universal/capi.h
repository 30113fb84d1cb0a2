/* Universal checkpoints of DeepSpeed's for Python, through ctypes: docs/formats/universal.md. Returns 0, or -1 and a
 * sentence in the caller's buffer, cut to its size. Nothing throws. Any thread may call. Calls block for as long as
 * storage takes. Paths and names are the file system's bytes, paths absolute. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHX_UNIVERSAL_API __attribute__((visibility("default")))

/* Memory that nobody writes during the call. */
typedef struct {
  const void* at;
  uint64_t bytes;
} phx_universal_piece;

typedef struct {
  const char* name;   /* in the folder, with '/' between its parts */
  const char* link;   /* a file with just these bytes, of which it may be another name; null: there is none */
  const void* pickle; /* null: the file is its one record as it stands; else it is a zip of torch.save's */
  uint64_t pickle_bytes;
  const phx_universal_piece* pieces; /* of its records, one behind the other */
  const uint64_t* piece_counts;      /* of each record */
  uint64_t record_count;
} phx_universal_file;

typedef struct {
  uint64_t bytes;
  uint32_t crc32; /* of all of the file */
  uint32_t zero;
} phx_universal_written;

typedef struct {
  const char* draft;  /* a folder with what phx_universal_write has made */
  const char* target; /* beside it */
  const char* manifest_name;
  const void* manifest;
  uint64_t manifest_bytes;
  const char* tracker_name; /* beside both; null: nothing names the target */
} phx_universal_publication;

PHX_UNIVERSAL_API uint32_t phx_universal_abi_version(void); /* 1 */

/* Makes the files in `folder`, which is there, by up to so many threads; what came of each goes into `written`. All is
 * on the disk then, but for the name of `folder`. */
PHX_UNIVERSAL_API int phx_universal_write(const char* folder, const phx_universal_file* files, uint64_t count,
                                          int threads, phx_universal_written* written, char* error, size_t error_size);

/* Moves the draft to its place; what was there lies at `draft` then. The tracker names the target last. */
PHX_UNIVERSAL_API int phx_universal_publish(const phx_universal_publication* publication, char* error,
                                            size_t error_size);

#ifdef __cplusplus
}
#endif

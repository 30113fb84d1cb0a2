/* Saving a rank's state into its slots, for what is loaded into a rank: a plain C interface, used through ctypes.
 *
 * Returns: 0 or more is fine, below 0 a code; texts go into the caller's buffer, cut to its size. Nothing throws. One
 * thread at a time may use a handle, except for phx_ckpt_filled, phx_ckpt_give_up, phx_ckpt_poll and the two waits,
 * which any thread may call. After a fork the child's copy of a handle is dead: it has no threads, writes nothing, and
 * answers with PHX_CKPT_BROKEN. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PHX_CKPT_API __attribute__((visibility("default")))

typedef struct phx_ckpt phx_ckpt;

enum {
  PHX_CKPT_NO_SLOT = -1, /* none is free: this save is skipped */
  PHX_CKPT_NO_ROOM = -2, /* the slots are none for this layout, or the tail has outgrown its room: prepare again */
  PHX_CKPT_STALE = -3,   /* another epoch lives */
  PHX_CKPT_BUSY = -4,    /* the last save is not over: wait */
  PHX_CKPT_BROKEN = -5   /* it cannot be used, or was used wrongly; the text says how */
};

/* phx_ckpt_save.when */
enum {
  PHX_CKPT_LATER = 0, /* by the threads; the source must live until phx_ckpt_wait_copied */
  PHX_CKPT_NOW = 1,   /* before phx_ckpt_begin returns */
  PHX_CKPT_FILLED = 2 /* the caller writes the record's bytes into the slot and then calls phx_ckpt_filled */
};

typedef struct {
  int64_t step;
  uint32_t rank, world_size;
  uint32_t branch; /* how often the ranks have gone back in this round */
  uint32_t form;   /* who needs which image of the save: NumberOf() in base/save_form.h, 0 as of a state of its own */
  uint64_t n;
  const uint64_t* bytes;
  const void* const* source; /* not looked at for records of PHX_CKPT_FILLED or without bytes */
  const uint8_t* when;       /* null: all later */
  const void* pickle;        /* copied before phx_ckpt_begin returns, like info and notify */
  uint64_t pickle_bytes;
  const void* info;
  uint64_t info_bytes;
  uint64_t file_bytes; /* of the plan; the slots must have that size */
  int threads;         /* copiers; 0: all but filled records is copied before phx_ckpt_begin returns */
  int verify;    /* read all sources once more behind the last that is copied, and seal only if they are the same */
  int consent;   /* behind the last byte that is copied, wait for phx_ckpt_filled, also where no record is filled */
  int notify_fd; /* gets `notify` by one send as soon as the image is sealed; -1: nothing is sent */
  const void* notify;
  uint64_t notify_bytes;
} phx_ckpt_save;

/* phx_ckpt_patch.record: all bytes before the first record, with this patch's own as they stand in the frame */
#define PHX_CKPT_HEAD UINT64_MAX
/* And with the number of a span added: all bytes of it, with the CRCs in it that were patched before */
#define PHX_CKPT_SPAN (UINT64_C(1) << 63)

/* A part of an image: a file in it. It cuts no record. */
typedef struct {
  uint64_t at;
  uint64_t bytes;
} phx_ckpt_span;

/* Where the CRC of a record's data is to stand, in the frame: 4 bytes, or 8 digits. */
typedef struct {
  uint64_t at; /* in the image */
  uint64_t record;
} phx_ckpt_patch;

/* An image that the caller has laid out: all of its bytes but the data of the records, in the file's order. Zeros fill
 * the slot behind it. All of this is copied before phx_ckpt_begin_framed returns. */
typedef struct {
  const void* bytes;
  uint64_t byte_count;
  const uint64_t* record_at;     /* where each record's data lies in the image; ascending */
  const phx_ckpt_patch* patches; /* written in this order */
  uint64_t patch_count;
  const phx_ckpt_span* spans; /* ascending */
  uint64_t span_count;
  uint32_t digits; /* CRCs stand there as 0: u32, 1: 8 lower-case hex digits */
} phx_ckpt_frame;

/* A zip file that torch.load reads as the pickle, with records of these sizes as its storages. */
typedef struct {
  const uint64_t* bytes;
  uint64_t n;
  const void* pickle;
  uint64_t pickle_bytes;
  uint64_t length; /* of the file, with zeros in front of its directory; not enough: as short as can be */
} phx_ckpt_zip;

/* phx_ckpt_outcome.state */
enum {
  PHX_CKPT_COPYING = 0, /* or waits for phx_ckpt_filled */
  PHX_CKPT_SEALED = 1,
  PHX_CKPT_CHANGED = 2, /* a source changed while it was copied: not sealed */
  PHX_CKPT_LATE = 3,    /* another epoch lives, or the agent gave the slot another file: not sealed */
  PHX_CKPT_NOTHING = 4  /* nothing was begun */
};

typedef struct {
  int state;
  int64_t copy_ns;           /* from the first byte to the seal, where it is over */
  uint64_t differing_record; /* of PHX_CKPT_CHANGED */
  uint64_t bytes;            /* of all records */
} phx_ckpt_outcome;

PHX_CKPT_API uint32_t phx_ckpt_abi_version(void); /* 10 */

/* Opens `control-<l>`; its folder has the slots. Null, with the reason, where that cannot be. */
PHX_CKPT_API phx_ckpt* phx_ckpt_open(const char* control_path, uint64_t epoch, char* error, size_t error_size);
/* Waits for a copy under way. An image that waits for more than that (filled records) is given up. */
PHX_CKPT_API void phx_ckpt_close(phx_ckpt* ckpt);

/* Maps the slots as they are now, if that has not been done: what phx_ckpt_begin would do, ahead of the first save. The
 * number of slots, or a code. */
PHX_CKPT_API int phx_ckpt_map(phx_ckpt* ckpt, char* error, size_t error_size);

/* The plan for records of these sizes: length of the file, where each record's data lies, the layout's hash. Pure. */
PHX_CKPT_API int phx_ckpt_layout(const uint64_t* record_bytes, uint64_t n, uint64_t pickle_bytes, uint64_t* file_bytes,
                                 uint64_t* offsets, uint64_t* hash);

/* How long that file is, and how long without the data of its records: its frame. 0, or a code and why there can be no
 * such file. Pure. */
PHX_CKPT_API int phx_ckpt_zip_lengths(const phx_ckpt_zip* zip, uint64_t* frame_bytes, uint64_t* file_bytes, char* error,
                                      size_t error_size);
/* Writes the frame, where each record's data lies (zip->n), and where the CRCs of that data belong, which are 0 in the
 * frame: up to 2 zip->n patches, of which the number is returned. Pure. */
PHX_CKPT_API uint64_t phx_ckpt_zip_frame(const phx_ckpt_zip* zip, void* frame, uint64_t* record_at,
                                         phx_ckpt_patch* patches);

/* Begins a save; the slot's index, or a code and the reason. */
PHX_CKPT_API int phx_ckpt_begin(phx_ckpt* ckpt, const phx_ckpt_save* save, char* error, size_t error_size);
/* The same for an image of another layout than torch's zip; the save's pickle and info are not looked at. */
PHX_CKPT_API int phx_ckpt_begin_framed(phx_ckpt* ckpt, const phx_ckpt_save* save, const phx_ckpt_frame* frame,
                                       char* error, size_t error_size);
/* Where the slot's file begins in memory, good until a phx_ckpt_map or phx_ckpt_begin that finds other files. */
PHX_CKPT_API void* phx_ckpt_slot_data(phx_ckpt* ckpt, int slot);
/* The bytes of all filled records are in the slot, and what the caller watches tells of no write: the image may be
 * sealed. */
PHX_CKPT_API void phx_ckpt_filled(phx_ckpt* ckpt);
/* The caller has found that this record's source was written while it was copied: PHX_CKPT_CHANGED comes of it, unless
 * the image is sealed. */
PHX_CKPT_API void phx_ckpt_give_up(phx_ckpt* ckpt, uint64_t record);

/* Blocks until the image is sealed or given up, and so no source is read any more. Only where phx_ckpt_filled is still
 * missing it returns with PHX_CKPT_COPYING: all other records are copied then, and where phx_ckpt_save.verify is set
 * their sources are read once more behind phx_ckpt_filled. */
PHX_CKPT_API int phx_ckpt_wait_copied(phx_ckpt* ckpt, phx_ckpt_outcome* outcome);
/* The same, until CLOCK_MONOTONIC comes to `deadline_ns`: PHX_CKPT_COPYING where it does. */
PHX_CKPT_API int phx_ckpt_wait_copied_until(phx_ckpt* ckpt, int64_t deadline_ns, phx_ckpt_outcome* outcome);
PHX_CKPT_API int phx_ckpt_poll(phx_ckpt* ckpt, phx_ckpt_outcome* outcome);
/* The errno of the last save's send; 0: it went out, or there was none. The caller may send it again. */
PHX_CKPT_API int phx_ckpt_notify_error(phx_ckpt* ckpt);

/* Registered by phx_ckpt_open for every fork: a child calls it by itself. */
PHX_CKPT_API void phx_ckpt_forget_in_child(void);

/* Where an image that phx_ckpt_begin wrote has its pickle and, behind that, its storages: how many that is, of which
 * the first `room` are written, or a code and what is wrong. Reads the directory alone; compares no CRC. */
PHX_CKPT_API int phx_ckpt_parts(const void* image, uint64_t bytes, uint64_t* at, uint64_t* part_bytes, uint64_t room,
                                char* error, size_t error_size);
/* Reads a whole image, in a slot or on disk, and compares the CRC of every record: 0, or a code and what is wrong. */
PHX_CKPT_API int phx_ckpt_check_file(const char* path, char* error, size_t error_size);
/* Copies the memory at `from`, one piece of bytes[i] behind the other, to the addresses to[i]. */
PHX_CKPT_API void phx_ckpt_scatter(const void* from, const uint64_t* to, const uint64_t* bytes, uint64_t n);
/* cudaMemcpyAsync, or hipMemcpyAsync: returns its error, 0 for none. This library is linked with neither. */
typedef int (*phx_ckpt_async_copy)(void* to, const void* from, size_t bytes, int kind, void* stream);
/* Queues a copy of bytes[i] from from[i] to to[i] on the stream, for each i, of the kind that looks at the addresses
 * (cudaMemcpyDefault, hipMemcpyDefault). The first error, behind which nothing is queued, or 0. */
PHX_CKPT_API int phx_ckpt_queue_copies(phx_ckpt_async_copy copy, void* stream, const uint64_t* to, const uint64_t* from,
                                       const uint64_t* bytes, uint64_t n);
/* CRC-32 of zip files, going on from `crc`. */
PHX_CKPT_API uint32_t phx_crc32(uint32_t crc, const void* data, uint64_t n);

#ifdef __cplusplus
}
#endif

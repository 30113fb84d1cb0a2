// A zip file of torch's whose tensors' data is written elsewhere: all of its bytes but that. A file in a set of named
// ones, and an item of a .distcp file, are such. What stands where: docs/formats/checkpoint-image.md. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/rank/capi.h"

namespace phalanx::checkpoint {

// Why there can be no such file; empty: there can.
std::string WhyNoZip(const phx_ckpt_zip& zip);

struct ZipLengths {
  uint64_t frame = 0;  // of what PutZipFrame writes
  uint64_t file = 0;
};

ZipLengths LengthsOf(const phx_ckpt_zip& zip);

// Writes the file's bytes but its records' data, one behind the other, the CRCs of that data 0 as yet. `record_at`:
// zip.n, where each record's data lies in the file; `patches`: room for 2 zip.n, where the CRCs belong. How many these
// are.
uint64_t PutZipFrame(uint8_t* frame, const phx_ckpt_zip& zip, uint64_t* record_at, phx_ckpt_patch* patches);

}  // namespace phalanx::checkpoint

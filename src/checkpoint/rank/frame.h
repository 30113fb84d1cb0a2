// Images that are no zip file of torch's: the caller has laid them out, and gives all of their bytes but the data of
// the records. So a .distcp file, or one of another format, takes nothing new here. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/image/image.h"
#include "checkpoint/rank/capi.h"

namespace phalanx::checkpoint {

// What is known when all records are there, and is to be written into the frame then.
struct FrameCrcs {
  std::vector<phx_ckpt_patch> patches;
  std::vector<phx_ckpt_span> spans;
  bool digits = false;
};

FrameCrcs CrcsOf(const phx_ckpt_frame& frame);

// The layout of a save with a frame; the reason where records, frame, spans and patches do not make up an image.
std::string PlanFrame(const phx_ckpt_save& save, const phx_ckpt_frame& frame, ImageLayout* layout);

// Writes everything but the data of the records.
void PutFrame(uint8_t* image, const ImageLayout& layout, const phx_ckpt_frame& frame);

// Writes the CRCs to where they belong, and returns that of the whole image.
uint32_t FinishFrame(uint8_t* image, const ImageLayout& layout, const FrameCrcs& crcs, const uint32_t* record_crc32);

}  // namespace phalanx::checkpoint

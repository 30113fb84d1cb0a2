#include "checkpoint/rank/frame.h"

#include <algorithm>
#include <cstring>

#include "base/fnv.h"
#include "checkpoint/image/image_bytes.h"
#include "checkpoint/image/running_crc.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kDigits = 8;

uint64_t PatchBytes(bool digits) { return digits ? kDigits : sizeof(uint32_t); }

// Of everything before the first record.
uint64_t HeadBytes(const ImageLayout& layout) {
  return layout.data_at.empty() ? layout.tail_at : layout.data_at.front();
}

uint64_t HashFrame(const ImageLayout& layout) {
  Fnv1a hash;
  hash.Add(layout.file_bytes);
  for (uint64_t i = 0; i < layout.bytes.size(); ++i) {
    hash.Add(layout.data_at[i]).Add(layout.bytes[i]);
  }
  return hash.value();
}

// Whether these bytes belong to the frame, and lie within the image.
bool IsInFrame(const ImageLayout& layout, uint64_t at, uint64_t bytes) {
  if (at > layout.tail_at || layout.tail_at - at < bytes) return false;
  const auto behind = std::upper_bound(layout.data_at.begin(), layout.data_at.end(), at + bytes - 1);
  if (behind == layout.data_at.begin()) return true;
  const auto before = static_cast<size_t>(behind - layout.data_at.begin()) - 1;
  return layout.data_at[before] + layout.bytes[before] <= at;
}

bool IsOfHead(const phx_ckpt_patch& patch) { return patch.record == PHX_CKPT_HEAD; }
bool IsOfSpan(const phx_ckpt_patch& patch) { return !IsOfHead(patch) && (patch.record & PHX_CKPT_SPAN) != 0; }

// The first record that does not begin before that place.
size_t FirstFrom(const ImageLayout& layout, uint64_t at) {
  return static_cast<size_t>(std::ranges::lower_bound(layout.data_at, at) - layout.data_at.begin());
}

// What is wrong with it; empty: nothing.
std::string WhyNoSpan(const ImageLayout& layout, const phx_ckpt_span& span) {
  const bool is_within = span.at <= layout.file_bytes && span.bytes <= layout.file_bytes - span.at;
  const auto cuts = [&](uint64_t at) {
    const size_t behind = FirstFrom(layout, at);
    return behind > 0 && layout.data_at[behind - 1] + layout.bytes[behind - 1] > at;
  };
  if (is_within && !cuts(span.at) && !cuts(span.at + span.bytes)) return {};
  return "a file of " + std::to_string(span.bytes) + " bytes cannot lie at " + std::to_string(span.at);
}

// What is wrong with it; empty: nothing.
std::string WhyNoPatch(const ImageLayout& layout, const phx_ckpt_patch& patch, const phx_ckpt_frame& frame) {
  const uint64_t bytes = PatchBytes(frame.digits != 0);
  const bool is_head = IsOfHead(patch);
  const bool is_known = is_head || (IsOfSpan(patch) ? (patch.record ^ PHX_CKPT_SPAN) < frame.span_count
                                                    : patch.record < layout.bytes.size());
  if (is_known && IsInFrame(layout, patch.at, bytes) && (!is_head || patch.at + bytes <= HeadBytes(layout))) return {};
  const std::string whose = is_head ? "the head" : "record " + std::to_string(patch.record);
  return "the CRC of " + whose + " cannot stand at " + std::to_string(patch.at);
}

// Without reading records whose own CRC is known.
uint32_t CrcOf(const uint8_t* image, const ImageLayout& layout, const phx_ckpt_span& span,
               const uint32_t* record_crc32) {
  const uint64_t end = span.at + span.bytes;
  RunningCrc crc(image, span.at);
  for (size_t i = FirstFrom(layout, span.at); i < layout.bytes.size() && layout.data_at[i] < end; ++i) {
    if (layout.bytes[i] < kJoinFrom) continue;
    crc.Read(layout.data_at[i]);
    crc.Pass(layout.bytes[i], record_crc32[i]);
  }
  crc.Read(end);
  return crc.value();
}

void PutCrc(uint8_t* at, uint32_t crc, bool digits) {
  if (!digits) return Put<uint32_t>(at, crc);
  for (uint64_t i = kDigits; i > 0; --i, crc >>= 4) at[i - 1] = static_cast<uint8_t>("0123456789abcdef"[crc & 0xF]);
}

}  // namespace

FrameCrcs CrcsOf(const phx_ckpt_frame& frame) {
  return {{frame.patches, frame.patches + frame.patch_count},
          {frame.spans, frame.spans + frame.span_count},
          frame.digits != 0};
}

std::string PlanFrame(const phx_ckpt_save& save, const phx_ckpt_frame& frame, ImageLayout* layout) {
  layout->bytes.assign(save.bytes, save.bytes + save.n);
  layout->data_at.assign(frame.record_at, frame.record_at + save.n);
  layout->header_at.clear();
  layout->file_bytes = save.file_bytes;
  uint64_t end = 0;      // of the record before
  uint64_t covered = 0;  // bytes of records
  for (uint64_t i = 0; i < save.n; ++i) {
    if (layout->data_at[i] < end || layout->data_at[i] > save.file_bytes ||
        layout->bytes[i] > save.file_bytes - layout->data_at[i]) {
      return "record " + std::to_string(i) + " of " + std::to_string(layout->bytes[i]) + " bytes does not lie at " +
             std::to_string(layout->data_at[i]) + ", between the one before and the end of the slot";
    }
    end = layout->data_at[i] + layout->bytes[i];
    covered += layout->bytes[i];
  }
  if (end - covered > frame.byte_count || frame.byte_count > save.file_bytes - covered) {
    return "a frame of " + std::to_string(frame.byte_count) + " bytes does not go with records of " +
           std::to_string(covered) + " bytes in a slot of " + std::to_string(save.file_bytes);
  }
  layout->tail_at = covered + frame.byte_count;
  layout->hash = HashFrame(*layout);
  for (uint64_t i = 0; i < frame.span_count; ++i) {
    if (std::string why = WhyNoSpan(*layout, frame.spans[i]); !why.empty()) return why;
  }
  for (uint64_t i = 0; i < frame.patch_count; ++i) {
    if (std::string why = WhyNoPatch(*layout, frame.patches[i], frame); !why.empty()) return why;
  }
  return {};
}

void PutFrame(uint8_t* image, const ImageLayout& layout, const phx_ckpt_frame& frame) {
  const auto* from = static_cast<const uint8_t*>(frame.bytes);
  uint64_t at = 0;
  for (uint64_t i = 0; i < layout.bytes.size(); ++i) {
    const uint64_t length = layout.data_at[i] - at;
    std::memcpy(image + at, from, length);
    from += length;
    at = layout.data_at[i] + layout.bytes[i];
  }
  std::memcpy(image + at, from, layout.tail_at - at);
  std::memset(image + layout.tail_at, 0, layout.file_bytes - layout.tail_at);
}

uint32_t FinishFrame(uint8_t* image, const ImageLayout& layout, const FrameCrcs& crcs, const uint32_t* record_crc32) {
  for (const phx_ckpt_patch& patch : crcs.patches) {
    const uint32_t crc32 = IsOfHead(patch) ? Crc32(0, image, HeadBytes(layout))
                           : IsOfSpan(patch)
                               ? CrcOf(image, layout, crcs.spans[patch.record ^ PHX_CKPT_SPAN], record_crc32)
                               : record_crc32[patch.record];
    PutCrc(image + patch.at, crc32, crcs.digits);
  }
  return CrcOf(image, layout, {0, layout.file_bytes}, record_crc32);
}

}  // namespace phalanx::checkpoint

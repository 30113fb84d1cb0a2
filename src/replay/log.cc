#include "replay/log.h"

#include <fmt/format.h>

#include <utility>

#include "base/crc/crc32.h"

namespace phalanx::replay {
namespace {

constexpr std::string_view kMagic = "PHLXRPLY";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 16;
constexpr size_t kFrameHeaderBytes = 12;
// Longer than any machine runs; keeps sums of times far from overflow.
constexpr int64_t kMaxNowMs = int64_t{1} << 53;

void AppendNumber(std::string& text, uint32_t value) {
  for (size_t i = 0; i < 4; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
}

uint32_t NumberAt(std::string_view text, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= uint32_t{static_cast<unsigned char>(text[offset + i])} << (8 * i);
  return value;
}

uint32_t Crc(std::string_view bytes) { return Crc32(0, bytes.data(), bytes.size()); }

}  // namespace

std::string LogHeader() {
  std::string header(kMagic);
  AppendNumber(header, kVersion);
  AppendNumber(header, 0);
  return header;
}

std::string FrameBytes(const v1::ReplayFrame& frame) {
  const std::string payload = frame.SerializeAsString();
  std::string bytes;
  bytes.reserve(kFrameHeaderBytes + payload.size());
  AppendNumber(bytes, static_cast<uint32_t>(payload.size()));
  AppendNumber(bytes, Crc(bytes));
  AppendNumber(bytes, Crc(payload));
  return bytes.append(payload);
}

StatusOr<LogReader> LogReader::Open(std::string_view bytes) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("not a replay log of Phalanx");
  }
  if (const uint32_t version = NumberAt(bytes, 8); version > kVersion) {
    return absl::FailedPreconditionError(
        fmt::format("written by a newer Phalanx (layout {}, this one knows {})", version, kVersion));
  }
  if (bytes.substr(0, kHeaderBytes) != LogHeader()) return absl::DataLossError("damaged at byte 8: its version");
  if (bytes.size() > kMaxLogBytes) return absl::DataLossError(fmt::format("more than {} bytes", kMaxLogBytes));
  LogReader reader(bytes);
  reader.next_at_ = kHeaderBytes;
  PHX_ASSIGN_OR_RETURN(std::optional<v1::ReplayFrame> first, reader.NextFrame());
  if (!first) return absl::DataLossError("cut off before it says what the log is of");
  if (!first->has_start() || first->start().core_case() == v1::ReplayStart::CORE_NOT_SET) {
    return reader.Damage("a start of master or agent was expected");
  }
  PHX_RETURN_IF_ERROR(reader.CheckTime(first->start().now_ms()));
  reader.start_ = std::move(*first->mutable_start());
  return reader;
}

StatusOr<std::optional<RecordedStep>> LogReader::Next() {
  while (!over_) {
    PHX_ASSIGN_OR_RETURN(std::optional<v1::ReplayFrame> frame, NextFrame());
    if (!frame) break;
    if (frame->has_end()) {
      if (next_at_ != bytes_.size()) return Damage("an end with something behind it");
      end_ = frame->end().full() ? LogEnd::kFull : LogEnd::kClosed;
      break;
    }
    if (event_ && !frame->has_decisions()) return Damage("decisions were expected");
    if (!event_ && !frame->has_event()) return Damage("an event was expected");
    if (event_) return RecordedStep{TakeEvent(), std::move(*frame->mutable_decisions())};
    PHX_RETURN_IF_ERROR(CheckTime(frame->event().now_ms()));
    event_ = std::move(*frame->mutable_event());
  }
  over_ = true;
  if (event_) return RecordedStep{TakeEvent(), std::nullopt};
  return std::nullopt;
}

v1::ReplayEvent LogReader::TakeEvent() {
  v1::ReplayEvent event = *std::move(event_);
  event_.reset();
  return event;
}

StatusOr<std::optional<v1::ReplayFrame>> LogReader::NextFrame() {
  frame_at_ = next_at_;
  const std::string_view rest = bytes_.substr(next_at_);
  if (rest.size() < kFrameHeaderBytes) {
    torn_bytes_ = rest.size();
    return std::nullopt;
  }
  const uint32_t length = NumberAt(rest, 0);
  if (length == 0 || NumberAt(rest, 4) != Crc(rest.substr(0, 4))) return Damage("the length of a frame");
  if (length > rest.size() - kFrameHeaderBytes) {
    torn_bytes_ = rest.size();
    return std::nullopt;
  }
  const std::string_view payload = rest.substr(kFrameHeaderBytes, length);
  v1::ReplayFrame frame;
  if (NumberAt(rest, 8) != Crc(payload) || !frame.ParseFromArray(payload.data(), static_cast<int>(length))) {
    return Damage("the contents of a frame");
  }
  next_at_ += kFrameHeaderBytes + length;
  return frame;
}

Status LogReader::Damage(const std::string& what) const {
  return absl::DataLossError(fmt::format("damaged at byte {}: {}", frame_at_, what));
}

Status LogReader::CheckTime(int64_t now_ms) {
  if (now_ms < now_ms_ || now_ms > kMaxNowMs) return Damage("its time");
  now_ms_ = now_ms;
  return absl::OkStatus();
}

}  // namespace phalanx::replay

// For fuzzers: a log that is whole as bytes, of frames that are anything. The checksums would keep a fuzzer out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "phalanx/v1/replay.pb.h"
#include "replay/log.h"

namespace phalanx::replay {

// Each frame is behind its length, of two bytes.
inline std::string FuzzedLog(const uint8_t* data, size_t size) {
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  std::string log = LogHeader();
  while (rest.size() > 2) {
    const size_t length = static_cast<unsigned char>(rest[0]) + 256u * static_cast<unsigned char>(rest[1]);
    const std::string_view payload = rest.substr(2, length);
    v1::ReplayFrame frame;
    if (frame.ParseFromArray(payload.data(), static_cast<int>(payload.size()))) log += FrameBytes(frame);
    rest.remove_prefix(2 + payload.size());
  }
  return log;
}

// Runs the steps of a log of `core`, as far as it can be read. `play` makes its player.
template <typename Play>
void RunLog(std::string_view bytes, v1::ReplayStart::CoreCase core, Play play) {
  auto reader = LogReader::Open(bytes);
  if (!reader.ok() || reader->start().core_case() != core) return;
  const auto player = play(reader->start());
  while (player.ok()) {
    const auto step = reader->Next();
    if (!step.ok() || !*step || !(*player)->Step((*step)->event).ok()) return;
  }
}

// The input as a log, and as the frames of one.
template <typename Play>
void FuzzLog(const uint8_t* data, size_t size, v1::ReplayStart::CoreCase core, Play play) {
  RunLog({reinterpret_cast<const char*>(data), size}, core, play);
  RunLog(FuzzedLog(data, size), core, play);
}

}  // namespace phalanx::replay

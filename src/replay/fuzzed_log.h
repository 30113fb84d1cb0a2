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

}  // namespace phalanx::replay

// A log of a master as bytes, and as frames that are anything: whatever it says, its steps are run or refused.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "master/replay/player.h"
#include "replay/fuzzed_log.h"
#include "replay/log.h"

namespace {

void Play(std::string_view bytes) {
  auto reader = phalanx::replay::LogReader::Open(bytes);
  if (!reader.ok() || !reader->start().has_master()) return;
  const auto player = phalanx::master::PlayMaster(reader->start());
  while (player.ok()) {
    const auto step = reader->Next();
    if (!step.ok() || !*step || !(*player)->Step((*step)->event).ok()) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Play({reinterpret_cast<const char*>(data), size});
  Play(phalanx::replay::FuzzedLog(data, size));
  return 0;
}

// A request to a checkpoint host as anybody may have written it: what is taken of it is within its bounds.
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/check.h"
#include "checkpoint/host/request.h"

using phalanx::checkpoint::Request;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Request request({reinterpret_cast<const char*>(data), size});
  const int64_t number = request.Number("step", -3, 1'000);
  PHX_CHECK(number >= -3 && number <= 1'000, "a number beyond its bounds");
  PHX_CHECK(request.Text("dir", 8).size() <= 8, "a text beyond its bound");
  PHX_CHECK(request.Texts("trackers", 2).size() <= 2, "a list beyond its bound");
  for (const auto& shard : request.Shards("shards")) {
    PHX_CHECK(shard.rank >= phalanx::checkpoint::kMainRank && shard.rank <= std::numeric_limits<int32_t>::max(),
              "a rank beyond its bounds");
  }
  phalanx::checkpoint::ErrorText(request.status());
  return 0;
}

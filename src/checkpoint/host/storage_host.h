// Steps on disk for a rank without an agent: the requests about them (docs/formats/checkpoint-host.md).
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/host/request.h"
#include "checkpoint/storage/tiered.h"

namespace phalanx::checkpoint {

// On one thread, which waits for as long as storage takes.
class StorageHost {
 public:
  // To claim, write, more, shards, close, archive and tidy.
  std::string Answer(Request& request);

 private:
  static StatusOr<nlohmann::json> Claim(Request& request);
  StatusOr<nlohmann::json> Write(Request& request);
  nlohmann::json More();
  StatusOr<nlohmann::json> AddShards(Request& request);
  StatusOr<nlohmann::json> Close(Request& request);
  // Of a directory whose steps were closed with an archive.
  StatusOr<nlohmann::json> Archive(Request& request);
  static StatusOr<nlohmann::json> Tidy(Request& request);

  std::vector<Shard> written_;                                   // of the last image, and not told yet
  std::vector<Shard> shards_;                                    // of the manifest to come
  std::map<std::string, std::shared_ptr<TieredStorage>> tiers_;  // by directory
};

}  // namespace phalanx::checkpoint

// Steps as folders of a file system that all nodes see.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/storage/storage.h"

namespace phalanx::checkpoint {

class PosixStorage : public Storage {
 public:
  using Storage::Storage;

  Status Make() override;
  StatusOr<std::string> Begin(int64_t step, uint64_t epoch) override;
  // Past the page cache, where the file system can.
  StatusOr<Shard> Put(const std::string& step, const FileToPut& file) override;
  Status Publish(const std::string& step, const Manifest& manifest) override;
  Status PointTo(const std::string& step, int64_t number, const std::vector<std::string>& trackers) override;
  StatusOr<std::vector<FoundStep>> List() override;
  FoundStep LookAt(const std::string& step) override;
  Status Read(const std::string& step, const std::string& file, uint64_t offset, std::span<uint8_t> to) override;
  // With several readers.
  Status Check(const std::string& step, const Shard& file) override;
  Status Delete(const std::string& step) override;
  Status Tidy() override;
  std::string PathOf(const std::string& step, const std::string& file) const override;
};

}  // namespace phalanx::checkpoint

// One request to a checkpoint host (docs/formats/checkpoint-host.md), and what it is answered. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"

namespace phalanx::checkpoint {

constexpr size_t kHostPacketBytesMax = 64 << 10;
constexpr size_t kPathBytesMax = 32 << 10;  // of a path in one, or of a job's id

// The fields of a request. Each is asked for once, with its bounds; the first that is missing, of another type or out
// of its bounds makes `status` an InvalidArgument that names it, and those behind it count as empty.
class Request {
 public:
  explicit Request(std::string_view packet);

  // "" where the packet is no request at all.
  const std::string& type() const { return type_; }
  std::string Text(const char* name, size_t bytes_max);
  int64_t Number(const char* name, int64_t min, int64_t max);
  std::vector<std::string> Texts(const char* name, size_t count_max);
  std::vector<Shard> Shards(const char* name);
  const Status& status() const { return status_; }

 private:
  const nlohmann::json* Find(const nlohmann::json& object, const char* name);
  int64_t NumberIn(const nlohmann::json& object, const char* name, int64_t min, int64_t max);
  FileNeed NeedIn(const nlohmann::json& object, const char* name);
  std::string TextIn(const nlohmann::json& object, const char* name, size_t bytes_max);
  void Refuse(const char* name, const std::string& expected);

  nlohmann::json object_;
  std::string type_;
  Status status_;
};

std::string AnswerText(const nlohmann::json& answer);
// {"error": sentence}
std::string ErrorText(const Status& status);

}  // namespace phalanx::checkpoint

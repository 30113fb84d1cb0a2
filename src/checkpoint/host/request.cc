#include "checkpoint/host/request.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>

namespace phalanx::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr size_t kFileNameBytesMax = 255;
constexpr size_t kTypeBytesMax = 32;

}  // namespace

Request::Request(std::string_view packet) : object_(Json::parse(packet, nullptr, false)) {
  if (!object_.is_object()) {
    status_ = absl::InvalidArgumentError("a request is a JSON object");
    return;
  }
  type_ = Text("type", kTypeBytesMax);
}

void Request::Refuse(const char* name, const std::string& expected) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(fmt::format("{} of {}: expected {}", name, type_, expected));
}

const Json* Request::Find(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found == object.end() ? nullptr : &*found;
}

std::string Request::TextIn(const Json& object, const char* name, size_t bytes_max) {
  const Json* const value = Find(object, name);
  if (value != nullptr && value->is_string() && value->get_ref<const std::string&>().size() <= bytes_max) return *value;
  Refuse(name, fmt::format("a text of at most {} bytes", bytes_max));
  return "";
}

int64_t Request::NumberIn(const Json& object, const char* name, int64_t min, int64_t max) {
  const Json* const value = Find(object, name);
  if (value != nullptr && value->is_number_integer()) {
    const bool fits = !value->is_number_unsigned() ||
                      value->get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    const int64_t number = fits ? value->get<int64_t>() : max;
    if (fits && number >= min && number <= max) return number;
  }
  Refuse(name, fmt::format("a whole number from {} to {}", min, max));
  return min;
}

FileNeed Request::NeedIn(const Json& object, const char* name) {
  const std::string text = TextIn(object, name, kTypeBytesMax);
  const std::optional<FileNeed> need = FileNeedOf(text);
  if (!need) Refuse(name, fmt::format("one of {}", fmt::join(kFileNeeds, ", ")));
  return need.value_or(FileNeed::kOwner);
}

std::string Request::Text(const char* name, size_t bytes_max) { return TextIn(object_, name, bytes_max); }

int64_t Request::Number(const char* name, int64_t min, int64_t max) { return NumberIn(object_, name, min, max); }

std::vector<std::string> Request::Texts(const char* name, size_t count_max) {
  const Json* const value = Find(object_, name);
  std::vector<std::string> texts;
  const bool is_list = value != nullptr && value->is_array() && value->size() <= count_max;
  if (!is_list) Refuse(name, fmt::format("a list of at most {} names", count_max));
  if (!is_list) return texts;
  for (const Json& each : *value) {
    if (!each.is_string()) {
      Refuse(name, "texts");
      return {};
    }
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

std::vector<Shard> Request::Shards(const char* name) {
  const Json* const value = Find(object_, name);
  if (value == nullptr || !value->is_array()) {
    Refuse(name, "a list of shards");
    return {};
  }
  std::vector<Shard> shards;
  for (const Json& each : *value) {
    if (!each.is_object()) {
      Refuse(name, "objects");
      return {};
    }
    Shard shard;
    shard.rank = NumberIn(each, "rank", kMainRank, std::numeric_limits<int32_t>::max());
    shard.file = TextIn(each, "file", kFileNameBytesMax);
    shard.bytes = static_cast<uint64_t>(NumberIn(each, "bytes", 0, std::numeric_limits<int64_t>::max()));
    shard.crc32 = static_cast<uint32_t>(NumberIn(each, "crc32", 0, std::numeric_limits<uint32_t>::max()));
    shard.needed_by = NeedIn(each, "needed_by");
    shards.push_back(std::move(shard));
  }
  return shards;
}

std::string AnswerText(const Json& answer) { return answer.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string ErrorText(const Status& status) { return AnswerText({{"error", Message(status)}}); }

}  // namespace phalanx::checkpoint

#include "master/record/detail.h"

namespace phalanx::master {

using nlohmann::ordered_json;

ordered_json Detail(const RecordRow& row) {
  ordered_json detail = ordered_json::parse(row.detail_json, nullptr, /*allow_exceptions=*/false);
  return detail.is_object() ? detail : ordered_json::object();
}

int64_t NumberIn(const ordered_json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

}  // namespace phalanx::master

// What the detail of a record's row says. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "master/record/record.h"

namespace phalanx::master {

// An empty object where the row's detail is none.
nlohmann::ordered_json Detail(const RecordRow& row);
// 0 where the object has no such number.
int64_t NumberIn(const nlohmann::ordered_json& object, const char* key);

}  // namespace phalanx::master

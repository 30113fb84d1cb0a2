// What a check of nodes has found, for people and programs (phalanx status --check). Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "phalanx/v1/admin.pb.h"
#include "phalanx/v1/health.pb.h"

namespace phalanx::cli {

// The verdict, a table of nodes and one of pairs.
std::string CheckText(const v1::CheckSummary& check);
nlohmann::ordered_json CheckJson(const v1::CheckSummary& check);

// "node c is left out for another 9 min 12 s, for the second time: ...", a line each.
std::string LeftOutText(const google::protobuf::RepeatedPtrField<v1::LeftOut>& left_out);
nlohmann::ordered_json LeftOutJson(const google::protobuf::RepeatedPtrField<v1::LeftOut>& left_out);

// What came of `phalanx let-in NODE`.
std::string LetInText(const v1::LetInReply& reply, const std::string& node);
std::string LetInJson(const v1::LetInReply& reply);

}  // namespace phalanx::cli

// What rows of a job's record mean, and how times and tables are told. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/json_text.h"
#include "master/record/detail.h"
#include "master/record/record.h"

namespace phalanx::cli {

using Row = master::RecordRow;
using master::Detail;
using master::NumberIn;

// Local time, to the millisecond.
std::string Clock(int64_t unix_ms, bool date = false);
// "1:02:03"
std::string Span(int64_t ms);
// "1.5 GiB"
std::string Bytes(uint64_t bytes);
// Columns padded to their widest cell; the last is not padded.
std::string Table(const std::vector<std::vector<std::string>>& rows);
// Nothing that a terminal would act upon; lines stay lines.
std::string Printable(std::string text);
// A line's end behind it; what is no UTF-8 is replaced.
std::string Dump(const nlohmann::ordered_json& json, int indent);

// Rows of the job: not those in the place of what the record lost.
int64_t ToldRows(const std::vector<Row>& rows);
// How many rows there are between the first of a run and the last of these that are not among them: ids go from 1,
// by 1. What was lost at the end counts.
int64_t MissingRows(const std::vector<Row>& rows);
// Both lists in one, by id. What the record lost may be remembered: a remembered row counts more than a recorded one
// with its id. What stays lost is said as in the record. Empty where they are of different runs.
std::optional<std::vector<Row>> Merged(const std::vector<Row>& recorded, const std::vector<Row>& remembered);

// A round began or was held, or the job ended.
bool IsTurn(const Row& row);
// A worker ended otherwise than well.
bool IsFailure(const Row& row);
// The first own death in the round that ended; else the rank that ended well before its first failure, which others
// have lost by that; else that failure. Null where there is none.
const Row* FirstCauseOf(const std::vector<const Row*>& rows, uint64_t ended_epoch);
// What is said of a first cause. Its row was written before others were lost by it: of a rank that ended well, that it
// ended early is known only now, and is told as the job's own box tells it.
std::string CauseText(const Row& cause);

}  // namespace phalanx::cli

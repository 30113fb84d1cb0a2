// Rows that the record has lost: the row that says so, and what follows for the ids of the others. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "master/record/record.h"

namespace phalanx::master {

// Stands in the place of the first of `count` rows that were lost; others of them may lie behind rows that were not.
RecordRow LostRow(int64_t id, int64_t count, int64_t unix_ms);
bool IsLostRow(const RecordRow& row);
// How many rows such a row stands for, 1 at least.
int64_t LostCount(const RecordRow& row);

// The id of the row behind all of a run, whose newest rows these are, by id: those that were lost at its end count.
// 1 where there are none.
int64_t NextRowId(const std::vector<RecordRow>& rows);

}  // namespace phalanx::master

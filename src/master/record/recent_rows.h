// What a live master remembers of its record: bounded, and so chosen that the last failures stay explained whatever the
// size of the world. Pure.
//
// Some rows come once for each node or rank: 10,000 nodes step for the first time, 80,000 ranks end as a peer was gone.
// Such a flood must not push out who was first. So of each round the first few rows of a sort are kept apart: they tell
// the story, and are pushed out by later stories alone. Further rows of that sort push out each other. No list says
// which kinds are the many: a new kind needs no place here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "master/record/record.h"

namespace phalanx::master {

// What tells one row's sort from another's within a round: its kind; of workers' ends whether one ended well, by
// itself, or as a peer was gone, since the first own death is what is asked for; and of nodes that left or were lost
// whether the round ended by it, which it does not by a spare's. `number` tells what the row's detail has under a key,
// 0 where it has nothing: who makes a row knows without parsing what he has just written.
std::string SortOf(const std::string& kind, const std::function<int64_t(const char*)>& number);
// Of a row that is read again.
std::string SortOf(const RecordRow& row);

class RecentRows {
 public:
  // Rows of a round and a sort that tell the story.
  static constexpr size_t kTellingOfSort = 16;
  // Rows that are held, of either weight. A restart of a large world has some hundred telling rows.
  static constexpr size_t kHeldOfWeight = 4'096;
  // Rounds whose rows are counted. What comes of an older one is further news.
  static constexpr size_t kRoundsCounted = 64;

  // `sort` is the row's. Ids increase. Returns what the row was taken for.
  RowWeight Add(RecordRow row, const std::string& sort);

  // Those with an id above `after_id`, by id, at most `limit`. Valid until the next Add.
  std::vector<const RecordRow*> After(int64_t after_id, size_t limit) const;
  size_t size() const { return rows_.size(); }

 private:
  RowWeight WeightOf(const RecordRow& row, const std::string& sort);

  std::map<int64_t, RecordRow> rows_;  // by id
  std::map<RowWeight, std::deque<int64_t>> ids_;
  std::map<uint64_t, std::map<std::string, size_t>> counts_;  // by round and sort
};

}  // namespace phalanx::master

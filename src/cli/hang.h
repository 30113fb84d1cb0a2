// A job that makes no step any more: what `phalanx why` says of it, and what `phalanx status --ranks` calls its ranks.
// Its master has found it (src/master/core/stalls.h). Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/rows.h"
#include "phalanx/v1/admin.pb.h"

namespace phalanx::cli {

struct Hang {
  const Row* told = nullptr;  // what the master said when it found it
  int64_t since_unix_ms = 0;  // the last step was seen then
};

// Of the round that goes on. Points into `rows`. None: it steps, or its master has not found it yet.
std::optional<Hang> HangOf(const std::vector<Row>& rows);

// How far the ranks are that could make the next step, as far as they have said.
struct StepsMade {
  int64_t least = 0;
  int64_t most = 0;
  bool by_optimizer = false;  // some ranks tell their steps and others do not: all are compared by their optimizers
};
StepsMade StepsMadeIn(const v1::StatusReply& status);
// "2 behind", "waiting" for one that is not while others are, "" where all ranks are at one step: a rank that waits for
// another within a step has made as many, and nobody can tell the two apart.
std::string PlaceText(const v1::RankStatus& rank, const StepsMade& made);

constexpr size_t kRanksBehindTold = 16;

// Since when, what the master said, and ranks that are behind, where the ranks have said how far they are.
std::string HangText(const Hang& hang, const v1::StatusReply& status, int64_t now_unix_ms);
nlohmann::ordered_json HangJson(const Hang& hang, const v1::StatusReply& status, int64_t now_unix_ms);

}  // namespace phalanx::cli

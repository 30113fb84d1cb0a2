// What is watched of a node's hardware while it trains, and from when on it is worth a word: one table. Pure.
// docs/node-health.md shows it to people, and a test compares both.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace phalanx::agent::watch {

// kGrows: a counter; told when it has grown by `limit` within kWindowMs.
// kFalls: 1 is well and 0 is not; told when it falls.
// kRises: 0 is well; told when it was something else in `limit` readings in a row.
enum class Rule { kGrows, kFalls, kRises };

struct Kind {
  std::string_view name;   // of the value: a file's below /sys, or of docs/formats/node-watch.md; used once
  std::string_view kind;   // NodeFact.kind
  std::string_view title;  // "uncorrectable ECC errors"
  Rule rule = Rule::kGrows;
  int64_t limit = 1;
  bool grave = false;  // such a thing ends a training
};

std::span<const Kind> Kinds();
// Null: nothing of that name is watched.
const Kind* FindKind(std::string_view name);

// An NVIDIA driver's report of a GPU. Not grave are those that a program's own mistake brings about.
struct Xid {
  int64_t number = 0;
  std::string_view meaning;
  bool grave = false;
};

std::span<const Xid> Xids();
// One of a number that the table does not have says so, and is not grave.
const Xid& XidOf(int64_t number);

// Larger numbers are no XIDs.
constexpr int64_t kMaxXid = 1'023;
// Slow growth of a counter is forgotten so often.
constexpr int64_t kWindowMs = 600'000;

// Which of two facts explains more: the smaller number.
int Weight(std::string_view kind);

// Both as rows of a table in Markdown, for docs/node-health.md.
std::string TableForPeople();

}  // namespace phalanx::agent::watch

// Splits a command line the way Python's argparse does, over a table of flags, without knowing what a flag means.
//
// Why not a library (the other commands use CLI11): job scripts in the world rely on argparse's habits, all of which
// this has and no C++ library has together:
//  - REMAINDER: the first word that is no flag is the script, and everything after it belongs to the script untouched
//    (but for one "--" directly behind it, which argparse swallows);
//  - prefix abbreviation (`--redirect=3` is `--redirects=3`), tried against torchrun's own flags before any others, so
//    that a flag of ours never makes one of torchrun's ambiguous;
//  - both spellings, `--nproc-per-node` and `--nproc_per_node`;
//  - what counts as a value: "-1" and "-a b" do, "-x" does not.
// Pure: text in, text out.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace phalanx::agent {

enum class Arity {
  kNone,       // a switch
  kOne,        // exactly one value
  kOneOrMore,  // all values that follow, at least one
};

struct ArgSpec {
  std::vector<std::string> names;  // each with its dashes: "-r", "--redirects"
  Arity arity = Arity::kOne;
  int tier = 0;  // abbreviations are looked up in tier 0 first; a match there hides the later tiers
};

struct ParsedOption {
  size_t spec = 0;                  // index into the table
  std::string name;                 // in full, as the table has it
  std::vector<std::string> values;  // as many as the arity says
};

struct ParsedLine {
  std::vector<ParsedOption> options;  // in the order given
  std::optional<std::string> script;  // the first word that is no flag
  std::vector<std::string> script_args;
  Status status;  // what is wrong with the line; what comes before the fault is in `options`
};

// Both spellings of a long flag: "--log-dir" gives "--log-dir" and "--log_dir".
std::vector<std::string> BothSpellings(const std::string& name);

// Splits `args` (without the program's name) up to the first fault. Errors (InvalidArgument) name the word at fault and
// what would be right: unknown flags suggest the nearest, ambiguous ones list the candidates.
[[nodiscard]] ParsedLine ParseLine(const std::vector<ArgSpec>& specs, const std::vector<std::string>& args);

// The word of `candidates` that is nearest to `word` by edits, or empty where none is near.
std::string Nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace phalanx::agent

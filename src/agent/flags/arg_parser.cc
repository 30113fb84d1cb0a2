#include "agent/flags/arg_parser.h"

#include <algorithm>
#include <cctype>
#include <utility>

namespace phalanx::agent {
namespace {

struct Match {
  size_t spec = 0;
  std::string name;
  std::optional<std::string> attached;  // "--flag=attached", "-rattached"
};

// argparse's rule: ^-\d+$|^-\d*\.\d+$
bool LooksLikeNegativeNumber(std::string_view word) {
  size_t at = 1;
  while (at < word.size() && std::isdigit(static_cast<unsigned char>(word[at]))) ++at;
  if (at == word.size()) return word.size() > 1;
  if (word[at] != '.') return false;
  size_t fraction = ++at;
  while (at < word.size() && std::isdigit(static_cast<unsigned char>(word[at]))) ++at;
  return at == word.size() && at > fraction;
}

class Line {
 public:
  Line(const std::vector<ArgSpec>& specs, const std::vector<std::string>& args) : specs_(specs), args_(args) {}

  ParsedLine Parse() {
    parsed_.status = ParseWords();
    return std::move(parsed_);
  }

 private:
  Status ParseWords() {
    while (at_ < args_.size()) {
      if (args_[at_] == "--") {
        ++at_;
        if (at_ < args_.size()) TakeScript();
        break;
      }
      PHX_ASSIGN_OR_RETURN(std::optional<Match> match, Classify(args_[at_]));
      if (!match) {
        TakeScript();
        bool dashes = !parsed_.script_args.empty() && parsed_.script_args.front() == "--";
        if (dashes) parsed_.script_args.erase(parsed_.script_args.begin());
        break;
      }
      ++at_;
      PHX_RETURN_IF_ERROR(TakeOption(*std::move(match)));
    }
    return absl::OkStatus();
  }

  void TakeScript() {
    parsed_.script = args_[at_];
    parsed_.script_args.assign(args_.begin() + static_cast<ptrdiff_t>(at_) + 1, args_.end());
    at_ = args_.size();
  }

  // No match: the word is not a flag. An error: it looks like one and is none, or could be several.
  StatusOr<std::optional<Match>> Classify(const std::string& word) const {
    if (word.size() < 2 || word[0] != '-') return std::nullopt;
    if (std::optional<Match> exact = Exact(word)) return exact;
    if (word[1] != '-') {
      if (std::optional<Match> match = Exact(word.substr(0, 2))) {
        match->attached = word.substr(2);
        return match;
      }
    } else {
      PHX_ASSIGN_OR_RETURN(std::optional<Match> match, Abbreviated(word));
      if (match) return match;
    }
    if (LooksLikeNegativeNumber(word) || word.find(' ') != std::string::npos) return std::nullopt;
    return Unknown(word);
  }

  std::optional<Match> Exact(const std::string& word) const {
    size_t equals = word.find('=');
    for (size_t i = 0; i < specs_.size(); ++i) {
      for (const std::string& name : specs_[i].names) {
        if (name == word) return Match{i, name, std::nullopt};
        if (name == word.substr(0, equals)) return Match{i, name, word.substr(equals + 1)};
      }
    }
    return std::nullopt;
  }

  StatusOr<std::optional<Match>> Abbreviated(const std::string& word) const {
    size_t equals = word.find('=');
    std::string prefix = word.substr(0, equals);
    int last_tier = 0;
    for (const ArgSpec& spec : specs_) last_tier = std::max(last_tier, spec.tier);
    for (int tier = 0; tier <= last_tier; ++tier) {
      std::vector<Match> matches;
      for (size_t i = 0; i < specs_.size(); ++i) {
        if (specs_[i].tier != tier) continue;
        for (const std::string& name : specs_[i].names) {
          if (name.rfind(prefix, 0) != 0) continue;
          matches.push_back({i, name, std::nullopt});
          break;  // the other spelling means the same flag
        }
      }
      if (matches.size() > 1) return Ambiguous(word, matches);
      if (matches.empty()) continue;
      if (equals != std::string::npos) matches[0].attached = word.substr(equals + 1);
      return std::move(matches[0]);
    }
    return std::nullopt;
  }

  static Status Ambiguous(const std::string& word, const std::vector<Match>& matches) {
    std::string names;
    for (const Match& match : matches) names += fmt::format("{}{}", names.empty() ? "" : ", ", match.name);
    return absl::InvalidArgumentError(fmt::format("ambiguous option: {} could match {}", word, names));
  }

  Status Unknown(const std::string& word) const {
    std::vector<std::string> names;
    for (const ArgSpec& spec : specs_) names.insert(names.end(), spec.names.begin(), spec.names.end());
    std::string nearest = Nearest(word.substr(0, word.find('=')), names);
    if (nearest.empty()) return absl::InvalidArgumentError(fmt::format("unrecognized argument: {}", word));
    return absl::InvalidArgumentError(fmt::format("unrecognized argument: {}; did you mean {}?", word, nearest));
  }

  // Takes the flag's values, and the further switches of a cluster such as -mr3.
  Status TakeOption(Match match) {
    while (specs_[match.spec].arity == Arity::kNone && match.attached) {
      if (match.name[1] == '-' || match.attached->empty()) return Ignored(match);
      std::optional<Match> next = Exact({'-', match.attached->front()});
      if (!next) return Ignored(match);
      std::string rest = match.attached->substr(1);
      parsed_.options.push_back({match.spec, match.name, {}});
      match = *std::move(next);
      if (!rest.empty()) match.attached = rest;
    }
    ParsedOption option{match.spec, match.name, {}};
    Arity arity = specs_[match.spec].arity;
    if (match.attached) {
      option.values.push_back(*match.attached);
    } else if (arity != Arity::kNone) {
      PHX_RETURN_IF_ERROR(TakeValues(option, arity));
    }
    parsed_.options.push_back(std::move(option));
    return absl::OkStatus();
  }

  Status TakeValues(ParsedOption& option, Arity arity) {
    while (at_ < args_.size() && (arity == Arity::kOneOrMore || option.values.empty()) && IsValue(args_[at_])) {
      option.values.push_back(args_[at_++]);
    }
    if (!option.values.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        fmt::format("argument {}: expected {} argument", option.name, arity == Arity::kOne ? "one" : "at least one"));
  }

  bool IsValue(const std::string& word) const {
    if (word == "--") return false;
    StatusOr<std::optional<Match>> match = Classify(word);
    return match.ok() && !match->has_value();
  }

  static Status Ignored(const Match& match) {
    return absl::InvalidArgumentError(
        fmt::format("argument {}: takes no value, but got '{}'", match.name, *match.attached));
  }

  const std::vector<ArgSpec>& specs_;
  const std::vector<std::string>& args_;
  size_t at_ = 0;
  ParsedLine parsed_;
};

// Damerau-Levenshtein distance (adjacent swaps count one).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t replaced = d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::vector<std::string> BothSpellings(const std::string& name) {
  std::string underscored = name;
  for (size_t i = name.find_first_not_of('-'); i < name.size(); ++i) {
    if (underscored[i] == '-') underscored[i] = '_';
  }
  if (underscored == name) return {name};
  return {name, underscored};
}

ParsedLine ParseLine(const std::vector<ArgSpec>& specs, const std::vector<std::string>& args) {
  return Line(specs, args).Parse();
}

std::string Nearest(std::string_view word, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestWord = 64;  // beyond that nobody means a flag
  if (word.size() > kLongestWord) return "";
  std::string nearest;
  size_t least = std::max<size_t>(2, word.size() / 3);
  for (const std::string& candidate : candidates) {
    if (candidate.size() < 4) continue;  // "-r" is near to everything short
    size_t distance = EditDistance(word, candidate);
    if (distance < least || (distance == least && nearest.empty())) {
      nearest = candidate;
      least = distance;
    }
  }
  return nearest;
}

}  // namespace phalanx::agent

#include "agent/flags/completion.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "agent/flags/arg_parser.h"
#include "agent/flags/flag_table.h"

namespace phalanx::agent {
namespace {

enum class ValueKind { kNone, kAny, kWords, kDirectory };

struct Offer {
  std::string letter;  // "r" of -r; empty: none
  std::string name;    // "--redirects"
  std::string what;    // a few words
  std::string metavar;
  ValueKind kind = ValueKind::kNone;
  std::vector<std::string> words;
};

// "null|console|jsonl[:FILE]" offers null, console and jsonl; a metavar with capitals, digits alone or no bar offers
// nothing.
std::vector<std::string> WordsOf(std::string_view metavar) {
  std::vector<std::string> words;
  if (metavar.find('|') == std::string_view::npos) return words;
  for (std::string_view rest = metavar; !rest.empty();) {
    const size_t bar = std::min(rest.find('|'), rest.size());
    const std::string_view word = rest.substr(0, std::min(rest.find('['), bar));
    const bool lower = std::all_of(word.begin(), word.end(), [](char c) { return (c < 'A' || c > 'Z') && c != ':'; });
    const bool letters = std::any_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (lower && letters) words.emplace_back(word);
    rest.remove_prefix(std::min(bar + 1, rest.size()));
  }
  return words;
}

// The beginning of a help text, without what would need quotes in some shell.
std::string Brief(std::string_view help) {
  constexpr size_t kLongest = 72;
  std::string_view text = help.substr(0, help.find_first_of(";:(,["));
  if (text.size() > kLongest) text = text.substr(0, text.rfind(' ', kLongest));
  std::string brief;
  for (char c : text) {
    if (c != '\'' && c != '"' && c != '`' && c != '$' && c != '\\') brief += c;
  }
  while (!brief.empty() && brief.back() == ' ') brief.pop_back();
  return brief;
}

std::vector<Offer> Offers() {
  std::vector<Offer> offers;
  for (const FlagRow& row : FlagTable()) {
    if (row.handler == nullptr || row.help == nullptr) continue;
    Offer offer;
    const std::string names = row.names;
    if (names.find(' ') != std::string::npos) offer.letter = names.substr(1, 1);
    offer.name = MainName(row);
    offer.what = Brief(row.help);
    if (row.arity != Arity::kNone) {
      offer.metavar = row.metavar;
      offer.words = WordsOf(offer.metavar);
      offer.kind = offer.metavar == "DIR" ? ValueKind::kDirectory
                   : offer.words.empty()  ? ValueKind::kAny
                                          : ValueKind::kWords;
    }
    offers.push_back(std::move(offer));
  }
  return offers;
}

std::string Joined(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, " ")); }

std::string BashCases(const std::vector<Offer>& offers) {
  std::string cases;
  std::string silent;
  for (const Offer& offer : offers) {
    const std::string pattern = offer.letter.empty() ? offer.name : fmt::format("-{} | {}", offer.letter, offer.name);
    if (offer.kind == ValueKind::kWords) {
      cases += fmt::format("    {})\n      COMPREPLY=($(compgen -W '{}' -- \"$cur\"))\n      return\n      ;;\n",
                           pattern, Joined(offer.words));
    } else if (offer.kind == ValueKind::kDirectory) {
      cases += fmt::format("    {})\n      COMPREPLY=($(compgen -d -- \"$cur\"))\n      return\n      ;;\n", pattern);
    } else if (offer.kind == ValueKind::kAny) {
      silent += fmt::format("{}{}", silent.empty() ? "" : " | ", pattern);
    }
  }
  return fmt::format("{}    {}) return ;;\n", cases, silent);
}

// COMP_WORDS has '=' as a word of its own.
std::string Bash() {
  const std::vector<Offer> offers = Offers();
  std::vector<std::string> names;
  std::vector<std::string> valued;
  for (const Offer& offer : offers) {
    names.push_back(offer.name);
    if (!offer.letter.empty()) names.push_back("-" + offer.letter);
    if (offer.kind == ValueKind::kNone) continue;
    valued.push_back(offer.name);
    if (!offer.letter.empty()) valued.push_back("-" + offer.letter);
  }
  return fmt::format(
      "# bash completion of phalanx-run\n"
      "_phalanx_run() {{\n"
      "  local cur=\"${{COMP_WORDS[COMP_CWORD]}}\" before=\"${{COMP_WORDS[COMP_CWORD - 1]}}\" word i\n"
      "  local valued=' {} '\n"
      "  COMPREPLY=()\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    word=\"${{COMP_WORDS[i]//_/-}}\"\n"
      "    if [[ $word != -?* ]]; then # the script: what follows is its own\n"
      "      compopt -o default\n"
      "      return\n"
      "    fi\n"
      "    [[ $valued == *\" $word \"* ]] || continue\n"
      "    ((++i))\n"
      "    if [[ ${{COMP_WORDS[i]}} == '=' ]]; then ((++i)); fi\n"
      "  done\n"
      "  if [[ $cur == '=' ]]; then\n"
      "    cur=''\n"
      "  elif [[ $before == '=' ]]; then\n"
      "    before=\"${{COMP_WORDS[COMP_CWORD - 2]}}\"\n"
      "  fi\n"
      "  case \"${{before//_/-}}\" in\n"
      "{}"
      "  esac\n"
      "  if [[ $cur == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W '{}' -- \"$cur\"))\n"
      "  else\n"
      "    compopt -o default\n"
      "  fi\n"
      "}}\n"
      "complete -F _phalanx_run phalanx-run\n",
      Joined(valued), BashCases(offers), Joined(names));
}

std::string ZshSpec(const Offer& offer) {
  std::string metavar;
  for (char c : offer.metavar) metavar += c == ':' ? "\\:" : std::string(1, c);
  std::string action;
  if (offer.kind == ValueKind::kWords) action = fmt::format("({})", Joined(offer.words));
  if (offer.kind == ValueKind::kDirectory) action = "_files -/";
  const std::string value = offer.kind == ValueKind::kNone ? "" : fmt::format(":{}:{}", metavar, action);
  const std::string equals = offer.kind == ValueKind::kNone ? "" : "=";
  std::string specs = fmt::format("'{}{}[{}]{}'", offer.name, equals, offer.what, value);
  if (!offer.letter.empty()) {
    const std::string plus = offer.kind == ValueKind::kNone ? "" : "+";
    specs += fmt::format(" \\\n    '-{}{}[{}]{}'", offer.letter, plus, offer.what, value);
  }
  return specs;
}

// Works as a file of $fpath and when it is sourced.
std::string Zsh() {
  std::string specs;
  for (const Offer& offer : Offers()) specs += fmt::format("    {} \\\n", ZshSpec(offer));
  return fmt::format(
      "#compdef phalanx-run\n"
      "_phalanx_run() {{\n"
      "  _arguments -s \\\n"
      "{}"
      "    '(-)1:script:_files' \\\n"
      "    '(-)*:argument:_files'\n"
      "}}\n"
      "if [[ ${{funcstack[1]}} == _phalanx_run ]]; then\n"
      "  _phalanx_run \"$@\"\n"
      "else\n"
      "  compdef _phalanx_run phalanx-run\n"
      "fi\n",
      specs);
}

std::string Fish() {
  std::string script = "# fish completion of phalanx-run\n";
  for (const Offer& offer : Offers()) {
    std::string line = "complete -c phalanx-run";
    if (!offer.letter.empty()) line += fmt::format(" -s {}", offer.letter);
    line += fmt::format(" -l {}", offer.name.substr(2));
    if (offer.kind == ValueKind::kAny) line += " -x";
    if (offer.kind == ValueKind::kWords) line += fmt::format(" -x -a '{}'", Joined(offer.words));
    if (offer.kind == ValueKind::kDirectory) line += " -x -a '(__fish_complete_directories)'";
    script += fmt::format("{} -d '{}'\n", line, offer.what);
  }
  return script;
}

std::string Tcsh() {
  std::string rules;
  std::vector<std::string> names;
  for (const Offer& offer : Offers()) {
    names.push_back(offer.name.substr(2));
    if (offer.kind == ValueKind::kNone || offer.kind == ValueKind::kAny) continue;
    const std::string list = offer.kind == ValueKind::kDirectory ? "d" : fmt::format("({})", Joined(offer.words));
    rules += fmt::format(" 'c/{}=/{}/' 'n/{}/{}/'", offer.name, list, offer.name, list);
  }
  return fmt::format("# tcsh completion of phalanx-run\ncomplete phalanx-run{} 'c/--/({})/' 'p/*/f/'\n", rules,
                     Joined(names));
}

}  // namespace

StatusOr<std::string> CompletionScript(std::string_view shell) {
  if (shell == "bash") return Bash();
  if (shell == "zsh") return Zsh();
  if (shell == "fish") return Fish();
  if (shell == "tcsh") return Tcsh();
  return absl::InvalidArgumentError("expected bash, zsh, fish or tcsh");
}

}  // namespace phalanx::agent

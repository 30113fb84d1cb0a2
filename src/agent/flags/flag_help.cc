// How the flags are told: --help for people, the tables of docs/flags.md.
#include <algorithm>
#include <array>

#include "agent/flags/flag_table.h"
#include "agent/flags/flags.h"

namespace phalanx::agent {
namespace {

using G = FlagGroup;

struct GroupTitle {
  FlagGroup group;
  const char* title;
};
constexpr std::array<GroupTitle, 10> kGroupTitles = {{
    {G::kJob, "The job"},
    {G::kRendezvous, "How nodes find each other"},
    {G::kScript, "The script"},
    {G::kChecks, "Node checks"},
    {G::kFailures, "Failures and stopping"},
    {G::kOutput, "Output"},
    {G::kWarm, "Warm workers"},
    {G::kPlaces, "Places"},
    {G::kSecurity, "Security"},
    {G::kOther, "Other"},
}};

std::string Wrapped(const std::string& text, size_t indent, size_t width) {
  const std::string new_line = fmt::format("\n{:{}}", "", indent);
  std::string out;
  size_t column = indent;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(' ', at), text.size());
    if (column + (end - at) + 1 > width && column > indent) {
      out += new_line;
      column = indent;
    } else if (at > 0) {
      out += ' ';
      ++column;
    }
    out += text.substr(at, end - at);
    column += end - at;
    at = end + 1;
  }
  return out;
}

std::string RowText(const FlagRow& row) {
  constexpr size_t kIndent = 30;
  std::string left = fmt::format("  {}", Spelling(row));
  bool beside = left.size() + 1 < kIndent;
  return fmt::format("{}{}{:{}}{}\n", left, beside ? "" : "\n", "", beside ? kIndent - left.size() : kIndent,
                     Wrapped(row.help, kIndent, 110));
}

std::string Escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string Standing(const FlagRow& row) {
  switch (row.standing) {
    case FlagStanding::kSame:
      return "same";
    case FlagStanding::kBetter:
      return "better";
    case FlagStanding::kNew:
      return "new";
    case FlagStanding::kIgnored:
      return "no effect";
    case FlagStanding::kUnsupported:
      return "never";
    case FlagStanding::kRefused:
      return row.harmless != nullptr && *row.harmless != '\0' ? fmt::format("refused but for `{}`", row.harmless)
                                                              : "refused";
  }
  return "";
}

std::string MarkdownTable(FlagFamily family) {
  std::string out = "| flag | variable | here | what it does |\n|---|---|---|---|\n";
  for (const FlagRow& row : FlagTable()) {
    if (row.family != family || row.help == nullptr) continue;
    std::string pet = row.pet ? fmt::format("`{}`", PetName(row)) : "";
    out += fmt::format("| `{}` | {} | {} | {} |\n", Escaped(Spelling(row)), pet, Standing(row), Escaped(row.help));
  }
  return out;
}

}  // namespace

std::string HelpText() {
  std::string out =
      "usage: phalanx-run [flags] script [arguments of the script...]\n\n"
      "Runs a training script on every worker of a node or of many, as torchrun does, and brings a rank that dies back "
      "at once.\n"
      "All flags exist with dashes and with underscores; those of torchrun can be set by PET_<FLAG>, too.\n";
  for (const GroupTitle& group : kGroupTitles) {
    out += fmt::format("\n{}\n", group.title);
    for (const FlagRow& row : FlagTable()) {
      if (row.group == group.group && row.handler != nullptr && row.help != nullptr) out += RowText(row);
    }
  }
  std::string refused;
  for (const FlagRow& row : FlagTable()) {
    if (row.handler == nullptr) refused += fmt::format("{}{}", refused.empty() ? "" : " ", MainName(row));
  }
  out += fmt::format("\nKnown from torchrun and dlrover-run, refused\n  {}\n", Wrapped(refused, 2, 110));
  out += "\nExit status: 0; 1 a worker failed; 2 wrong usage; 128+N stopped by signal N.\n";
  return out;
}

std::string HelpTable() {
  return fmt::format("### torchrun's flags\n\n{}\n### dlrover-run's flags\n\n{}\n### New flags\n\n{}",
                     MarkdownTable(FlagFamily::kTorchrun), MarkdownTable(FlagFamily::kDlrover),
                     MarkdownTable(FlagFamily::kPhalanx));
}

}  // namespace phalanx::agent

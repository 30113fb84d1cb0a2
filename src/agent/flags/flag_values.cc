#include "agent/flags/flag_values.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <csignal>
#include <vector>

#include "base/fnv.h"
#include "base/utf8.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kMaxNodes = 1'000'000;
constexpr int64_t kMaxLocalRank = 4095;
// As python/phalanx/node_check/orders.py takes them.
constexpr size_t kMaxNics = 16;
constexpr size_t kMaxNicBytes = 15;  // IFNAMSIZ without its end
constexpr int64_t kMaxSeconds = 10LL * 366 * 24 * 3600;

Status Expected(std::string_view what) { return absl::InvalidArgumentError(fmt::format("expected {}", what)); }

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetterOrDigit(char c) { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool AllDigits(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit); }

std::string_view Trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

std::string_view Unquote(std::string_view text) {
  text = Trim(text);
  if (text.size() >= 2 && text.front() == text.back() && (text.front() == '\'' || text.front() == '"')) {
    text = Trim(text.substr(1, text.size() - 2));
  }
  return text;
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

struct NamedSignal {
  const char* name;
  int number;
};
constexpr std::array<NamedSignal, 18> kSignals = {{
    {"SIGHUP", SIGHUP},
    {"SIGINT", SIGINT},
    {"SIGQUIT", SIGQUIT},
    {"SIGUSR1", SIGUSR1},
    {"SIGUSR2", SIGUSR2},
    {"SIGALRM", SIGALRM},
    {"SIGTERM", SIGTERM},
    {"SIGCONT", SIGCONT},
    {"SIGTSTP", SIGTSTP},
    {"SIGTTIN", SIGTTIN},
    {"SIGTTOU", SIGTTOU},
    {"SIGURG", SIGURG},
    {"SIGXCPU", SIGXCPU},
    {"SIGXFSZ", SIGXFSZ},
    {"SIGVTALRM", SIGVTALRM},
    {"SIGPROF", SIGPROF},
    {"SIGIO", SIGIO},
    {"SIGPWR", SIGPWR},
}};

StatusOr<uint16_t> ParsePort(std::string_view text) {
  StatusOr<int64_t> port = ParseInteger(text, 0, 65535);
  if (!port.ok() || !AllDigits(text)) return Expected("a port between 0 and 65535 behind the last ':'");
  return static_cast<uint16_t>(*port);
}

}  // namespace

StatusOr<int64_t> ParseInteger(std::string_view text, int64_t least, int64_t most) {
  std::string_view digits = text;
  if (digits.size() > 1 && digits[0] == '+') digits.remove_prefix(1);
  int64_t value = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  bool signed_twice = digits.size() != text.size() && digits[0] == '-';
  if (error != std::errc() || end != digits.data() + digits.size() || signed_twice || value < least || value > most) {
    return Expected(fmt::format("a whole number between {} and {}", least, most));
  }
  return value;
}

StatusOr<int64_t> ParseSecondsToMs(std::string_view text) {
  Status wrong = Expected("seconds, such as 30 or 0.5, not negative and at most ten years");
  size_t dot = text.find('.');
  std::string_view whole = text.substr(0, dot);
  std::string_view fraction = dot == std::string_view::npos ? "" : text.substr(dot + 1);
  if (whole.empty() && fraction.empty()) return wrong;
  if ((!whole.empty() && !AllDigits(whole)) || (!fraction.empty() && !AllDigits(fraction))) return wrong;
  int64_t ms = 0;
  if (!whole.empty()) {
    StatusOr<int64_t> seconds = ParseInteger(whole, 0, kMaxSeconds);
    if (!seconds.ok()) return wrong;
    ms = *seconds * 1000;
  }
  int64_t unit = 100;
  for (size_t i = 0; i < fraction.size() && i < 3; ++i, unit /= 10) ms += (fraction[i] - '0') * unit;
  bool finer = fraction.size() > 3 && fraction.find_first_not_of('0', 3) != std::string_view::npos;
  return finer ? ms + 1 : ms;
}

StatusOr<std::pair<uint32_t, uint32_t>> ParseNodes(std::string_view text) {
  size_t colon = text.find(':');
  StatusOr<int64_t> least = ParseInteger(text.substr(0, colon), 1, kMaxNodes);
  StatusOr<int64_t> most = colon == std::string_view::npos ? least : ParseInteger(text.substr(colon + 1), 1, kMaxNodes);
  if (!least.ok() || !most.ok() || *least > *most) {
    return Expected(fmt::format("N or MIN:MAX nodes with 0 < MIN <= MAX <= {}", kMaxNodes));
  }
  return std::pair{static_cast<uint32_t>(*least), static_cast<uint32_t>(*most)};
}

StatusOr<StoreRelayMode> ParseStoreRelay(std::string_view text) {
  if (text == "auto") return StoreRelayMode::kAuto;
  if (text == "on") return StoreRelayMode::kOn;
  if (text == "off") return StoreRelayMode::kOff;
  return Expected("auto, on or off");
}

StatusOr<uint32_t> ParseNodeUnit(std::string_view text) {
  PHX_ASSIGN_OR_RETURN(const int64_t unit, ParseInteger(text, 1, kMaxNodes));
  return static_cast<uint32_t>(unit);
}

StatusOr<std::pair<uint32_t, uint32_t>> NodesInUnits(std::pair<uint32_t, uint32_t> nodes, uint32_t unit) {
  const uint32_t least = (nodes.first + unit - 1) / unit * unit;
  const uint32_t most = nodes.second / unit * unit;
  if (least <= most) return std::pair(least, most);
  return Expected(fmt::format("a number of nodes, or a range, with a multiple of --node-unit={} in it", unit));
}

StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParseBoxPairs(std::string_view text) {
  constexpr int64_t kMaxDevice = 4'095;
  const Status expected = absl::InvalidArgumentError(
      "expected pairs of GPUs like 0:1 2:4, each GPU once; before the script -- or another flag");
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  std::set<int64_t> seen;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (word.empty()) continue;
    const size_t colon = word.find(':');
    if (colon == std::string_view::npos || pairs.size() == static_cast<size_t>(kMaxBoxPairs)) return expected;
    const StatusOr<int64_t> a = ParseInteger(word.substr(0, colon), 0, kMaxDevice);
    const StatusOr<int64_t> b = ParseInteger(word.substr(colon + 1), 0, kMaxDevice);
    if (!a.ok() || !b.ok() || !seen.insert(*a).second || !seen.insert(*b).second) return expected;
    pairs.emplace_back(static_cast<uint32_t>(*a), static_cast<uint32_t>(*b));
  }
  if (pairs.empty()) return expected;
  return pairs;
}

StatusOr<bool> ParseBool(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* word : {"1", "true", "t", "yes", "y"}) {
    if (lower == word) return true;
  }
  for (const char* word : {"0", "false", "f", "no", "n"}) {
    if (lower == word) return false;
  }
  return Expected("true or false");
}

StatusOr<std::string> ParseHost(std::string_view text) {
  text = Trim(text);
  bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ']';
  if (bracketed) text = text.substr(1, text.size() - 2);
  bool is_v6 = std::count(text.begin(), text.end(), ':') >= 2;
  std::string_view address = is_v6 ? text.substr(0, text.find('%')) : text;  // fe80::1%eth0
  bool known = std::all_of(address.begin(), address.end(), [&](char c) {
    return IsLetterOrDigit(c) || c == '.' || (is_v6 ? c == ':' : c == '-' || c == '_');
  });
  bool zone_known = address.size() == text.size() ||
                    std::all_of(text.begin() + static_cast<ptrdiff_t>(address.size()) + 1, text.end(),
                                [](char c) { return IsLetterOrDigit(c) || c == '.' || c == '-' || c == '_'; });
  if (address.empty() || !known || !zone_known || bracketed != (bracketed && is_v6) || text.size() > 253) {
    return Expected("a host name, an IPv4 address, or an IPv6 address such as [2001:db8::1]");
  }
  return std::string(text);
}

StatusOr<Endpoint> ParseEndpoint(std::string_view text) {
  text = Trim(text);
  Endpoint endpoint;
  std::string_view host = text;
  bool bare_v6 = !text.empty() && text.front() != '[' && std::count(text.begin(), text.end(), ':') >= 2;
  size_t colon = text.rfind(':');
  bool inside_brackets = !text.empty() && text.back() == ']';
  if (!bare_v6 && !inside_brackets && colon != std::string_view::npos) {
    host = text.substr(0, colon);
    PHX_ASSIGN_OR_RETURN(endpoint.port, ParsePort(text.substr(colon + 1)));
    if (host.empty()) return endpoint;
  }
  StatusOr<std::string> parsed = ParseHost(host);
  if (!parsed.ok()) return Expected("HOST, HOST:PORT or [IPV6]:PORT");
  endpoint.host = *std::move(parsed);
  return endpoint;
}

StatusOr<StreamMap> ParseStreamMap(std::string_view text) {
  Status wrong = Expected("0, 1, 2 or 3 for all local ranks, or a list such as 0:3,11:1 (1 stdout, 2 stderr, 3 both)");
  StreamMap map;
  if (text.find(':') == std::string_view::npos) {
    StatusOr<int64_t> streams = ParseInteger(text, 0, 3);
    if (!streams.ok() || text.size() != 1) return wrong;
    map.for_all = static_cast<int>(*streams);
    return map;
  }
  for (std::string_view entry : Split(text, ',')) {
    size_t colon = entry.find(':');
    if (colon == std::string_view::npos || !AllDigits(entry.substr(0, colon)) || entry.size() != colon + 2)
      return wrong;
    StatusOr<int64_t> rank = ParseInteger(entry.substr(0, colon), 0, kMaxLocalRank);
    StatusOr<int64_t> streams = ParseInteger(entry.substr(colon + 1), 0, 3);
    if (!rank.ok() || !streams.ok()) return wrong;
    map.by_local_rank[static_cast<int>(*rank)] = static_cast<int>(*streams);
  }
  return map;
}

StatusOr<std::set<int>> ParseLocalRanks(std::string_view text) {
  std::set<int> ranks;
  for (std::string_view entry : Split(text, ',')) {
    StatusOr<int64_t> rank = ParseInteger(Trim(entry), 0, kMaxLocalRank);
    if (!rank.ok()) return Expected("local ranks with commas between them, such as 0,1,2");
    ranks.insert(static_cast<int>(*rank));
  }
  return ranks;
}

StatusOr<std::vector<std::string>> ParseNics(std::string_view text) {
  const Status wrong = Expected(fmt::format(
      "up to {} names of network interfaces with commas between them, each once, such as eth1,eth2", kMaxNics));
  const auto belongs = [](char c) { return IsLetterOrDigit(c) || c == '_' || c == '.' || c == '-'; };
  std::vector<std::string> nics;
  for (const std::string_view entry : Split(text, ',')) {
    const std::string_view name = Trim(entry);
    const bool is_name = !name.empty() && name.size() <= kMaxNicBytes && std::ranges::all_of(name, belongs);
    if (!is_name || nics.size() == kMaxNics || std::ranges::find(nics, name) != nics.end()) return wrong;
    nics.emplace_back(name);
  }
  return nics;
}

StatusOr<std::set<int>> ParseSignals(std::string_view text) {
  std::set<int> signals;
  for (std::string_view entry : Split(text, ',')) {
    std::string_view name = Trim(entry);
    auto known = std::find_if(kSignals.begin(), kSignals.end(), [&](const NamedSignal& s) { return name == s.name; });
    if (known == kSignals.end()) {
      std::string names;
      for (const NamedSignal& signal : kSignals) names += fmt::format("{}{}", names.empty() ? "" : ", ", signal.name);
      return Expected(
          fmt::format("names with commas between them, not '{}'; those that can be handled are {}", name, names));
    }
    signals.insert(known->number);
  }
  return signals;
}

std::vector<std::string> ParseFilters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      filters.back() += text[at];
    } else if (text.substr(at, 2) == ",,") {
      filters.back() += ',';
      ++at;
    } else {
      filters.emplace_back();
    }
  }
  std::erase(filters, "");
  return filters;
}

StatusOr<std::pair<uint16_t, uint16_t>> ParsePortRange(std::string_view text) {
  size_t dash = text.find('-');
  StatusOr<int64_t> first = ParseInteger(text.substr(0, dash), 1, 65535);
  StatusOr<int64_t> last = dash == std::string_view::npos ? StatusOr<int64_t>(Expected("two"))
                                                          : ParseInteger(text.substr(dash + 1), 1, 65535);
  // A node holds the next round's port while the store of this round is open.
  if (!first.ok() || !last.ok() || *first >= *last) {
    return Expected("FIRST-LAST with 1 <= FIRST < LAST <= 65535, two ports at least, such as 20000-20999");
  }
  return std::pair{static_cast<uint16_t>(*first), static_cast<uint16_t>(*last)};
}

StatusOr<std::map<std::string, std::string>> ParseKeyValues(std::string_view text) {
  std::map<std::string, std::string> values;
  text = Unquote(text);
  if (text.empty()) return values;
  for (std::string_view entry : Split(text, ',')) {
    size_t equals = entry.find('=');
    std::string_view key = Unquote(entry.substr(0, equals));
    std::string_view value = equals == std::string_view::npos ? "" : Unquote(entry.substr(equals + 1));
    if (key.empty() || value.empty())
      return Expected("KEY=VALUE,KEY=VALUE, such as join_timeout=600,last_call_timeout=1");
    values[std::string(key)] = std::string(value);
  }
  return values;
}

const char* Name(NumaBinding binding) {
  switch (binding) {
    case NumaBinding::kNode:
      return "node";
    case NumaBinding::kSocket:
      return "socket";
    case NumaBinding::kExclusive:
      return "exclusive";
    case NumaBinding::kCoreComplex:
      return "core-complex";
    case NumaBinding::kNone:
      break;
  }
  return nullptr;
}

bool IsCleanText(std::string_view text) {
  while (!text.empty()) {
    size_t length = Utf8Length(text);
    bool control = static_cast<unsigned char>(text[0]) < 0x20 || text[0] == 0x7f;
    if (length == 0 || control) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::string JobDirectoryName(std::string_view job_id) {
  auto allowed = [](char c) { return IsLetterOrDigit(c) || c == '.' || c == '_' || c == '-'; };
  bool leads_well = !job_id.empty() && job_id.front() != '.' && job_id.front() != '-';
  if (leads_well && job_id != kSharedTokenFile && job_id.size() <= 100 &&
      std::all_of(job_id.begin(), job_id.end(), allowed))
    return std::string(job_id);
  std::string name(job_id.substr(0, 80));
  for (char& c : name) c = allowed(c) ? c : '_';
  return fmt::format("{}{}-{:016x}", leads_well ? "" : "job", name, Fnv1a().Add(job_id).value());
}

std::string MastersDirectoryName(std::string_view job_id, std::string_view hostname, uint16_t port) {
  if (job_id != kUnchosenId) return JobDirectoryName(job_id);
  return fmt::format("{}{}{}-{}", kUnchosenId, kSharedIdMark, JobDirectoryName(hostname), port);
}

std::string TokenIn(const std::string& text) { return text.substr(0, text.find_first_of("\r\n")); }

Status CheckToken(const std::string& token) {
  constexpr size_t kBytesMax = 4'096;
  const bool printable = std::all_of(token.begin(), token.end(), [](char c) { return c > 0x20 && c < 0x7f; });
  if (printable && !token.empty() && token.size() <= kBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("expected 1 to {} printable ASCII characters without spaces", kBytesMax));
}

std::string TokenWeakness(const std::string& token) {
  constexpr size_t kCharactersMin = 16;
  if (token.empty() || token.size() >= kCharactersMin) return "";
  return fmt::format("a token of {} character{} may be guessed; `openssl rand -hex 16` makes one that cannot",
                     token.size(), token.size() == 1 ? "" : "s");
}

}  // namespace phalanx::agent

// The values that flags and PET_* variables carry, from text to numbers. Pure.
// Errors (InvalidArgument) say what would be right ("expected ..."); the caller puts the flag and the value in front.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/flags/config.h"
#include "base/status.h"

namespace phalanx::agent {

// In the state directory, where nobody gives a token: the one of all jobs that keep their state there.
constexpr char kSharedTokenFile[] = "job-token";
// The token of a file: its first line.
std::string TokenIn(const std::string& text);
// Why it is no token; never the token itself. Pure.
Status CheckToken(const std::string& token);
// What would make it easy to guess; empty: nothing.
std::string TokenWeakness(const std::string& token);

// A decimal integer between `least` and `most`; a sign is taken, spaces and anything else are not.
[[nodiscard]] StatusOr<int64_t> ParseInteger(std::string_view text, int64_t least, int64_t most);

// "30", "0.5", ".25" seconds to milliseconds, without floating point; what is finer than a millisecond is rounded up,
// so that a wait asked for is never none. At most 10 years.
[[nodiscard]] StatusOr<int64_t> ParseSecondsToMs(std::string_view text);

// "N" or "MIN:MAX" with 0 < MIN <= MAX <= 1,000,000.
[[nodiscard]] StatusOr<std::pair<uint32_t, uint32_t>> ParseNodes(std::string_view text);

// 1 to 1,000,000: nodes train in multiples of it.
[[nodiscard]] StatusOr<uint32_t> ParseNodeUnit(std::string_view text);

// The multiples of `unit` within the range: 1:5 by 2 is 2:4. The error says so where there are none.
[[nodiscard]] StatusOr<std::pair<uint32_t, uint32_t>> NodesInUnits(std::pair<uint32_t, uint32_t> nodes, uint32_t unit);

// torch's words for true and false, in any case: 1 true t yes y, 0 false f no n.
[[nodiscard]] StatusOr<bool> ParseBool(std::string_view text);

struct Endpoint {
  std::string host;  // without brackets; empty where only ":port" was given
  std::optional<uint16_t> port;
};
// Pairs of --switchbox-check, as of one node.
constexpr int64_t kMaxBoxPairs = 64;
// "0:1 2:4": two different devices each, none in two pairs.
[[nodiscard]] StatusOr<std::vector<std::pair<uint32_t, uint32_t>>> ParseBoxPairs(std::string_view text);

// "eth1,eth2": names of network interfaces.
[[nodiscard]] StatusOr<std::vector<std::string>> ParseNics(std::string_view text);

// "host", "host:port", ":port", "[v6]", "[v6]:port" or a bare IPv6 address (two colons or more, hence without a port).
[[nodiscard]] StatusOr<Endpoint> ParseEndpoint(std::string_view text);

// A host alone: a name, an IPv4 address, or an IPv6 address with or without brackets; returned without.
[[nodiscard]] StatusOr<std::string> ParseHost(std::string_view text);

// "0" to "3" for all local ranks, or "RANK:0-3,..." where ranks that are not named get 0. 1 = stdout, 2 = stderr, 3 =
// both.
[[nodiscard]] StatusOr<StreamMap> ParseStreamMap(std::string_view text);

// "0,2,10".
[[nodiscard]] StatusOr<std::set<int>> ParseLocalRanks(std::string_view text);

// "SIGTERM,SIGUSR1": names of signals that a process can handle and live on.
[[nodiscard]] StatusOr<std::set<int>> ParseSignals(std::string_view text);

// "apple,orange": texts to look for in lines; ",," is a comma within one, empty ones are dropped. Never fails.
[[nodiscard]] std::vector<std::string> ParseFilters(std::string_view text);

// "auto", "on" or "off".
[[nodiscard]] StatusOr<StoreRelayMode> ParseStoreRelay(std::string_view text);

// "20000-20999".
[[nodiscard]] StatusOr<std::pair<uint16_t, uint16_t>> ParsePortRange(std::string_view text);

// "key=value,key=value". Quotes around the whole or around a value are taken off, as they reach us from job files that
// quote twice. Of a key that stands there twice the last counts.
[[nodiscard]] StatusOr<std::map<std::string, std::string>> ParseKeyValues(std::string_view text);

// "core-complex"; nullptr for kNone.
const char* Name(NumaBinding binding);

// Whether text may travel in messages and be shown: valid UTF-8 without control characters.
bool IsCleanText(std::string_view text);

// The name of the directory that belongs to a job: the id itself where it consists of letters, digits, '.', '_' and
// '-', does not begin with '.', '-' and is not longer than 100; else each other byte becomes '_', it is cut to 80,
// "job" is put before a leading '.' or '-', and "-" with 16 hexadecimal digits (FNV-1a of the whole id) follows, so
// that ids that differ keep directories that differ. The result is one path component and never "." or "..".
std::string JobDirectoryName(std::string_view job_id);

// The job id where nobody chose one, as torchrun's. Many jobs of a user have it.
constexpr const char* kUnchosenId = "none";
// What follows an id that jobs share, in the names of their directories. JobDirectoryName never makes it.
constexpr const char* kSharedIdMark = "@";

// The directory of a job's master: JobDirectoryName(job_id), or, where nobody chose an id, one that other jobs of this
// user do not have, on this host or on another one with the same home: "none@<host>-<port>".
std::string MastersDirectoryName(std::string_view job_id, std::string_view hostname, uint16_t port);

}  // namespace phalanx::agent

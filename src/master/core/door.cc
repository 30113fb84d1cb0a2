#include "master/core/door.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "master/core/members.h"
#include "master/core/platform.h"
#include "master/rules/mixed_world.h"
#include "wire/protocol.h"

namespace phalanx::master {

bool IsMember(const JobState& state, const v1::Hello& hello) {
  if (!state.round || hello.live_round().epoch() != state.round->epoch) return false;
  if (hello.live_round().term() != state.round->term) return false;
  if (hello.live_round().group_rank() >= state.round->slots.size()) return false;
  const Slot& slot = state.round->slots[hello.live_round().group_rank()];
  return slot.node_id == hello.node_id() && slot.local_world_size == hello.local_world_size();
}

namespace {

using Sentence = std::optional<std::string>;

// Only what may be shown: a text from outside is not repeated at length, and only in printable ASCII.
std::string Shown(const std::string& text, size_t bytes_max = 64) {
  std::string shown = text.substr(0, bytes_max);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < 0x20 || c >= 0x7f; }, '?');
  return shown;
}

Sentence CheckIdentity(const JobState& state, const v1::Hello& hello) {
  // First: who does not know the job's id learns nothing of it.
  if (!state.IsCalled(hello.job_id())) {
    return fmt::format("this master serves another job than '{}': check --rdzv-id and --rdzv-endpoint",
                       Shown(hello.job_id()));
  }
  if (hello.protocol_version() != wire::kProtocolVersion) {
    return fmt::format(
        "this master speaks protocol version {} (Phalanx {}), the node version {} (Phalanx {}): install the "
        "same Phalanx on all nodes",
        wire::kProtocolVersion, PHALANX_VERSION, hello.protocol_version(), Shown(hello.software_version()));
  }
  return std::nullopt;
}

Sentence CheckSizes(const v1::Hello& hello) {
  auto bad_name = [](const std::string& s) { return s.empty() || s.size() > kMaxNameBytes; };
  if (bad_name(hello.node_id()))
    return fmt::format("node id of {} bytes: 1 to {} are allowed", hello.node_id().size(), kMaxNameBytes);
  if (bad_name(hello.hostname())) {
    return fmt::format("host name of {} bytes: 1 to {} are allowed", hello.hostname().size(), kMaxNameBytes);
  }
  if (hello.role().size() > kMaxNameBytes) {
    return fmt::format("role of {} bytes: at most {} are allowed (--role)", hello.role().size(), kMaxNameBytes);
  }
  if (hello.local_world_size() == 0 || hello.local_world_size() > kMaxLocalWorldSize) {
    return fmt::format("{} workers on one node: 1 to {} are allowed (--nproc-per-node)", hello.local_world_size(),
                       kMaxLocalWorldSize);
  }
  return std::nullopt;
}

Sentence CheckAddresses(const v1::Hello& hello, uint32_t next_store_port) {
  if (!IsIpAddress(hello.address())) {
    return fmt::format("node address '{}' is not an IP address: give one of the node's own with --local-addr",
                       Shown(hello.address()));
  }
  if (hello.interface_addresses_size() > static_cast<int>(kMaxInterfaceAddresses)) {
    return fmt::format("{} interface addresses: at most {} are allowed", hello.interface_addresses_size(),
                       kMaxInterfaceAddresses);
  }
  for (const std::string& address : hello.interface_addresses()) {
    if (!IsIpAddress(address)) return fmt::format("interface address '{}' is not an IP address", Shown(address));
  }
  if (next_store_port == 0 || next_store_port > UINT16_MAX) {
    return fmt::format("port {} for the next store: 1 to 65535 are allowed", next_store_port);
  }
  if (std::max(hello.master_port(), hello.presence_port()) > UINT16_MAX) {
    return fmt::format("port {} for a master to be: up to 65535 are allowed",
                       std::max(hello.master_port(), hello.presence_port()));
  }
  return std::nullopt;
}

Sentence NodesFault(const v1::JobSpec& spec) {
  if (spec.min_nodes() == 0 || spec.min_nodes() > spec.max_nodes() || spec.max_nodes() > kMaxNodes) {
    return fmt::format("--nnodes={}:{}: expected 0 < MIN <= MAX <= {}", spec.min_nodes(), spec.max_nodes(), kMaxNodes);
  }
  if (spec.min_nodes() % spec.node_unit() != 0 || spec.max_nodes() % spec.node_unit() != 0) {
    return fmt::format("--nnodes={}: expected multiples of --node-unit={}", NodesText(spec), spec.node_unit());
  }
  return std::nullopt;
}

Sentence ElasticFault(const v1::JobSpec& spec) {
  if (spec.elastic_config().empty()) return std::nullopt;
  if (spec.elastic_config().size() > elasticity::kBlockBytesMax) {
    return fmt::format("--elastic-config: at most {} bytes are allowed", elasticity::kBlockBytesMax);
  }
  const auto sizes = SizesOf(spec);
  if (!sizes.ok()) {
    return fmt::format("--elastic-config: {}: {}", sizes.error().type, Shown(sizes.error().message, kMaxNameBytes));
  }
  if (sizes->world_sizes.empty() || sizes->world_sizes.back() < spec.min_nodes()) {
    return fmt::format("--elastic-config: no valid world size is as large as the fewest nodes of --nnodes={}",
                       NodesText(spec));
  }
  return std::nullopt;
}

// Nodes with too many different numbers of ranks make too many worlds to choose from. One that comes back to its place
// was let in before.
Sentence CheckKind(const JobState& state, const v1::Hello& hello) {
  if (!state.sizes || IsMember(state, hello)) return std::nullopt;
  const auto known = state.session_of.find(hello.node_id());  // it comes again; what it was counts no more
  const uint32_t before = known == state.session_of.end() ? 0 : state.nodes.at(known->second).hello.local_world_size();
  std::set<uint32_t> kinds;
  for (const auto& [ranks, kind] : state.census.kinds()) {
    if (ranks != before || kind.nodes > 1) kinds.insert(ranks);
  }
  if (kinds.contains(hello.local_world_size()) || kinds.size() < kNodeKindsMax) return std::nullopt;
  return fmt::format("{} workers on this node, and {} on others: with --elastic-config expected one of these",
                     hello.local_world_size(), fmt::join(kinds, " or "));
}

// The job's sizes, or those that it began with: numbers of a command that happen to be the platform's own, until that
// wants others.
bool IsAskedFor(const v1::JobSpec& spec, const v1::JobSpec& asked) {
  if (asked.min_nodes() == spec.min_nodes() && asked.max_nodes() == spec.max_nodes()) return true;
  return spec.sized_by_platform() && asked.min_nodes() == AskedMinNodes(spec) &&
         asked.max_nodes() == spec.asked_max_nodes();
}

Sentence CheckSpec(const JobState& state, const v1::Hello& hello) {
  const v1::JobSpec& asked = hello.spec();
  if (Sentence no = state.spec ? NodesFault(asked) : SpecFault(asked)) return no;
  const v1::JobSpec& spec = state.spec ? *state.spec : asked;
  if (asked.check().only() != spec.check().only()) {
    return spec.check().only()
               ? "phalanx check is there, and trains nothing: wait for its end, or give another --rdzv-id "
                 "and another port"
               : "a job trains there: give phalanx check an --rdzv-id and a port of its own";
  }
  const bool sized = spec.sized_by_platform() && asked.sized_by_platform();
  if (!sized && !IsAskedFor(spec, asked)) {
    return fmt::format("--nnodes={} differs from the job's --nnodes={}: give the same on all nodes", NodesText(asked),
                       NodesText(spec));
  }
  if (asked.node_unit() != spec.node_unit()) {
    return fmt::format("--node-unit={} differs from the job's --node-unit={}: give the same on all nodes",
                       asked.node_unit(), spec.node_unit());
  }
  if (asked.elastic_config() != spec.elastic_config()) {
    return fmt::format("--elastic-config: the job has {}, and this node {}: give the same on all nodes",
                       spec.elastic_config().empty() ? "none" : "one",
                       asked.elastic_config().empty()  ? "none"
                       : spec.elastic_config().empty() ? "one"
                                                       : "another");
  }
  const v1::JobSpec& nodes = asked.max_nodes() > spec.max_nodes() ? asked : spec;
  if (hello.node_rank_wanted() < -1 || hello.node_rank_wanted() >= static_cast<int64_t>(nodes.max_nodes())) {
    return fmt::format("--node-rank={}: expected 0 to {}, as --nnodes={}", hello.node_rank_wanted(),
                       nodes.max_nodes() - 1, NodesText(nodes));
  }
  return std::nullopt;
}

bool HasNodeAt(const JobState& state, const std::string& peer_address) {
  return std::ranges::any_of(state.nodes, [&peer_address](const auto& entry) {
    return !peer_address.empty() && entry.second.peer_address == peer_address;
  });
}

// Where nobody proves that it belongs to the job, who is not needed is not let in: a spare would be given the rank, and
// the memory, of the next node that is lost. Not meant are machines that have a node of the job, or have had it, as far
// as this master knows: it knows too little while it waits for the nodes of one before it.
Sentence CheckOpenPlaces(const JobState& state, const AgentAttached& attached, Instant now) {
  if (!state.open || !state.spec || state.back_by != kNever || state.phase == Phase::kFinished) return std::nullopt;
  const size_t away = state.round ? state.round->away : 0;
  // Most come while there are places: that is seen without a look at each node that is here.
  if (state.nodes.size() + away < state.spec->max_nodes()) return std::nullopt;
  const std::string& node_id = attached.hello().node_id();
  if (state.session_of.contains(node_id) || state.lost_places.contains(node_id)) return std::nullopt;
  if (IsMember(state, attached.hello())) return std::nullopt;
  const auto taken = std::ranges::count_if(
      state.nodes, [](const auto& entry) { return !entry.second.leaving && entry.second.left_out.empty(); });
  if (static_cast<size_t>(taken) + away < state.spec->max_nodes()) return std::nullopt;
  if (HasNodeAt(state, attached.peer_address)) return std::nullopt;
  // What comes in a silent node's stead may be quicker than its lease.
  const bool some_is_silent = std::ranges::any_of(state.nodes, [now](const auto& entry) {
    return now - entry.second.last_heard > 2 * entry.second.beat_interval_ms;
  });
  if (some_is_silent) return std::nullopt;
  return fmt::format(
      "all {} places of job '{}' are taken, and it is open: it takes spares only from machines that have a node of it. "
      "Start this node when one has gone, or give all nodes the same token (--job-token-file)",
      state.spec->max_nodes(), state.job_id);
}

Sentence CheckPlace(const JobState& state, const v1::Hello& hello) {
  const auto wanting = state.session_wanting.find(hello.node_rank_wanted());
  if (hello.node_rank_wanted() >= 0 && wanting != state.session_wanting.end()) {
    const Node& holder = state.nodes.at(wanting->second);
    if (holder.hello.node_id() != hello.node_id()) {
      return fmt::format(
          "--node-rank={} is already taken by node {} in job '{}': give each node its own, and another job another "
          "port",
          hello.node_rank_wanted(), NodeName(state, holder.hello), state.job_id);
    }
  }
  const size_t max_nodes = state.spec ? state.spec->max_nodes() : hello.spec().max_nodes();
  if (state.nodes.size() >= max_nodes + kMaxSpares) {
    return fmt::format("{} nodes are there already, {} of them spares", state.nodes.size(), kMaxSpares);
  }
  return std::nullopt;
}

Sentence CheckHello(const JobState& state, const AgentAttached& attached, Instant now) {
  const v1::Hello& hello = attached.hello();
  if (Sentence no = CheckIdentity(state, hello)) return no;
  if (Sentence no = CheckSizes(hello)) return no;
  if (Sentence no = CheckAddresses(hello, attached.message.next_store_port())) return no;
  if (Sentence no = CheckSpec(state, hello)) return no;
  if (Sentence no = CheckKind(state, hello)) return no;
  if (Sentence no = CheckOpenPlaces(state, attached, now)) return no;
  return CheckPlace(state, hello);
}

}  // namespace

std::string NodesText(const v1::JobSpec& spec) {
  if (spec.min_nodes() == spec.max_nodes()) return fmt::format("{}", spec.min_nodes());
  return fmt::format("{}:{}", spec.min_nodes(), spec.max_nodes());
}

std::optional<std::string> SpecFault(const v1::JobSpec& spec) {
  if (Sentence no = NodesFault(spec)) return no;
  return ElasticFault(spec);
}

std::optional<v1::Refused> Refusal(const JobState& state, const AgentAttached& attached, Instant now) {
  const Sentence sentence = CheckHello(state, attached, now);
  if (!sentence) return std::nullopt;
  v1::Refused refused;
  refused.set_sentence(*sentence);
  refused.set_other_job(!state.IsCalled(attached.hello().job_id()));
  return refused;
}

bool IsIpAddress(const std::string& text) {
  unsigned char bytes[16];
  return text.size() <= 64 && text.find('\0') == std::string::npos &&
         (inet_pton(AF_INET, text.c_str(), bytes) == 1 || inet_pton(AF_INET6, text.c_str(), bytes) == 1);
}

}  // namespace phalanx::master

// Which nodes are at fault, told by checks of pairs: group testing with pairs as the groups. Pure.
//
// A pair that passes proves both of its nodes good. One that fails accuses both, and their link. So pairs are first
// made of neighbours; whoever failed then meets nodes that are known to be good, another one each time:
// * who passes with one of them is good, and the link to whom it failed with before is bad, where that one is good,
// too;
// * who has failed with kWitnesses good nodes, or with all that there are, and passed with none is bad.
// A good node is never called bad because of a bad partner: accusers count once they are known to be good themselves.
// Exact where at most a quarter of the nodes and links is bad, and no good node has kWitnesses bad links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace phalanx::master {

// Good nodes that a node must have failed with. The first two tell a node from a link; a third forgives two bad links.
constexpr size_t kWitnesses = 3;
// Pairs among nodes of which none is known to be good: so often others are tried.
constexpr size_t kBlindParts = 3;
// A check ends behind so many parts, whatever is still unclear.
constexpr size_t kMaxParts = 24;

class Suspects {
 public:
  enum class Standing { kUnclear, kGood, kBad, kGone };
  using Pair = std::pair<size_t, size_t>;

  explicit Suspects(size_t nodes) : nodes_(nodes) {}

  // It has failed by itself, and is in no pair from now on.
  void Condemn(size_t node) { nodes_[node].standing = Standing::kBad; }
  // It is not there any more.
  void Forget(size_t node) { nodes_[node].standing = Standing::kGone; }

  // The pairs of the next part, no node twice and no pair again; empty: nothing more can be learnt. `cost_us`, by node:
  // the fastest good ones are asked first. `compare`: the slowest good ones meet the fastest, once.
  std::vector<Pair> Next(const std::vector<int64_t>& cost_us, bool compare);

  // What has come of one of them. Of a pair of which a node is gone nothing is noted.
  void Note(const Pair& pair, bool passed);

  Standing StandingOf(size_t node) const { return nodes_[node].standing; }
  // Between good nodes; the smaller first.
  std::vector<Pair> BadLinks() const;
  // With whom it has failed.
  const std::set<size_t>& FailedWith(size_t node) const { return nodes_[node].failed_with; }
  size_t parts() const { return parts_; }

 private:
  struct Node {
    Standing standing = Standing::kUnclear;
    std::set<size_t> met;
    std::set<size_t> failed_with;
  };

  std::vector<size_t> All(Standing standing) const;
  void PairNeighbours(const std::vector<size_t>& unclear, std::vector<Pair>& pairs) const;
  void PairWithGood(const std::vector<size_t>& unclear, std::vector<size_t>& good, std::vector<Pair>& pairs) const;
  void PairSlowWithFast(std::vector<size_t> good, std::vector<Pair>& pairs) const;
  void PairBlindly(const std::vector<size_t>& unclear, std::vector<Pair>& pairs) const;
  void Convict(size_t enough);

  std::vector<Node> nodes_;
  size_t parts_ = 0;
  size_t blind_ = 0;
  bool compared_ = false;
};

}  // namespace phalanx::master

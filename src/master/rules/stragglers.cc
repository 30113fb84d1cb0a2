#include "master/rules/stragglers.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

namespace phalanx::master {
namespace {

constexpr int64_t kTimesMean = 2;
constexpr int64_t kTimesDeviation = 6;
// Values of one node; no check of ours comes near.
constexpr size_t kMostMeasured = 256;

bool IsTime(const v1::CheckValue& value) { return value.unit() == "us" && value.better() == v1::CheckValue::LESS; }

// "3.1"
std::string Times(int64_t value, int64_t of) {
  const int64_t tenths = of > 0 ? (value * 10 + of / 2) / of : 0;
  return fmt::format("{}.{}", tenths / 10, tenths % 10);
}

std::string TimeText(int64_t us) { return us >= 10'000 ? fmt::format("{} ms", us / 1'000) : fmt::format("{} us", us); }

// Of what all have measured that have measured anything: sums of different things say nothing.
std::vector<Measured> InCommon(std::vector<Measured> nodes) {
  std::set<std::string> names;
  bool first = true;
  for (const Measured& node : nodes) {
    if (node.empty()) continue;
    if (std::exchange(first, false)) {
      for (const auto& [name, value] : node) names.insert(name);
    } else {
      std::erase_if(names, [&node](const std::string& name) { return !node.contains(name); });
    }
  }
  for (Measured& node : nodes) {
    std::erase_if(node, [&names](const auto& value) { return !names.contains(value.first); });
  }
  return nodes;
}

// The nodes have devices: one has copied to its own.
bool HaveDevices(const std::vector<Measured>& nodes) {
  return std::any_of(nodes.begin(), nodes.end(), [](const Measured& node) {
    const auto found = node.lower_bound("host_to_device");
    return found != node.end() && found->first.starts_with("host_to_device");
  });
}

// The name of what took longest.
std::string LongestOf(const Measured& node) {
  std::string longest;
  int64_t most = -1;
  for (const auto& [name, value] : node) {
    if (!IsTime(value) || value.value() <= most) continue;
    most = value.value();
    longest = name;
  }
  return longest;
}

std::vector<Slow> SlowByMean(const std::vector<Measured>& nodes, int64_t floor_us) {
  std::vector<int64_t> times;
  times.reserve(nodes.size());
  int64_t sum = 0;
  int64_t count = 0;
  for (const Measured& node : nodes) {
    times.push_back(CheckTimeUs(node));
    sum += times.back();
    count += times.back() > 0 ? 1 : 0;
  }
  std::vector<Slow> slow;
  for (size_t i = 0; i < times.size() && count > 1; ++i) {
    const int64_t mean = (sum - times[i]) / (count - 1);
    if (times[i] <= kTimesMean * mean || times[i] - mean < floor_us) continue;
    slow.push_back({i, fmt::format("{} x the mean of the others: {}, most of it {}", Times(times[i], mean),
                                   TimeText(times[i]), LongestOf(nodes[i]))});
  }
  return slow;
}

int64_t Median(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// How much worse than the median a value is; negative: it is better.
int64_t Lag(const v1::CheckValue& value, int64_t median) {
  return value.better() == v1::CheckValue::MORE ? median - value.value() : value.value() - median;
}

// Half as bad again: 1.5 times as long, or two thirds of the rate.
bool IsFar(const v1::CheckValue& value, int64_t median) {
  return value.better() == v1::CheckValue::MORE ? value.value() * 3 < median * 2 : value.value() * 2 > median * 3;
}

// What nodes have measured by one name.
using Column = std::vector<std::pair<size_t, const v1::CheckValue*>>;

void AddSlowIn(const std::string& name, const Column& column, int64_t floor_us, std::map<size_t, std::string>& slow) {
  if (column.size() < 3) return;  // of two nobody knows which is the odd one
  std::vector<int64_t> values;
  values.reserve(column.size());
  for (const auto& [node, value] : column) values.push_back(value->value());
  const int64_t median = Median(values);
  std::vector<int64_t> deviations;
  deviations.reserve(values.size());
  for (const int64_t value : values) deviations.push_back(value > median ? value - median : median - value);
  const int64_t deviation = Median(std::move(deviations));
  for (const auto& [node, value] : column) {
    if (!IsFar(*value, median)) continue;
    const int64_t lag = Lag(*value, median);
    if (lag <= kTimesDeviation * deviation) continue;
    if (value->unit() == "us" && lag < floor_us) continue;
    v1::CheckValue usual = *value;
    usual.set_value(median);
    slow.emplace(node, fmt::format("{} {}, others {}", name, ValueText(*value), ValueText(usual)));
  }
}

std::vector<Slow> SlowByDeviation(const std::vector<Measured>& nodes, int64_t floor_us) {
  std::map<std::string, Column> columns;
  for (size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& [name, value] : nodes[i]) columns[name].emplace_back(i, &value);
  }
  std::map<size_t, std::string> slow;
  for (const auto& [name, column] : columns) AddSlowIn(name, column, floor_us, slow);
  std::vector<Slow> found;
  found.reserve(slow.size());
  for (auto& [node, why] : slow) found.push_back({node, std::move(why)});
  return found;
}

}  // namespace

bool IsBetter(const v1::CheckValue& value, const v1::CheckValue& than) {
  return value.better() == v1::CheckValue::LESS ? value.value() < than.value() : value.value() > than.value();
}

std::string ValueText(const v1::CheckValue& value) {
  return value.unit() == "us" ? TimeText(value.value()) : fmt::format("{} {}", value.value(), value.unit());
}

void Merge(Measured& measured, const v1::CheckValue& value) {
  if (value.better() == v1::CheckValue::NEITHER) return;
  if (measured.size() >= kMostMeasured && !measured.contains(value.name())) return;
  const auto [known, is_new] = measured.emplace(value.name(), value);
  if (is_new || known->second.better() != value.better()) return;
  if (IsBetter(value, known->second)) known->second = value;
}

int64_t CheckTimeUs(const Measured& measured) {
  int64_t sum = 0;
  for (const auto& [name, value] : measured) {
    if (IsTime(value)) sum += value.value();
  }
  return sum;
}

std::string MeasuredText(const Measured& measured) {
  std::string text;
  for (const auto& [name, value] : measured) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, ValueText(value));
  }
  return text.empty() ? "nothing" : text;
}

std::vector<Slow> FindSlow(v1::CheckSpec::StragglerRule rule, const std::vector<Measured>& nodes) {
  const bool devices = HaveDevices(nodes);
  if (rule == v1::CheckSpec::MEDIAN_DEVIATION) {
    return SlowByDeviation(nodes, devices ? kSlowValueOfDevicesUs : kSlowFloorUs);
  }
  return SlowByMean(InCommon(nodes), devices ? kSlowFloorOfDevicesUs : kSlowFloorUs);
}

}  // namespace phalanx::master

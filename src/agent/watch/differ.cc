#include "agent/watch/differ.h"

#include <fmt/format.h>

#include <algorithm>

namespace phalanx::agent::watch {
namespace {

std::string On(const std::string& device) { return device.empty() ? "" : fmt::format(" on {}", device); }

Found FoundOf(const Sample& sample, const std::string& figure, int64_t unix_ms) {
  const Kind& kind = *sample.kind;
  Found found;
  found.what = fmt::format("{} ({}){}", kind.title, figure, On(sample.device));
  found.fact.set_kind(std::string(kind.kind));
  found.fact.set_device(sample.device);
  found.fact.set_sentence(fmt::format("{}{}: {}", kind.title, On(sample.device), figure));
  found.fact.set_source(sample.source);
  found.fact.set_unix_ms(unix_ms);
  found.fact.set_grave(kind.grave);
  return found;
}

// Whether so much is worth telling, which is noted.
bool Tells(Track& track, int64_t amount, int64_t limit) {
  const int64_t next = track.told == 0 ? limit : std::min(track.told, INT64_MAX / 2) * 2;
  if (amount < next) return false;
  track.told = amount;
  return true;
}

std::string SpanText(int64_t ms) {
  return ms < 120'000 ? fmt::format("{} s", std::max<int64_t>(1, ms / 1'000)) : fmt::format("{} min", ms / 60'000);
}

void OnGrowing(Track& track, const Sample& sample, Instant now, int64_t unix_ms, std::vector<Found>& all) {
  if (sample.value < track.last) {  // reset
    if (now - track.reset_at >= kWindowMs) track.told = 0;
    track.reset_at = now;
    track.base = sample.value;
    track.base_at = now;
    return;
  }
  const bool has_grown = sample.value > track.last;
  const int64_t growth = sample.value - track.base;
  const bool tells = has_grown && Tells(track, growth, sample.kind->limit);
  if (tells || (has_grown && sample.kind->grave)) {
    Found found = FoundOf(sample, fmt::format("{} more within {}", growth, SpanText(now - track.base_at)), unix_ms);
    found.since = track.last_at;
    found.at = found.until = now;
    found.told = tells;
    all.push_back(std::move(found));
  }
  if (track.told > 0 || now - track.base_at < kWindowMs) return;
  track.base = sample.value;
  track.base_at = now;
}

// A state that was told of is well again.
Found OverOf(const Sample& sample, const Track& track) {
  Found found;
  found.fact.set_kind(std::string(sample.kind->kind));
  found.fact.set_device(sample.device);
  found.fact.set_grave(sample.kind->grave);
  found.since = track.fell_since;
  found.at = track.fell_at;
  found.until = track.last_at;
  found.over = true;
  return found;
}

// `is_bad` for as many readings in a row as it takes.
void OnState(Track& track, const Sample& sample, bool is_bad, Instant now, int64_t unix_ms, std::vector<Found>& all) {
  const int64_t limit = sample.kind->rule == Rule::kFalls ? 1 : sample.kind->limit;
  if (!is_bad) {
    if (sample.kind->grave && track.in_row >= limit) all.push_back(OverOf(sample, track));
    track.was_well = true;
    track.in_row = 0;
    return;
  }
  if (!track.was_well) return;  // it has been so from the beginning
  if (track.in_row == 0) {
    track.fell_since = track.last_at;
    track.fell_at = now;
  }
  ++track.in_row;
  if (track.in_row < limit) return;
  const bool comes = track.in_row == limit;
  if (comes) ++track.times;
  const bool tells = comes && Tells(track, track.times, 1);
  if (!tells && !sample.kind->grave) return;
  const std::string times = track.times == 1 ? "it was not so before" : fmt::format("for the {}th time", track.times);
  Found found = FoundOf(sample, times, unix_ms);
  found.since = track.fell_since;
  found.at = track.fell_at;
  found.told = tells;
  found.until = now;
  found.stands = true;
  all.push_back(std::move(found));
}

}  // namespace

std::vector<Found> Compare(Differ& differ, const Readings& readings, Instant now, int64_t unix_ms) {
  std::vector<Found> all;
  for (const Sample& sample : readings) {
    std::pair<std::string, std::string> key(sample.kind->name, sample.device);
    auto at = differ.tracks.find(key);
    const bool is_first = at == differ.tracks.end();
    if (is_first && differ.tracks.size() >= kMaxTracks) continue;
    if (is_first) {
      at = differ.tracks.emplace(std::move(key), Track()).first;
      at->second.base = at->second.last = sample.value;
      at->second.base_at = at->second.last_at = now;
    }
    Track& track = at->second;
    switch (sample.kind->rule) {
      case Rule::kGrows:
        OnGrowing(track, sample, now, unix_ms, all);
        break;
      case Rule::kFalls:
        OnState(track, sample, sample.value == 0, now, unix_ms, all);
        break;
      case Rule::kRises:
        OnState(track, sample, sample.value != 0, now, unix_ms, all);
        break;
    }
    track.last = sample.value;
    track.last_at = now;
  }
  return all;
}

std::vector<Found> OnXid(Differ& differ, int64_t gpu, int64_t number, int64_t times, Instant now, int64_t unix_ms) {
  const std::string device = GpuName(gpu);
  std::pair<std::string, std::string> key(fmt::format("xid {}", number), device);
  if (differ.tracks.size() >= kMaxTracks && !differ.tracks.contains(key)) return {};
  Track& track = differ.tracks[std::move(key)];
  track.times = std::min(track.times, INT64_MAX / 2) + std::min(times, INT64_MAX / 2);
  const Xid& xid = XidOf(number);
  const std::string more = track.times == 1 ? "" : fmt::format(", {} times by now", track.times);
  Found found;
  found.what = fmt::format("XID {} ({}) on {}", number, xid.meaning, device);
  found.fact.set_kind("xid");
  found.fact.set_device(device);
  found.fact.set_sentence(fmt::format("XID {} on {}: {}{}", number, device, xid.meaning, more));
  found.fact.set_source("NVML");
  found.fact.set_unix_ms(unix_ms);
  found.fact.set_grave(xid.grave);
  found.since = found.at = found.until = now;
  found.told = Tells(track, track.times, 1);
  return {std::move(found)};
}

std::string GpuName(int64_t gpu) { return fmt::format("GPU {}", gpu); }

}  // namespace phalanx::agent::watch

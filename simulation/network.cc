#include "simulation/network.h"

#include <algorithm>
#include <utility>

namespace phalanx::simulation {
namespace {

// One packet in so many is lost, and sent again after this.
constexpr uint64_t kLostOneIn = 200;
constexpr Micros kSentAgainAfter = 200 * kMs;

size_t Index(Way way) { return way == Way::kUp ? 0 : 1; }

}  // namespace

Network::Network(EventQueue& queue, uint64_t seed, size_t machines) : queue_(queue), paths_(machines) {
  for (size_t i = 0; i < machines; ++i) paths_[i].random = Random(seed, 1'000 + i);
}

StreamId Network::Open(int machine) {
  streams_.emplace_back().machine = machine;
  return streams_.size();
}

void Network::Send(StreamId stream, Way way, Task&& deliver) {
  Pipe& pipe = PipeOf(stream, way);
  if (pipe.closed) return;
  const int machine = StreamOf(stream).machine;
  if (!Carries(machine, way)) return pipe.held.push_back(std::move(deliver));
  Fly(stream, way, std::move(deliver), Delay(machine));
}

void Network::Close(StreamId stream, Way way) { PipeOf(stream, way).closed = true; }

void Network::Break(StreamId stream, Way way, Task&& learn) {
  PipeOf(stream, way).closed = false;
  Send(stream, way, std::move(learn));
  Close(stream, way);
}

void Network::Lose(StreamId stream, Way way) {
  Pipe& pipe = PipeOf(stream, way);
  // Their arrivals are on the queue and find nothing.
  for (Task& task : pipe.flying) task = nullptr;
  pipe.held.clear();
}

size_t Network::Held(StreamId stream, Way way) const { return streams_[stream - 1].pipes[Index(way)].held.size(); }

void Network::SetDelay(int machine, Micros delay, Micros jitter) {
  Path& path = paths_[static_cast<size_t>(machine)];
  path.delay = delay;
  path.jitter = jitter;
}

void Network::Stall(int machine, Way way) { ++paths_[static_cast<size_t>(machine)].stalls[Index(way)]; }

void Network::Heal(int machine, Way way, Micros patience) {
  Path& path = paths_[static_cast<size_t>(machine)];
  if (--path.stalls[Index(way)] > 0) return;
  for (StreamId id = 1; id <= streams_.size(); ++id) {
    Stream& stream = StreamOf(id);
    if (stream.machine != machine) continue;
    const Micros again = patience > 0 ? static_cast<Micros>(path.random.Below(static_cast<uint64_t>(patience))) : 0;
    for (Task& task : std::exchange(stream.pipes[Index(way)].held, {})) {
      Fly(id, way, std::move(task), Delay(machine) + again);
    }
  }
}

bool Network::Carries(int machine, Way way) const {
  return paths_[static_cast<size_t>(machine)].stalls[Index(way)] == 0;
}

Micros Network::Delay(int machine) {
  Path& path = paths_[static_cast<size_t>(machine)];
  const Micros again = path.random.OneIn(kLostOneIn) ? kSentAgainAfter : 0;
  return path.delay + again + static_cast<Micros>(path.random.Below(static_cast<uint64_t>(path.jitter) + 1));
}

void Network::Fly(StreamId id, Way way, Task&& deliver, Micros delay) {
  Pipe& pipe = PipeOf(id, way);
  pipe.flying.push_back(std::move(deliver));
  pipe.last_arrival = std::max(pipe.last_arrival, queue_.now() + delay);
  queue_.At(pipe.last_arrival, [this, id, way] {
    Pipe& arrived = PipeOf(id, way);
    Task task = std::move(arrived.flying.front());
    arrived.flying.pop_front();
    if (task) task();
  });
}

Network::Pipe& Network::PipeOf(StreamId stream, Way way) { return StreamOf(stream).pipes[Index(way)]; }

}  // namespace phalanx::simulation

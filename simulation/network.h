// Streams between agents and the master. Within one stream and direction everything arrives in order, as with TCP;
// between streams nothing is in order. A lost packet shows as delay; a path that carries nothing holds what is sent
// until it heals.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <vector>

#include "simulation/event_queue.h"
#include "simulation/random.h"

namespace phalanx::simulation {

enum class Way { kUp, kDown };  // towards the master, from it

using StreamId = uint64_t;

class Network {
 public:
  Network(EventQueue& queue, uint64_t seed, size_t machines);

  // --- streams ---
  StreamId Open(int machine);
  // Delivers behind all that was sent before on this way. Nothing happens once this way is closed.
  void Send(StreamId stream, Way way, Task&& deliver);
  // What was sent is still delivered, nothing more is taken.
  void Close(StreamId stream, Way way);
  // The connection breaks: the end of this way learns of it behind all that still arrives, also on a closed one.
  void Break(StreamId stream, Way way, Task&& learn);
  // What is under way is lost.
  void Lose(StreamId stream, Way way);
  // Messages that wait for the path to carry again.
  size_t Held(StreamId stream, Way way) const;

  // --- paths: between a machine and the master's ---
  void SetDelay(int machine, Micros delay, Micros jitter);
  void Stall(int machine, Way way);
  // Ends one Stall; what was held arrives up to `patience` later, as the sender has waited longer and longer.
  void Heal(int machine, Way way, Micros patience);
  bool Carries(int machine, Way way) const;
  // How long one packet takes, sent again or not.
  Micros Delay(int machine);

 private:
  struct Path {
    Micros delay = 200;
    Micros jitter = 100;
    std::array<int, 2> stalls{};
    Random random{0};
  };
  struct Pipe {
    std::deque<Task> flying;
    std::deque<Task> held;
    Micros last_arrival = 0;
    bool closed = false;
  };
  struct Stream {
    int machine = 0;
    std::array<Pipe, 2> pipes;
  };

  void Fly(StreamId id, Way way, Task&& deliver, Micros delay);
  Stream& StreamOf(StreamId stream) { return streams_[stream - 1]; }
  Pipe& PipeOf(StreamId stream, Way way);

  EventQueue& queue_;
  std::vector<Path> paths_;
  std::deque<Stream> streams_;  // by id, from 1
};

}  // namespace phalanx::simulation

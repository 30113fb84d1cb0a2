// The inputs of agent_message_fuzzer, read and written: steps of one byte, what it is about (low bits: one of four
// streams; high bits: how), and where it is a message a second byte, its length, and the message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace phalanx::master {

constexpr uint64_t kFuzzedStreams = 4;

struct FuzzedStep {
  enum class Kind {
    kDetached,         // the agent's stream broke
    kPlatformGone,     // as the platform's
    kPlatformMessage,  // of the platform
    kTick,             // after a while
    kHello,            // well meant
    kAgentMessage,
    kNothing,  // an agent's message that the input ends before
  };
  Kind kind = Kind::kNothing;
  uint64_t session = 0;           // from 1
  int64_t after_ms = 0;           // of a Tick
  std::string_view message = {};  // of the platform or an agent
};

inline std::string_view TakeFuzzedMessage(std::string_view& bytes) {
  const auto length = std::min<size_t>(static_cast<uint8_t>(bytes.front()), bytes.size() - 1);
  const std::string_view message = bytes.substr(1, length);
  bytes.remove_prefix(1 + length);
  return message;
}

// Takes the next step off `bytes`, which are not empty.
inline FuzzedStep TakeFuzzedStep(std::string_view& bytes) {
  using Kind = FuzzedStep::Kind;
  const auto head = static_cast<uint8_t>(bytes.front());
  bytes.remove_prefix(1);
  const uint64_t session = 1 + head % kFuzzedStreams;
  switch (head >> 6) {
    case 0:
      if ((head & 0x20) == 0) return {Kind::kDetached, session};
      if (bytes.empty()) return {Kind::kPlatformGone, session};
      return {Kind::kPlatformMessage, session, 0, TakeFuzzedMessage(bytes)};
    case 1:
      return {Kind::kTick, session, 100 * (1 + (head >> 2 & 15))};
    case 2:
      return {Kind::kHello, session};
    default:
      if (bytes.empty()) return {Kind::kNothing, session};
      return {Kind::kAgentMessage, session, 0, TakeFuzzedMessage(bytes)};
  }
}

// The bytes of a step. A message is of 255 bytes at most.
inline std::string FuzzedStepBytes(const FuzzedStep& step) {
  using Kind = FuzzedStep::Kind;
  const auto of_stream = [&step](int how) {
    return std::string(1, static_cast<char>(how + static_cast<int>(step.session) - 1));
  };
  const std::string message = static_cast<char>(step.message.size()) + std::string(step.message);
  switch (step.kind) {
    case Kind::kDetached:
      return of_stream(0);
    case Kind::kPlatformGone:
      return of_stream(0x20);
    case Kind::kPlatformMessage:
      return of_stream(0x20) + message;
    case Kind::kTick:
      return of_stream(0x40 + 4 * static_cast<int>(step.after_ms / 100 - 1));
    case Kind::kHello:
      return of_stream(0x80);
    case Kind::kAgentMessage:
      return of_stream(0xC0) + message;
    case Kind::kNothing:
      return of_stream(0xC0);
  }
  return "";
}

}  // namespace phalanx::master

// Requests and replies as bytes, the way clients write and read them. For tests, fuzzers and benchmarks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "store/request.h"

namespace phalanx::store {

template <typename Number>
std::string Bytes(Number number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

inline std::string Blob(std::string_view bytes) { return Bytes<uint64_t>(bytes.size()).append(bytes); }

inline std::string Ask(Op op, std::string_view arguments = "") {
  return std::string(1, static_cast<char>(op)).append(arguments);
}

inline std::string AskKeys(Op op, const std::vector<std::string>& keys) {
  std::string bytes = Ask(op, Bytes<uint64_t>(keys.size()));
  for (const std::string& key : keys) bytes += Blob(key);
  return bytes;
}

inline std::string Hello() { return Ask(Op::kValidate, Bytes(kValidateMagic)); }
inline std::string Ping(uint32_t nonce) { return Ask(Op::kPing, Bytes(nonce)); }
inline std::string Set(std::string_view key, std::string_view value) { return Ask(Op::kSet, Blob(key) + Blob(value)); }
inline std::string Get(std::string_view key) { return Ask(Op::kGet, Blob(key)); }
inline std::string Add(std::string_view key, int64_t delta) { return Ask(Op::kAdd, Blob(key) + Bytes(delta)); }
inline std::string Check(const std::vector<std::string>& keys) { return AskKeys(Op::kCheck, keys); }
inline std::string Wait(const std::vector<std::string>& keys) { return AskKeys(Op::kWait, keys); }
inline std::string MultiGet(const std::vector<std::string>& keys) { return AskKeys(Op::kMultiGet, keys); }
inline std::string MultiSet(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::string bytes = Ask(Op::kMultiSet, Bytes<uint64_t>(pairs.size()));
  for (const auto& [key, value] : pairs) bytes += Blob(key) + Blob(value);
  return bytes;
}
inline std::string CompareSet(std::string_view key, std::string_view expected, std::string_view desired) {
  return Ask(Op::kCompareSet, Blob(key) + Blob(expected) + Blob(desired));
}
inline std::string Append(std::string_view key, std::string_view value) {
  return Ask(Op::kAppend, Blob(key) + Blob(value));
}
inline std::string DeleteKey(std::string_view key) { return Ask(Op::kDeleteKey, Blob(key)); }
inline std::string CancelWait() { return Ask(Op::kCancelWait); }
inline std::string NumKeys() { return Ask(Op::kGetNumKeys); }
inline std::string ListKeys() { return Ask(Op::kListKeys); }
inline std::string Push(std::string_view key, std::string_view item) {
  return Ask(Op::kQueuePush, Blob(key) + Blob(item));
}
inline std::string Pop(std::string_view key) { return Ask(Op::kQueuePop, Blob(key)); }
inline std::string QueueLen(std::string_view key) { return Ask(Op::kQueueLen, Blob(key)); }
inline std::string Barrier(std::string_view key, int64_t world_size) {
  return Ask(Op::kBarrier, Blob(key) + Bytes(world_size));
}

}  // namespace phalanx::store

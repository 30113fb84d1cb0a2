// Requests of the c10d store protocol, and the parser that makes them of bytes as they arrive.
// docs/formats/c10d-store.md has the layout. Pure: no I/O, no clock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::store {

enum class Op : uint8_t {
  kValidate = 0,
  kSet = 1,
  kCompareSet = 2,
  kGet = 3,
  kAdd = 4,
  kCheck = 5,
  kWait = 6,
  kGetNumKeys = 7,
  kDeleteKey = 8,
  kAppend = 9,
  kMultiGet = 10,
  kMultiSet = 11,
  kCancelWait = 12,
  kPing = 13,
  kQueuePush = 14,
  kQueuePop = 15,
  kQueueLen = 16,
  kListKeys = 17,
  kBarrier = 18,
};
constexpr int kOpCount = 19;

// The four bytes every client sends after its first opcode.
constexpr uint32_t kValidateMagic = 0x3C85F7CE;

struct RequestLimits {
  uint64_t max_key_bytes = 8192;                 // with slash and prefixes
  uint64_t max_payload_bytes = 8ull << 20;       // of one value
  uint64_t max_keys = 131072;                    // of one CHECK, WAIT, MULTI_GET or MULTI_SET
  uint64_t max_request_bytes = 256ull << 20;     // of one request, with kBlobOverhead for each key and value
  static constexpr uint64_t kBlobOverhead = 64;  // what a key or value costs beside its bytes
};

struct Request {
  Op op = Op::kValidate;
  std::vector<std::string> blobs;  // keys and values in the order of the wire
  int64_t number = 0;              // ADD: delta; BARRIER: world size
  uint32_t word = 0;               // VALIDATE: magic; PING: nonce
};

// Takes bytes in pieces of any size; looks at each once. Lengths and counts are checked when they have been read and
// before anything is allocated for them; memory grows with what has arrived, never with what was announced.
class RequestParser {
 public:
  enum class Result { kMore, kRequest, kViolation };

  // `limits` must outlive the parser.
  explicit RequestParser(const RequestLimits& limits) : limits_(limits) {}

  // Removes bytes from the front of `input`: all of them (kMore), or up to and with the last of one request (kRequest).
  // The request stays valid, and may be moved from, until the next call. After kViolation the parser is of no more use.
  Result Parse(std::string_view& input);

  Request& request() { return request_; }
  // Why, after kViolation. A literal.
  const char* violation() const { return violation_; }
  // What the request in progress (or just made) holds in memory.
  uint64_t held_bytes() const { return held_bytes_; }
  // True before the first byte of a request.
  bool idle() const { return state_ == State::kOpcode; }
  // Forgets the request that was made, with its memory.
  void Release();

 private:
  enum class State { kOpcode, kCount, kField, kLength, kBlob, kDone, kBroken };

  void TakeOpcode(std::string_view& input);
  void TakeCount(std::string_view& input);
  void StartField();
  void TakeNumber(std::string_view& input);
  void TakeLength(std::string_view& input);
  void TakeBlob(std::string_view& input);
  bool TakeScalar(std::string_view& input, size_t size);
  void Break(const char* why);

  const RequestLimits& limits_;
  Request request_;
  State state_ = State::kOpcode;
  std::string_view fields_;       // of one round, in letters (see request.cc)
  size_t field_ = 0;              // index into fields_
  uint64_t rounds_left_ = 0;      // how often fields_ still comes, the present round included
  uint64_t blob_bytes_ = 0;       // length of the blob being read
  std::array<char, 8> scalar_{};  // bytes of the number being read
  size_t scalar_have_ = 0;
  uint64_t scalar_value_ = 0;
  uint64_t held_bytes_ = 0;
  const char* violation_ = "";
};

}  // namespace phalanx::store

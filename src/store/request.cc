#include "store/request.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace phalanx::store {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and is copied as it is");

// Arguments of one opcode: 'k' a key, 'v' a value, 'i' an i64, 'w' a u32. `counted`: a u64 count comes first and the
// fields follow that many times.
struct Shape {
  bool counted;
  std::string_view fields;
};

constexpr std::array<Shape, kOpCount> kShapes = {{
    {false, "w"},    // VALIDATE
    {false, "kv"},   // SET
    {false, "kvv"},  // COMPARE_SET
    {false, "k"},    // GET
    {false, "ki"},   // ADD
    {true, "k"},     // CHECK
    {true, "k"},     // WAIT
    {false, ""},     // GETNUMKEYS
    {false, "k"},    // DELETE_KEY
    {false, "kv"},   // APPEND
    {true, "k"},     // MULTI_GET
    {true, "kv"},    // MULTI_SET
    {false, ""},     // CANCEL_WAIT
    {false, "w"},    // PING
    {false, "kv"},   // QUEUE_PUSH
    {false, "k"},    // QUEUE_POP
    {false, "k"},    // QUEUE_LEN
    {false, ""},     // LIST_KEYS
    {false, "ki"},   // BARRIER
}};

constexpr size_t kFirstBlobBytes = 64 << 10;  // taken at once for a blob of which less has arrived
constexpr size_t kKeptBlobs = 64;             // capacity of the blob list that is kept for the next request

// Makes room for `need` of `total` bytes so that the last growth is exact and none copies more than the bytes before.
void Grow(std::string& blob, size_t need, size_t total) {
  if (need <= blob.capacity()) return;
  size_t next = std::max({need, 2 * blob.capacity(), kFirstBlobBytes});
  if (total < 2 * next) next = total;
  blob.reserve(next);
}

}  // namespace

RequestParser::Result RequestParser::Parse(std::string_view& input) {
  if (state_ == State::kDone) Release();
  while (true) {
    switch (state_) {
      case State::kDone:
        return Result::kRequest;
      case State::kBroken:
        return Result::kViolation;
      default:
        if (input.empty()) return Result::kMore;
    }
    switch (state_) {
      case State::kOpcode:
        TakeOpcode(input);
        break;
      case State::kCount:
        TakeCount(input);
        break;
      case State::kField:
        TakeNumber(input);
        break;
      case State::kLength:
        TakeLength(input);
        break;
      default:
        TakeBlob(input);
    }
  }
}

void RequestParser::Release() {
  request_.blobs.clear();
  if (request_.blobs.capacity() > kKeptBlobs) request_.blobs.shrink_to_fit();
  held_bytes_ = 0;
  state_ = State::kOpcode;
}

void RequestParser::Break(const char* why) {
  violation_ = why;
  state_ = State::kBroken;
}

void RequestParser::TakeOpcode(std::string_view& input) {
  const auto opcode = static_cast<uint8_t>(input.front());
  if (opcode >= kOpCount) return Break("unknown opcode");
  input.remove_prefix(1);
  request_.op = static_cast<Op>(opcode);
  fields_ = kShapes[opcode].fields;
  field_ = 0;
  rounds_left_ = 1;
  if (kShapes[opcode].counted) {
    state_ = State::kCount;
  } else {
    StartField();
  }
}

void RequestParser::TakeCount(std::string_view& input) {
  if (!TakeScalar(input, 8)) return;
  if (scalar_value_ > limits_.max_keys) return Break("too many keys in one request");
  rounds_left_ = scalar_value_;
  StartField();
}

// Goes to the state that reads field_, or to the next round or the end behind the last.
void RequestParser::StartField() {
  if (field_ == fields_.size() && rounds_left_ > 0) {
    --rounds_left_;
    field_ = 0;
  }
  if (rounds_left_ == 0 || fields_.empty()) {
    state_ = State::kDone;
    return;
  }
  const char field = fields_[field_];
  state_ = field == 'k' || field == 'v' ? State::kLength : State::kField;
}

void RequestParser::TakeNumber(std::string_view& input) {
  const bool wide = fields_[field_] == 'i';
  if (!TakeScalar(input, wide ? 8 : 4)) return;
  if (wide) {
    request_.number = static_cast<int64_t>(scalar_value_);
  } else {
    request_.word = static_cast<uint32_t>(scalar_value_);
  }
  ++field_;
  StartField();
}

void RequestParser::TakeLength(std::string_view& input) {
  if (!TakeScalar(input, 8)) return;
  const bool is_key = fields_[field_] == 'k';
  if (is_key && scalar_value_ > limits_.max_key_bytes) return Break("key too long");
  if (!is_key && scalar_value_ > limits_.max_payload_bytes) return Break("value too long");
  held_bytes_ += RequestLimits::kBlobOverhead;
  if (held_bytes_ + scalar_value_ > limits_.max_request_bytes) return Break("request too long");
  blob_bytes_ = scalar_value_;
  request_.blobs.emplace_back();
  if (blob_bytes_ == 0) {
    ++field_;
    return StartField();
  }
  state_ = State::kBlob;
}

void RequestParser::TakeBlob(std::string_view& input) {
  std::string& blob = request_.blobs.back();
  const size_t take = std::min<size_t>(blob_bytes_ - blob.size(), input.size());
  Grow(blob, blob.size() + take, blob_bytes_);
  blob.append(input.data(), take);
  input.remove_prefix(take);
  held_bytes_ += take;
  if (blob.size() < blob_bytes_) return;
  ++field_;
  StartField();
}

// True when all `size` bytes are there: scalar_value_ is the number.
bool RequestParser::TakeScalar(std::string_view& input, size_t size) {
  const size_t take = std::min(size - scalar_have_, input.size());
  std::memcpy(scalar_.data() + scalar_have_, input.data(), take);
  input.remove_prefix(take);
  scalar_have_ += take;
  if (scalar_have_ < size) return false;
  scalar_have_ = 0;
  scalar_value_ = 0;
  std::memcpy(&scalar_value_, scalar_.data(), size);
  return true;
}

}  // namespace phalanx::store

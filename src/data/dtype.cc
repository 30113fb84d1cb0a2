#include "data/dtype.h"

#include <string>

#include "data/bytes.h"

namespace phalanx::data {

Result<Dtype> DtypeOfCode(uint64_t code) {
  switch (code) {
    case 1:
    case 2:
    case 3:
    case 4:
    case 5:
    case 8:
      return static_cast<Dtype>(code);
    case 6:
    case 7:
      return Error{"token type " + std::to_string(code) + " is floating point, which tokens are not"};
    default:
      return Error{"token type " + std::to_string(code) + " is unknown: 1 to 5 and 8 are known"};
  }
}

const char* NameOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
      return "uint8";
    case Dtype::kInt8:
      return "int8";
    case Dtype::kInt16:
      return "int16";
    case Dtype::kInt32:
      return "int32";
    case Dtype::kInt64:
      return "int64";
    case Dtype::kUint16:
      return "uint16";
  }
  return "";
}

int64_t LoadToken(Dtype dtype, const void* at) {
  switch (dtype) {
    case Dtype::kUint8:
      return Load<uint8_t>(at);
    case Dtype::kInt8:
      return Load<int8_t>(at);
    case Dtype::kInt16:
      return Load<int16_t>(at);
    case Dtype::kInt32:
      return Load<int32_t>(at);
    case Dtype::kInt64:
      return Load<int64_t>(at);
    case Dtype::kUint16:
      return Load<uint16_t>(at);
  }
  return 0;
}

}  // namespace phalanx::data

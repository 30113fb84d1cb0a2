// Types of tokens (docs/formats/indexed-dataset.md). Pure.
#pragma once

#include <cstdint>

#include "data/result.h"

namespace phalanx::data {

enum class Dtype : uint8_t { kUint8 = 1, kInt8 = 2, kInt16 = 3, kInt32 = 4, kInt64 = 5, kUint16 = 8 };

Result<Dtype> DtypeOfCode(uint64_t code);

constexpr uint64_t BytesOf(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
    case Dtype::kInt8:
      return 1;
    case Dtype::kInt16:
    case Dtype::kUint16:
      return 2;
    case Dtype::kInt32:
      return 4;
    case Dtype::kInt64:
      return 8;
  }
  return 0;
}

// As numpy calls it.
const char* NameOf(Dtype dtype);

// The token at `at`.
int64_t LoadToken(Dtype dtype, const void* at);

}  // namespace phalanx::data

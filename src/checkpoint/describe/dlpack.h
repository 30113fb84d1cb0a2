// What is used here of DLPack's C interface between Python libraries (dlpack.h of its version 1), by which torch of 2.9
// and newer tells what a tensor is in one call. Older ones are asked attribute by attribute.
#pragma once

#include <cstdint>

namespace phalanx::checkpoint {

constexpr int32_t kDlCpu = 1;

struct DlTensor {
  void* data;  // of the first element
  int32_t device_type, device_id;
  int32_t dimensions;
  uint8_t type_code, type_bits;
  uint16_t type_lanes;
  const int64_t *shape, *strides;  // the tensor's own: until it is changed
  uint64_t byte_offset;
};

struct DlExchange {
  uint32_t major, minor;
  const DlExchange* earlier;
  void *allocate, *managed_from_python, *managed_to_python;
  // 0, or -1 where Python knows the error. Null: there is none.
  int (*tensor_from_python)(void* object, DlTensor* tensor);
  void* current_work_stream;
};

}  // namespace phalanx::checkpoint

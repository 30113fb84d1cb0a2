// What a plain tensor is: strided, on the CPU or a CUDA device, with a data type that torch.save names by a storage
// class. With the GIL held.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/describe/dlpack.h"
#include "checkpoint/describe/python.h"

namespace phalanx::checkpoint {

// What Python gives, in this order: describing.py of the package has the same list. It lives longer than who uses it.
enum Tool {
  kTensorType,
  kParameterType,
  // Methods, which are called with a tensor, or a storage
  kUntypedStorage,
  kStride,
  kStorageOffset,
  kIsNeg,
  kGetDevice,
  kDataPtr,
  kNbytes,
  // Names of attributes of a tensor, the last three of a storage
  kDtypeName,
  kShapeName,
  kRequiresGradName,
  kIsCpuName,
  kIsCudaName,
  kDictName,
  kVersionName,
  kIdentityName,
  kNbytesName,
  kDataPtrName,
  // What stands in the pickle of each tensor
  kRebuildTensor,
  kStorageWord,
  kOrderedDict,
  kPlainTypes,  // ((dtype, class of its storage, bytes of an element, code and bits in DLPack), ...)
  kExchange,    // address of torch's DlExchange, or 0
  // Functions
  kReduce,    // of an object: (a Form, what belongs to that)
  kLocation,  // of a storage: (text, whether it is the same object for all there)
  kClash,     // raises the error of a storage, its data type, and another of the same memory
  kToolCount
};

struct PlainType {
  PyObject *dtype, *storage_class;
  uint64_t element_bytes;
  uint8_t code, bits;  // in DLPack
};

enum class TensorKind { kPlain, kOther, kFailed };  // of the last Python knows why

constexpr int32_t kDimensionsMax = 12;  // of a plain one

struct TensorFacts {
  const PlainType* type;
  Ref storage;
  uint64_t pointer, bytes;  // of the storage
  uint64_t data;            // of the first element, where it was exchanged
  uint64_t offset;
  int32_t dimensions;
  int64_t shape[kDimensionsMax], stride[kDimensionsMax];
  bool is_on_cpu, is_exchanged;
  bool is_whole;  // it takes all of its storage
};

PyObject* Call(PyObject* function, PyObject* object);
// A non-negative number that a call has given; false where it has failed.
bool TakeNumber(PyObject* taken, uint64_t* number);
bool TakeTruth(PyObject* taken, bool* truth);

class TensorReader {
 public:
  explicit TensorReader(PyObject* const* tools);

  // But for what is_neg() and the tensor's __dict__ say.
  TensorKind Read(PyObject* tensor, TensorFacts* facts) const;
  // Its version counter; 0 where it counts none. False: Python knows why.
  bool ReadVersion(PyObject* tensor, uint64_t* version) const;
  // kOther where Python says that the tensor is not one of that kind, else kFailed.
  static TensorKind Refused();

 private:
  bool Exchange(PyObject* tensor, TensorFacts* facts) const;
  TensorKind ReadAttributes(PyObject* tensor, TensorFacts* facts) const;
  TensorKind ReadPlace(PyObject* tensor, TensorFacts* facts) const;

  PyObject* const* tools_;
  decltype(DlExchange::tensor_from_python) exchange_ = nullptr;
  std::vector<PlainType> types_;
};

}  // namespace phalanx::checkpoint

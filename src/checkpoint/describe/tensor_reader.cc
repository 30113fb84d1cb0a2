#include "checkpoint/describe/tensor_reader.h"

#include <algorithm>

namespace phalanx::checkpoint {

PyObject* Call(PyObject* function, PyObject* object) {
  if (PyObject_CallOneArg != nullptr) return PyObject_CallOneArg(function, object);
  return PyObject_CallFunctionObjArgs(function, object, nullptr);
}

bool TakeNumber(PyObject* taken, uint64_t* number) {
  const Ref held(taken);
  if (!held) return false;
  *number = PyLong_AsUnsignedLongLong(held.get());
  return *number != UINT64_MAX || PyErr_Occurred() == nullptr;
}

bool TakeTruth(PyObject* taken, bool* truth) {
  const Ref held(taken);
  *truth = held.get() == &_Py_TrueStruct;
  return static_cast<bool>(held);
}

TensorReader::TensorReader(PyObject* const* tools) : tools_(tools) {
  for (ptrdiff_t i = 0; i < PyTuple_Size(tools[kPlainTypes]); ++i) {
    PyObject* each = PyTuple_GetItem(tools[kPlainTypes], i);
    const auto number = [each](ptrdiff_t at) { return PyLong_AsLongLong(PyTuple_GetItem(each, at)); };
    types_.push_back({PyTuple_GetItem(each, 0), PyTuple_GetItem(each, 1), static_cast<uint64_t>(number(2)),
                      static_cast<uint8_t>(number(3)), static_cast<uint8_t>(number(4))});
  }
  const auto* exchange = reinterpret_cast<const DlExchange*>(PyLong_AsUnsignedLongLong(tools[kExchange]));
  if (exchange != nullptr && exchange->major == 1) exchange_ = exchange->tensor_from_python;
}

TensorKind TensorReader::Refused() {
  if (PyErr_ExceptionMatches(PyExc_RuntimeError) == 0) return TensorKind::kFailed;
  PyErr_Clear();
  return TensorKind::kOther;
}

TensorKind TensorReader::Read(PyObject* tensor, TensorFacts* facts) const {
  facts->is_exchanged = Exchange(tensor, facts);
  const TensorKind kind = facts->is_exchanged ? TensorKind::kPlain : ReadAttributes(tensor, facts);
  if (kind != TensorKind::kPlain) return kind;
  facts->storage = Ref(Call(tools_[kUntypedStorage], tensor));
  if (!facts->storage) return Refused();  // it has none: it is a sparse or an opaque one
  if (!TakeNumber(Call(tools_[kNbytes], facts->storage.get()), &facts->bytes)) return TensorKind::kFailed;
  return ReadPlace(tensor, facts);
}

// One that was made for inference counts none, and Python says so.
bool TensorReader::ReadVersion(PyObject* tensor, uint64_t* version) const {
  *version = 0;
  if (TakeNumber(PyObject_GetAttr(tensor, tools_[kVersionName]), version)) return true;
  *version = 0;
  return Refused() == TensorKind::kOther;
}

// In one call, what ReadAttributes() asks for; false where that is left to it.
bool TensorReader::Exchange(PyObject* tensor, TensorFacts* facts) const {
  DlTensor found;
  if (exchange_ == nullptr) return false;
  if (exchange_(tensor, &found) != 0) {
    PyErr_Clear();
    return false;
  }
  if (found.device_type != kDlCpu || found.dimensions > kDimensionsMax || found.byte_offset != 0) return false;
  facts->type = nullptr;
  for (const PlainType& type : types_) {
    if (type.code == found.type_code && type.bits == found.type_bits && found.type_lanes == 1) facts->type = &type;
  }
  if (facts->type == nullptr) return false;
  facts->is_on_cpu = true;
  facts->data = reinterpret_cast<uint64_t>(found.data);
  facts->dimensions = found.dimensions;
  std::copy_n(found.shape, found.dimensions, facts->shape);
  std::copy_n(found.strides, found.dimensions, facts->stride);
  return true;
}

TensorKind TensorReader::ReadAttributes(PyObject* tensor, TensorFacts* facts) const {
  const Ref dtype(PyObject_GetAttr(tensor, tools_[kDtypeName]));
  if (!dtype) return Refused();
  facts->type = nullptr;
  for (const PlainType& type : types_) {
    if (type.dtype == dtype.get()) facts->type = &type;
  }
  if (facts->type == nullptr) return TensorKind::kOther;
  const Ref shape(PyObject_GetAttr(tensor, tools_[kShapeName]));
  if (!shape) return Refused();  // a nested one
  const Ref stride(Call(tools_[kStride], tensor));
  if (!stride || !TakeTruth(PyObject_GetAttr(tensor, tools_[kIsCpuName]), &facts->is_on_cpu)) return Refused();
  facts->dimensions = static_cast<int32_t>(PyTuple_Size(shape.get()));
  if (facts->dimensions > kDimensionsMax || PyTuple_Size(stride.get()) != facts->dimensions) return TensorKind::kOther;
  for (int32_t i = 0; i < facts->dimensions; ++i) {
    facts->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape.get(), i));
    facts->stride[i] = PyLong_AsLongLong(PyTuple_GetItem(stride.get(), i));
  }
  // A size may be one that a compiler has not seen.
  return PyErr_Occurred() == nullptr ? TensorKind::kPlain : TensorKind::kFailed;
}

// Where its storage begins, and where in that it does itself.
TensorKind TensorReader::ReadPlace(PyObject* tensor, TensorFacts* facts) const {
  int64_t elements = 1, reach = 1;
  for (int32_t i = 0; i < facts->dimensions; ++i) {
    elements *= facts->shape[i];
    reach += (facts->shape[i] - 1) * facts->stride[i];
  }
  if (elements > 0 && facts->bytes == 0) return TensorKind::kOther;  // its memory is not there; Python says why
  facts->is_whole =
      elements > 0 && reach == elements && static_cast<uint64_t>(elements) * facts->type->element_bytes == facts->bytes;
  facts->pointer = facts->data;
  facts->offset = 0;
  if (facts->is_exchanged && facts->is_whole) return TensorKind::kPlain;  // there is no room for an offset
  if (!TakeNumber(Call(tools_[kDataPtr], facts->storage.get()), &facts->pointer) ||
      !TakeNumber(Call(tools_[kStorageOffset], tensor), &facts->offset)) {
    return TensorKind::kFailed;
  }
  return TensorKind::kPlain;
}

}  // namespace phalanx::checkpoint

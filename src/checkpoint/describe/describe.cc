// libphalanx_describe.so: for Python, which loads it by ctypes.PyDLL and so calls it with the GIL held. Whatever Python
// the process has gives the functions that this needs.
#include <vector>

#include "checkpoint/describe/guards.h"
#include "checkpoint/describe/pickler.h"

namespace {

using phalanx::checkpoint::FindChanged;
using phalanx::checkpoint::FindGuards;
using phalanx::checkpoint::ImageParts;
using phalanx::checkpoint::Pickler;
using phalanx::checkpoint::Record;
using phalanx::checkpoint::Ref;
using phalanx::checkpoint::TupleOf;
using phalanx::checkpoint::VersionsOf;

// Takes them out of the records.
Ref TakeObjects(std::vector<Record>& records, Ref Record::*field) {
  const auto count = static_cast<ptrdiff_t>(records.size());
  Ref list(PyList_New(count));
  for (ptrdiff_t i = 0; list && i < count; ++i) {
    Ref& object = records[static_cast<size_t>(i)].*field;
    PyList_SetItem(list.get(), i, object ? object.Take() : Ref::Of(&_Py_NoneStruct).Take());
  }
  return list;
}

Ref NumbersOf(const std::vector<Record>& records, uint64_t Record::*field) {
  Ref bytes(PyBytes_FromStringAndSize(nullptr, static_cast<ptrdiff_t>(records.size() * sizeof(uint64_t))));
  if (!bytes) return bytes;
  auto* to = reinterpret_cast<uint64_t*>(PyBytes_AsString(bytes.get()));
  for (const Record& record : records) *to++ = record.*field;
  return bytes;
}

// Those of a tuple, borrowed.
class Tools {
 public:
  explicit Tools(PyObject* tuple) {
    for (ptrdiff_t i = 0; i < phalanx::checkpoint::kToolCount; ++i) {
      items_[i] = PyTuple_GetItem(tuple, i);
      if (items_[i] == nullptr) return;
    }
  }
  PyObject* const* items() const { return items_; }
  explicit operator bool() const { return items_[phalanx::checkpoint::kToolCount - 1] != nullptr; }

 private:
  PyObject* items_[phalanx::checkpoint::kToolCount] = {};
};

size_t TypeWord() {
  static const size_t word = phalanx::checkpoint::FindTypeWord();
  return word;
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) uint32_t phx_describe_abi_version() { return 1; }

// (pickle, [storage of each record], [a tensor that takes all of it, or None], their addresses, their sizes, the
// tensors' version counters): the last three are u64 in bytes. `tools`: a tuple, which tensor_reader.h describes.
// `pickle_bytes`, `records`: how much and how many there will be, about. Null: Python knows the error.
__attribute__((visibility("default"))) PyObject* phx_describe(PyObject* state, PyObject* tools, int depth_max,
                                                              uint64_t pickle_bytes, uint64_t records) {
  const Tools given(tools);
  if (!given) return nullptr;
  Pickler pickler(given.items(), TypeWord(), depth_max, records);
  if (!pickler.Dump(state, pickle_bytes)) return nullptr;
  Ref parts[] = {Ref(pickler.TakeBytes()),
                 TakeObjects(pickler.records(), &Record::storage),
                 TakeObjects(pickler.records(), &Record::tensor),
                 NumbersOf(pickler.records(), &Record::pointer),
                 NumbersOf(pickler.records(), &Record::bytes),
                 NumbersOf(pickler.records(), &Record::version)};
  return TupleOf(parts).Take();
}

// guards.h says what these do. `pointers`, `sizes`: u64, as many as there are storages.
__attribute__((visibility("default"))) PyObject* phx_describe_guards(PyObject* tools, PyObject* storages,
                                                                     PyObject* tensors, const uint64_t* pointers,
                                                                     const uint64_t* sizes, const uint64_t* versions,
                                                                     PyObject* written, PyObject* shared,
                                                                     uint64_t above, uint8_t* when) {
  const Tools given(tools);
  const ImageParts image = {storages, tensors, pointers, sizes, versions};
  return given ? FindGuards(given.items(), TypeWord(), image, written, shared, above, when).Take() : nullptr;
}

__attribute__((visibility("default"))) PyObject* phx_describe_versions(PyObject* tools, PyObject* tensors) {
  const Tools given(tools);
  return given ? VersionsOf(given.items(), tensors).Take() : nullptr;
}

__attribute__((visibility("default"))) PyObject* phx_describe_changed(PyObject* tools, PyObject* storages,
                                                                      const uint64_t* pointers, const uint64_t* sizes,
                                                                      PyObject* tensors, const uint64_t* records,
                                                                      const uint64_t* versions, uint64_t first,
                                                                      uint64_t end) {
  const Tools given(tools);
  const ImageParts image = {storages, nullptr, pointers, sizes, nullptr};
  if (!given) return nullptr;
  return FindChanged(given.items(), image, tensors, records, versions, static_cast<ptrdiff_t>(first),
                     static_cast<ptrdiff_t>(end))
      .Take();
}

}  // extern "C"

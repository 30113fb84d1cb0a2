// libphalanx_describe.so: for Python, which loads it by ctypes.PyDLL and so calls it with the GIL held. Whatever Python
// the process has gives the functions that this needs.
#include <vector>

#include "checkpoint/describe/pickler.h"

namespace {

using phalanx::checkpoint::Pickler;
using phalanx::checkpoint::Record;
using phalanx::checkpoint::Ref;

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

}  // namespace

extern "C" {

__attribute__((visibility("default"))) uint32_t phx_describe_abi_version() { return 1; }

// (pickle, [storage of each record], [a tensor that takes all of it, or None], their addresses, their sizes): the last
// two are u64 in bytes. `tools`: a tuple, which pickler.h describes. `pickle_bytes`, `records`: how much and how many
// there will be, about. Null: Python knows the error.
__attribute__((visibility("default"))) PyObject* phx_describe(PyObject* state, PyObject* tools, int depth_max,
                                                              uint64_t pickle_bytes, uint64_t records) {
  static const size_t type_word = phalanx::checkpoint::FindTypeWord();
  PyObject* items[phalanx::checkpoint::kToolCount];
  for (ptrdiff_t i = 0; i < phalanx::checkpoint::kToolCount; ++i) {
    items[i] = PyTuple_GetItem(tools, i);
    if (items[i] == nullptr) return nullptr;
  }
  Pickler pickler(items, type_word, depth_max, records);
  if (!pickler.Dump(state, pickle_bytes)) return nullptr;
  Ref parts[] = {Ref(pickler.TakeBytes()), TakeObjects(pickler.records(), &Record::storage),
                 TakeObjects(pickler.records(), &Record::tensor), NumbersOf(pickler.records(), &Record::pointer),
                 NumbersOf(pickler.records(), &Record::bytes)};
  Ref answer(PyTuple_New(5));
  for (ptrdiff_t i = 0; answer && i < 5; ++i) {
    if (!parts[i]) return nullptr;
    PyTuple_SetItem(answer.get(), i, parts[i].Take());
  }
  return answer.Take();
}

}  // extern "C"

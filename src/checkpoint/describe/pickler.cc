#include "checkpoint/describe/pickler.h"

namespace phalanx::checkpoint {
namespace {

constexpr int kBatch = 1000;  // items between two marks

bool IsNone(const PyObject* object) { return object == &_Py_NoneStruct; }

bool Fail(PyObject* kind, const char* text) {
  PyErr_SetString(kind, text);
  return false;
}

}  // namespace

size_t FindTypeWord() {
  const Ref type(PyObject_Type(&_Py_NoneStruct));
  size_t word = 1;
  while (TypeOf(&_Py_NoneStruct, word) != type.get()) ++word;
  return word;
}

Pickler::Pickler(PyObject* const* tools, size_t type_word, int depth_max, size_t expected)
    : tools_(tools),
      reader_(tools),
      type_word_(type_word),
      depth_left_(depth_max),
      memo_(expected),
      by_storage_(expected) {
  records_.reserve(expected);
  rebuild_.object = tools[kRebuildTensor];
  storage_word_.object = tools[kStorageWord];
  ordered_dict_.object = tools[kOrderedDict];
}

Pickler::~Pickler() {
  memo_.ForEach([](const void* object) { Py_DecRef(static_cast<PyObject*>(const_cast<void*>(object))); });
  for (const Location& location : locations_) {
    if (location.text != nullptr) Py_DecRef(location.text);
  }
}

bool Pickler::Dump(PyObject* object, size_t room) {
  if (!bytes_.Begin(room)) return false;
  bytes_.PutNumber(kOpProtocol, 2, 1);
  if (!Save(object) || !CheckTypes() || !bytes_.Ensure()) return false;
  bytes_.Put(kOpStop);
  return true;
}

void Pickler::Remember(PyObject* object) {
  Py_IncRef(object);
  memo_.Add(object, memo_count_);
  PutAnonymous();
}

bool Pickler::Save(PyObject* object) {
  if (!bytes_.Ensure()) return false;
  if (Is(object, PyLong_Type)) return SaveLong(object);
  if (Is(object, PyFloat_Type)) return bytes_.PutFloat(PyFloat_AsDouble(object)), true;
  if (IsNone(object)) return bytes_.Put(kOpNone), true;
  if (Is(object, PyBool_Type)) return bytes_.Put(object == &_Py_TrueStruct ? kOpTrue : kOpFalse), true;
  if (TypeOf(object, type_word_) == tools_[kTensorType]) return SaveTensor(object);
  if (const uint32_t memo = memo_.Find(object); memo != AddressTable::kNone) return bytes_.PutGet(memo), true;
  if (Is(object, PyUnicode_Type)) return SaveText(object);
  return SaveNested(object);
}

// What has parts, and was not seen before.
bool Pickler::SaveNested(PyObject* object) {
  if (depth_left_ == 0) {
    return Fail(PyExc_RecursionError, "maximum recursion depth exceeded while pickling an object");
  }
  --depth_left_;
  const bool saved = SaveNew(object);
  ++depth_left_;
  return saved;
}

bool Pickler::SaveNew(PyObject* object) {
  const PyObject* type = TypeOf(object, type_word_);
  if (type == &PyDict_Type) return SaveDict(object);
  if (type == &PyTuple_Type) return SaveTuple(object);
  if (type == &PyList_Type) return SaveList(object);
  return SaveOther(object);
}

bool Pickler::SaveLong(PyObject* object) {
  int overflow = 0;
  const int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow != 0) return SaveOther(object);
  bytes_.PutInt(value);
  return true;
}

bool Pickler::SaveText(PyObject* text) {
  ptrdiff_t size = 0;
  Ref encoded;
  const char* data = PyUnicode_AsUTF8AndSize(text, &size);
  if (data == nullptr) {  // a lone surrogate
    PyErr_Clear();
    encoded = Ref(PyUnicode_AsEncodedString(text, "utf-8", "surrogatepass"));
    if (!encoded) return false;
    data = PyBytes_AsString(encoded.get());
    size = PyBytes_Size(encoded.get());
  }
  if (size > UINT32_MAX) return SaveOther(text);  // which says that there can be none
  bytes_.PutNumber(kOpBinUnicode, static_cast<uint64_t>(size), 4);
  if (!bytes_.Write(data, static_cast<size_t>(size))) return false;
  Remember(text);
  return true;
}

bool Pickler::SaveDict(PyObject* dict) {
  bytes_.Put(kOpEmptyDict);
  Remember(dict);
  const ptrdiff_t size = PyDict_Size(dict);
  if (size == 0) return true;
  ptrdiff_t position = 0;
  if (size > 1) bytes_.Put(kOpMark);
  for (int count = 0; SaveDictBatch(dict, size, &position, &count);) {
    if (!bytes_.Ensure()) return false;
    bytes_.Put(size > 1 ? kOpSetItems : kOpSetItem);
    if (count < kBatch || size == 1) return true;
    bytes_.Put(kOpMark);  // also where none follows, as CPython does
    count = 0;
  }
  return false;
}

bool Pickler::SaveDictBatch(PyObject* dict, ptrdiff_t size, ptrdiff_t* position, int* count) {
  PyObject *key = nullptr, *value = nullptr;
  while (*count < kBatch && PyDict_Next(dict, position, &key, &value) != 0) {
    // Another thread may take them out while Python is asked what they are.
    const Ref held_key = Ref::Of(key), held_value = Ref::Of(value);
    if (!Save(key) || !Save(value)) return false;
    if (PyDict_Size(dict) != size) return Fail(PyExc_RuntimeError, "dictionary changed size during iteration");
    ++*count;
  }
  return true;
}

bool Pickler::SaveList(PyObject* list) {
  bytes_.Put(kOpEmptyList);
  Remember(list);
  const bool is_one = PyList_Size(list) == 1;
  for (ptrdiff_t i = 0; i < PyList_Size(list);) {
    if (!is_one) bytes_.Put(kOpMark);
    for (int count = 0; count < (is_one ? 1 : kBatch) && i < PyList_Size(list); ++count, ++i) {
      const Ref item = Ref::Of(PyList_GetItem(list, i));
      if (!Save(item.get())) return false;
    }
    if (!bytes_.Ensure()) return false;
    bytes_.Put(is_one ? kOpAppend : kOpAppends);
    if (is_one) return true;
  }
  return true;
}

bool Pickler::SaveTuple(PyObject* tuple) {
  const ptrdiff_t size = PyTuple_Size(tuple);
  if (size == 0) return bytes_.Put(kOpEmptyTuple), true;
  const bool is_short = size <= 3;
  if (!is_short) bytes_.Put(kOpMark);
  for (ptrdiff_t i = 0; i < size; ++i) {
    if (!Save(PyTuple_GetItem(tuple, i))) return false;
  }
  if (!bytes_.Ensure()) return false;
  if (const uint32_t memo = memo_.Find(tuple); memo != AddressTable::kNone) {  // it holds itself, in a list say
    if (!is_short) bytes_.Put(kOpPopMark);
    for (ptrdiff_t i = 0; is_short && i < size; ++i) bytes_.Put(kOpPop);
    bytes_.PutGet(memo);
    return true;
  }
  bytes_.Put(is_short ? static_cast<uint8_t>(kOpTuple1 + size - 1) : static_cast<uint8_t>(kOpTuple));
  Remember(tuple);
  return true;
}

bool Pickler::SaveConstant(Constant& constant) {
  if (constant.memo != AddressTable::kNone) return bytes_.PutGet(constant.memo), true;
  if (!Save(constant.object)) return false;
  constant.memo = memo_.Find(constant.object);
  return bytes_.Ensure();
}

bool Pickler::SaveOther(PyObject* object) {
  const Ref answer(PyObject_CallFunctionObjArgs(tools_[kReduce], object, nullptr));
  if (!answer) return false;
  const auto form = static_cast<Form>(PyLong_AsLongLong(PyTuple_GetItem(answer.get(), 0)));
  PyObject* what = PyTuple_GetItem(answer.get(), 1);
  if (form == Form::kStorage) return SaveStorage(what);
  if (form == Form::kBare) return SaveBytes(what);
  if (form != Form::kPieces) return SaveReduced(object, what, form);
  if (!SavePieces(what)) return false;
  Remember(object);
  return true;
}

bool Pickler::SaveBytes(PyObject* bytes) {
  return bytes_.Write(PyBytes_AsString(bytes), static_cast<size_t>(PyBytes_Size(bytes)));
}

bool Pickler::SavePieces(PyObject* pieces) {
  for (ptrdiff_t i = 0; i < PyTuple_Size(pieces); ++i) {
    PyObject* piece = PyTuple_GetItem(pieces, i);
    if (!(Is(piece, PyBytes_Type) ? SaveBytes(piece) : Save(piece))) return false;
  }
  return bytes_.Ensure();
}

bool Pickler::SaveReduced(PyObject* object, PyObject* reduced, Form form) {
  PyObject* parts[6];
  for (ptrdiff_t i = 0; i < 6; ++i) parts[i] = PyTuple_GetItem(reduced, i);
  if (!Save(parts[0]) || !Save(parts[1]) || !bytes_.Ensure()) return false;
  bytes_.Put(form == Form::kNewObject ? kOpNewObject : kOpReduce);
  if (const uint32_t memo = memo_.Find(object); memo != AddressTable::kNone) {  // its arguments hold it
    bytes_.Put(kOpPop);
    bytes_.PutGet(memo);
  } else {
    Remember(object);
  }
  if (!IsNone(parts[3]) && !SaveListItems(parts[3])) return false;
  if (!IsNone(parts[4]) && !SaveDictItems(parts[4])) return false;
  return IsNone(parts[2]) || SaveState(object, parts[2], parts[5]);
}

bool Pickler::SaveListItems(PyObject* items) {
  for (;;) {
    const Ref first(PyIter_Next(items));
    if (!first) return PyErr_Occurred() == nullptr;
    Ref next(PyIter_Next(items));
    if (!next && PyErr_Occurred() != nullptr) return false;
    if (next) bytes_.Put(kOpMark);
    if (!Save(first.get())) return false;
    if (!next) return bytes_.Ensure() && (bytes_.Put(kOpAppend), true);
    int count = 1;
    while (next) {
      if (!Save(next.get())) return false;
      if (++count == kBatch) break;
      next = Ref(PyIter_Next(items));
      if (!next && PyErr_Occurred() != nullptr) return false;
    }
    if (!bytes_.Ensure()) return false;
    bytes_.Put(kOpAppends);
    if (count < kBatch) return true;
  }
}

bool Pickler::SavePair(PyObject* pair) {
  if (!Is(pair, PyTuple_Type) || PyTuple_Size(pair) != 2) {
    return Fail(PyExc_TypeError, "dict items iterator must return 2-tuples");
  }
  return Save(PyTuple_GetItem(pair, 0)) && Save(PyTuple_GetItem(pair, 1)) && bytes_.Ensure();
}

bool Pickler::SaveDictItems(PyObject* items) {
  for (;;) {
    const Ref first(PyIter_Next(items));
    if (!first) return PyErr_Occurred() == nullptr;
    Ref next(PyIter_Next(items));
    if (!next && PyErr_Occurred() != nullptr) return false;
    if (next) bytes_.Put(kOpMark);
    if (!SavePair(first.get())) return false;
    if (!next) return bytes_.Put(kOpSetItem), true;
    int count = 1;
    while (next) {
      if (!SavePair(next.get())) return false;
      if (++count == kBatch) break;
      next = Ref(PyIter_Next(items));
      if (!next && PyErr_Occurred() != nullptr) return false;
    }
    bytes_.Put(kOpSetItems);
    if (count < kBatch) return true;
  }
}

bool Pickler::SaveState(PyObject* object, PyObject* state, PyObject* setter) {
  if (IsNone(setter)) return Save(state) && bytes_.Ensure() && (bytes_.Put(kOpBuild), true);
  if (!Save(setter) || !Save(object) || !Save(state) || !bytes_.Ensure()) return false;
  bytes_.Put(kOpTuple2);
  bytes_.Put(kOpReduce);
  bytes_.Put(kOpPop);
  return true;
}

}  // namespace phalanx::checkpoint

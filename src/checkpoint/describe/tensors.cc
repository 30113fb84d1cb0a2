// The short way for plain tensors: strided, with a data type that torch.save names by a storage class.
#include "checkpoint/describe/pickler.h"

namespace phalanx::checkpoint {
namespace {

// To ask for its __dict__ makes one, for each tensor.
bool HasAttributes(PyObject* object, PyObject* dict_name, bool* has_attributes) {
  if (_PyObject_GetDictPtr != nullptr) {
    PyObject** place = _PyObject_GetDictPtr(object);
    if (place != nullptr) {
      *has_attributes = *place != nullptr && PyDict_Size(*place) != 0;
      return true;
    }
    if (PyErr_Occurred() != nullptr) return false;
  }
  const Ref attributes(PyObject_GetAttr(object, dict_name));
  *has_attributes = attributes && PyDict_Size(attributes.get()) != 0;
  return static_cast<bool>(attributes);
}

// Some Pythons have one object of each text of one character, also where str() makes it.
bool IsOneCharacter(uint32_t record) { return record < 10; }

const void* Address(const Record& record) { return reinterpret_cast<const void*>(record.pointer); }

size_t WriteDigits(uint32_t number, char* text) {
  char reversed[10];
  size_t length = 0;
  do reversed[length++] = static_cast<char>('0' + number % 10);
  while ((number /= 10) != 0);
  for (size_t i = 0; i < length; ++i) text[i] = reversed[length - 1 - i];
  return length;
}

}  // namespace

// The first that takes all of a storage is remembered with that, the others are with all other objects.
bool Pickler::SaveTensor(PyObject* tensor) {
  Facts facts;
  const TensorKind kind = LookAt(tensor, &facts);
  if (kind == TensorKind::kFailed) return false;
  uint32_t record = AddressTable::kNone;
  if (kind == TensorKind::kPlain) {
    record = RecordOf(facts.storage.get(), facts.type->dtype, facts.pointer, facts.bytes);
    if (record == AddressTable::kNone) return false;
    const Record& its = records_[record];
    if (its.tensor.get() == tensor && its.tensor_memo != AddressTable::kNone)
      return bytes_.PutGet(its.tensor_memo), true;
  }
  if (const uint32_t memo = memo_.Find(tensor); memo != AddressTable::kNone) return bytes_.PutGet(memo), true;
  return kind == TensorKind::kPlain ? SavePlain(tensor, facts, record) : SaveNested(tensor);
}

TensorKind Pickler::LookAt(PyObject* tensor, Facts* facts) {
  bool has_attributes = false, is_negative = false;
  if (!HasAttributes(tensor, tools_[kDictName], &has_attributes)) return TensorKind::kFailed;
  if (has_attributes) return TensorKind::kOther;
  if (!TakeTruth(Call(tools_[kIsNeg], tensor), &is_negative)) return TensorReader::Refused();
  if (is_negative) return TensorKind::kOther;
  const TensorKind kind = reader_.Read(tensor, facts);
  if (kind != TensorKind::kPlain) return kind;
  if (!TakeTruth(PyObject_GetAttr(tensor, tools_[kRequiresGradName]), &facts->requires_grad))
    return TensorKind::kFailed;
  return LookAtLocation(tensor, facts);
}

TensorKind Pickler::LookAtLocation(PyObject* tensor, Facts* facts) {
  size_t place = 0;
  if (!facts->is_on_cpu) {
    bool is_on_cuda = false;
    uint64_t device = 0;
    if (!TakeTruth(PyObject_GetAttr(tensor, tools_[kIsCudaName]), &is_on_cuda)) return TensorKind::kFailed;
    if (!is_on_cuda) return TensorKind::kOther;
    if (!TakeNumber(Call(tools_[kGetDevice], tensor), &device)) return TensorKind::kFailed;
    place = 1 + device;
  }
  if (place >= locations_.size()) locations_.resize(place + 1);
  facts->location = &locations_[place];
  if (facts->location->text != nullptr) return TensorKind::kPlain;
  const Ref answer(PyObject_CallFunctionObjArgs(tools_[kLocation], facts->storage.get(), nullptr));
  if (!answer) return TensorKind::kFailed;
  facts->location->text = Ref::Of(PyTuple_GetItem(answer.get(), 0)).Take();
  facts->location->is_shared = PyTuple_GetItem(answer.get(), 1) == &_Py_TrueStruct;
  return TensorKind::kPlain;
}

uint32_t Pickler::RecordOf(PyObject* storage, PyObject* dtype, uint64_t pointer, uint64_t bytes) {
  const uint32_t found = by_storage_.Find(storage);
  if (found == AddressTable::kNone) {
    const auto number = static_cast<uint32_t>(records_.size());
    by_storage_.Add(storage, number);
    records_.push_back({Ref::Of(storage), Ref(), dtype, pointer, bytes, 0, AddressTable::kNone, AddressTable::kNone});
    return number;
  }
  const Record& record = records_[found];
  if (pointer == 0 || record.dtype == dtype) return found;
  Clash(record, dtype);
  return AddressTable::kNone;
}

// As torch.save does: what it writes names one data type for each address. `dtype`: that which comes later.
bool Pickler::Clash(const Record& record, PyObject* dtype) {
  const Ref unused(PyObject_CallFunctionObjArgs(tools_[kClash], record.storage.get(), dtype, record.dtype, nullptr));
  return false;
}

// Storages of the same memory.
bool Pickler::CheckTypes() {
  AddressTable by_address(records_.size());
  for (size_t i = 0; i < records_.size(); ++i) {
    constexpr size_t kAhead = 16;
    if (i + kAhead < records_.size()) by_address.Prefetch(Address(records_[i + kAhead]));
    if (records_[i].pointer == 0) continue;
    const uint32_t first = by_address.Find(Address(records_[i]));
    if (first == AddressTable::kNone) {
      by_address.Add(Address(records_[i]), static_cast<uint32_t>(i));
    } else if (records_[first].dtype != records_[i].dtype) {
      return Clash(records_[first], records_[i].dtype);
    }
  }
  return true;
}

bool Pickler::SavePlain(PyObject* tensor, const Facts& facts, uint32_t record) {
  if (!SaveConstant(rebuild_)) return false;
  bytes_.Put(kOpMark);
  const PlainType& type = *facts.type;
  bytes_.Put(kOpMark);
  if (!SaveConstant(storage_word_) || !Save(type.storage_class) || !bytes_.Ensure() || !SaveKey(record) ||
      !SaveLocation(*facts.location) || !bytes_.Ensure()) {
    return false;
  }
  bytes_.PutInt(static_cast<int64_t>(facts.bytes / type.element_bytes));
  bytes_.Put(kOpTuple);
  PutAnonymous();
  bytes_.Put(kOpBinPersistentId);
  bytes_.PutInt(static_cast<int64_t>(facts.offset));
  SaveNumbers(facts.shape, facts.dimensions);
  SaveNumbers(facts.stride, facts.dimensions);
  bytes_.Put(facts.requires_grad ? kOpTrue : kOpFalse);
  if (!SaveConstant(ordered_dict_)) return false;  // of hooks: each tensor has its own
  bytes_.Put(kOpEmptyTuple);
  bytes_.Put(kOpReduce);
  PutAnonymous();
  bytes_.Put(kOpTuple);
  PutAnonymous();
  bytes_.Put(kOpReduce);
  if (Record& its = records_[record]; facts.is_whole && !its.tensor) {
    if (!reader_.ReadVersion(tensor, &its.version)) return false;
    its.tensor = Ref::Of(tensor);
    its.tensor_memo = memo_count_;
    PutAnonymous();
  } else {
    Remember(tensor);
  }
  return true;
}

// A tuple of ints that is made on the way: nothing else in the state is the same object.
void Pickler::SaveNumbers(const int64_t* numbers, int32_t count) {
  if (count == 0) return bytes_.Put(kOpEmptyTuple);
  if (count > 3) bytes_.Put(kOpMark);
  for (int32_t i = 0; i < count; ++i) bytes_.PutInt(numbers[i]);
  bytes_.Put(count > 3 ? static_cast<uint8_t>(kOpTuple) : static_cast<uint8_t>(kOpTuple1 + count - 1));
  PutAnonymous();
}

bool Pickler::SaveLocation(const Location& location) {
  if (location.is_shared) return Save(location.text);
  ptrdiff_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(location.text, &size);
  if (text == nullptr || !bytes_.Ensure(PickleBytes::kRoom + static_cast<size_t>(size))) return false;
  bytes_.PutShortText(text, static_cast<size_t>(size));
  PutAnonymous();
  return true;
}

// One text for all tensors in a storage.
bool Pickler::SaveKey(uint32_t record) {
  Record& its = records_[record];
  if (its.key_memo != AddressTable::kNone) return bytes_.PutGet(its.key_memo), true;
  char digits[10];
  const size_t length = WriteDigits(record, digits);
  if (!IsOneCharacter(record)) {
    its.key_memo = memo_count_;
    bytes_.PutShortText(digits, length);
    PutAnonymous();
    return true;
  }
  const Ref number(PyLong_FromUnsignedLongLong(record));
  const Ref text(number ? PyObject_Str(number.get()) : nullptr);
  if (!text || !Save(text.get())) return false;
  its.key_memo = memo_.Find(text.get());
  return bytes_.Ensure();
}

// That of an object which torch.save writes as one: (storage, data type, class, location, length).
bool Pickler::SaveStorage(PyObject* given) {
  PyObject* storage = PyTuple_GetItem(given, 0);
  uint64_t pointer = 0, bytes = 0;
  if (!TakeNumber(Call(tools_[kDataPtr], storage), &pointer) || !TakeNumber(Call(tools_[kNbytes], storage), &bytes)) {
    return false;
  }
  const uint32_t record = RecordOf(storage, PyTuple_GetItem(given, 1), pointer, bytes);
  if (record == AddressTable::kNone) return false;
  bytes_.Put(kOpMark);
  if (!SaveConstant(storage_word_) || !Save(PyTuple_GetItem(given, 2)) || !bytes_.Ensure() || !SaveKey(record) ||
      !Save(PyTuple_GetItem(given, 3)) || !Save(PyTuple_GetItem(given, 4)) || !bytes_.Ensure()) {
    return false;
  }
  bytes_.Put(kOpTuple);
  PutAnonymous();
  bytes_.Put(kOpBinPersistentId);
  return true;
}

}  // namespace phalanx::checkpoint

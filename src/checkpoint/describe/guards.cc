#include "checkpoint/describe/guards.h"

#include <algorithm>
#include <vector>

#include "checkpoint/describe/address_table.h"
#include "checkpoint/describe/tensor_reader.h"

namespace phalanx::checkpoint {
namespace {

// From objects of a list to their places in it; None has none.
AddressTable PlacesOf(PyObject* list) {
  const ptrdiff_t size = PyList_Size(list);
  AddressTable places(static_cast<size_t>(size));
  for (ptrdiff_t i = 0; i < size; ++i) {
    const PyObject* object = PyList_GetItem(list, i);
    if (object != &_Py_NoneStruct) places.Add(object, static_cast<uint32_t>(i));
  }
  return places;
}

Ref BytesOf(const std::vector<uint64_t>& numbers) {
  return Ref(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(numbers.data()),
                                       static_cast<ptrdiff_t>(numbers.size() * sizeof(uint64_t))));
}

class Guards {
 public:
  Guards(PyObject* const* tools, size_t type_word, const ImageParts& image, PyObject* shared, uint64_t above,
         uint8_t* when)
      : tools_(tools),
        type_word_(type_word),
        image_(image),
        shared_(shared),
        above_(above),
        when_(when),
        reader_(tools),
        by_tensor_(PlacesOf(image.tensors)),
        by_storage_(PlacesOf(image.storages)) {}

  [[nodiscard]] bool Find(PyObject* written) {
    const ptrdiff_t size = PyList_Size(written);
    records_.reserve(static_cast<size_t>(size));
    versions_.reserve(static_cast<size_t>(size));
    tensors_ = Ref(PyList_New(0));
    left_ = Ref(PyList_New(0));
    if (!tensors_ || !left_) return false;
    for (ptrdiff_t i = 0; i < size; ++i) {
      if (!Look(PyList_GetItem(written, i))) return false;
    }
    return true;
  }

  Ref Answer() {
    Ref parts[] = {BytesOf(records_), std::move(tensors_), BytesOf(versions_), std::move(left_)};
    return TupleOf(parts);
  }

 private:
  [[nodiscard]] bool Look(PyObject* tensor) {
    const PyObject* type = TypeOf(tensor, type_word_);
    if (type == tools_[kTensorType]) {
      if (const uint32_t record = by_tensor_.Find(tensor); record != AddressTable::kNone) {
        return Add(record, tensor, &image_.versions[record]);
      }
    } else if (type != tools_[kParameterType]) {
      return Leave(tensor);
    }
    TensorFacts facts;
    const TensorKind kind = reader_.Read(tensor, &facts);
    if (kind == TensorKind::kFailed) return false;
    if (kind == TensorKind::kOther) return Leave(tensor);
    const uint32_t record = by_storage_.Find(facts.storage.get());
    if (record == AddressTable::kNone) return true;  // it is not saved
    const bool is_whole = facts.is_whole && facts.bytes == image_.sizes[record];
    return is_whole && facts.pointer == image_.pointers[record] ? Add(record, tensor, nullptr) : Leave(tensor);
  }

  [[nodiscard]] bool Leave(PyObject* tensor) { return PyList_Append(left_.get(), tensor) == 0; }

  // `version`: null, where that is not known yet.
  [[nodiscard]] bool Add(uint32_t record, PyObject* tensor, const uint64_t* version) {
    if (image_.sizes[record] <= above_) return true;
    if (PySet_Size(shared_) != 0) {
      const Ref identity(PyObject_GetAttr(PyList_GetItem(image_.storages, record), tools_[kIdentityName]));
      const int is_shared = identity ? PySet_Contains(shared_, identity.get()) : -1;
      if (is_shared != 0) return is_shared > 0;
    }
    uint64_t read = version != nullptr ? *version : 0;
    if (version == nullptr && !reader_.ReadVersion(tensor, &read)) return false;
    when_[record] = 0;
    versions_.push_back(read);
    records_.push_back(record);
    return PyList_Append(tensors_.get(), tensor) == 0;
  }

  PyObject* const* tools_;
  const size_t type_word_;
  const ImageParts& image_;
  PyObject* shared_;
  const uint64_t above_;
  uint8_t* when_;
  const TensorReader reader_;
  const AddressTable by_tensor_, by_storage_;
  std::vector<uint64_t> records_, versions_;
  Ref tensors_, left_;
};

}  // namespace

Ref FindGuards(PyObject* const* tools, size_t type_word, const ImageParts& image, PyObject* written, PyObject* shared,
               uint64_t above, uint8_t* when) {
  Guards guards(tools, type_word, image, shared, above, when);
  return guards.Find(written) ? guards.Answer() : Ref();
}

Ref VersionsOf(PyObject* const* tools, PyObject* tensors) {
  const ptrdiff_t size = PyList_Size(tensors);
  const TensorReader reader(tools);
  std::vector<uint64_t> versions(static_cast<size_t>(size));
  for (ptrdiff_t i = 0; i < size; ++i) {
    if (!reader.ReadVersion(PyList_GetItem(tensors, i), &versions[static_cast<size_t>(i)])) return Ref();
  }
  return BytesOf(versions);
}

Ref FindChanged(PyObject* const* tools, const ImageParts& image, PyObject* tensors, const uint64_t* records,
                const uint64_t* versions, ptrdiff_t first, ptrdiff_t end) {
  const TensorReader reader(tools);
  for (ptrdiff_t i = first; i < end; ++i) {
    PyObject* storage = PyList_GetItem(image.storages, static_cast<ptrdiff_t>(records[i]));
    uint64_t bytes = 0, pointer = 0, version = 0;
    // It may be something that only looks as a storage does.
    if (!TakeNumber(PyObject_CallMethodObjArgs(storage, tools[kNbytesName], nullptr), &bytes) ||
        !TakeNumber(PyObject_CallMethodObjArgs(storage, tools[kDataPtrName], nullptr), &pointer)) {
      return Ref();
    }
    if (bytes != image.sizes[records[i]] || pointer != image.pointers[records[i]]) {
      return Ref(PyLong_FromLongLong(2 * i + 1));
    }
    if (!reader.ReadVersion(PyList_GetItem(tensors, i), &version)) return Ref();
    if (version != versions[i]) return Ref(PyLong_FromLongLong(2 * i));
  }
  return Ref(PyLong_FromLongLong(-1));
}

}  // namespace phalanx::checkpoint

// Writes a state as torch.save does, byte for byte, and gathers the memory of its storages: what C's pickle.Pickler of
// CPython and the persistent_id() of torch.save do together, with short ways for what large states are made of. Python
// is asked, by Tools, what all else reduces to.
//
// With the GIL held. Where a function returns false, Python knows the error.
#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/describe/address_table.h"
#include "checkpoint/describe/pickle_bytes.h"
#include "checkpoint/describe/python.h"
#include "checkpoint/describe/tensor_reader.h"

namespace phalanx::checkpoint {

// What an object reduces to.
enum class Form {
  kPieces = 0,     // bytes, which are written as they are, and objects
  kBare = 1,       // bytes; the object is not remembered
  kReduced = 2,    // callable, arguments, state, items of a list, items of a dict, what sets the state; None: nothing
  kNewObject = 3,  // the same; class, arguments of its __new__, ...
  kStorage = 4,    // storage, its data type, class, location, length in elements
};

// One storage.
struct Record {
  Ref storage;
  Ref tensor;       // the first plain one in it that takes all of it; or none
  PyObject* dtype;  // of the first tensor in it; Python's own for as long as it runs
  uint64_t pointer, bytes;
  uint64_t version;                // of the tensor
  uint32_t key_memo, tensor_memo;  // AddressTable::kNone: none yet
};

class Pickler {
 public:
  Pickler(PyObject* const* tools, size_t type_word, int depth_max, size_t expected);
  Pickler(const Pickler&) = delete;
  Pickler& operator=(const Pickler&) = delete;
  ~Pickler();

  [[nodiscard]] bool Dump(PyObject* object, size_t room);
  PyObject* TakeBytes() { return bytes_.Finish(); }
  std::vector<Record>& records() { return records_; }

 private:
  struct Location {
    PyObject* text = nullptr;  // owned
    bool is_shared = false;
  };
  // An object that stands in the pickle of each tensor.
  struct Constant {
    PyObject* object = nullptr;
    uint32_t memo = AddressTable::kNone;
  };
  struct Facts : TensorFacts {
    Location* location;
    bool requires_grad;
  };

  bool Is(const PyObject* object, const PyObject& type) const { return TypeOf(object, type_word_) == &type; }

  [[nodiscard]] bool Save(PyObject* object);
  [[nodiscard]] bool SaveNested(PyObject* object);
  [[nodiscard]] bool SaveNew(PyObject* object);
  [[nodiscard]] bool SaveLong(PyObject* object);
  [[nodiscard]] bool SaveText(PyObject* text);
  [[nodiscard]] bool SaveDict(PyObject* dict);
  [[nodiscard]] bool SaveDictBatch(PyObject* dict, ptrdiff_t size, ptrdiff_t* position, int* count);
  [[nodiscard]] bool SaveList(PyObject* list);
  [[nodiscard]] bool SaveTuple(PyObject* tuple);
  [[nodiscard]] bool SaveOther(PyObject* object);
  [[nodiscard]] bool SaveBytes(PyObject* bytes);
  [[nodiscard]] bool SavePieces(PyObject* pieces);
  [[nodiscard]] bool SaveReduced(PyObject* object, PyObject* reduced, Form form);
  [[nodiscard]] bool SaveListItems(PyObject* items);
  [[nodiscard]] bool SaveDictItems(PyObject* items);
  [[nodiscard]] bool SavePair(PyObject* pair);
  [[nodiscard]] bool SaveState(PyObject* object, PyObject* state, PyObject* setter);
  [[nodiscard]] bool SaveConstant(Constant& constant);

  [[nodiscard]] bool SaveTensor(PyObject* tensor);
  TensorKind LookAt(PyObject* tensor, Facts* facts);
  TensorKind LookAtLocation(PyObject* tensor, Facts* facts);
  [[nodiscard]] bool SavePlain(PyObject* tensor, const Facts& facts, uint32_t record);
  void SaveNumbers(const int64_t* numbers, int32_t count);
  [[nodiscard]] bool SaveStorage(PyObject* given);
  [[nodiscard]] bool SaveLocation(const Location& location);
  [[nodiscard]] bool SaveKey(uint32_t record);
  // The record's number; AddressTable::kNone where that is an error.
  uint32_t RecordOf(PyObject* storage, PyObject* dtype, uint64_t pointer, uint64_t bytes);
  [[nodiscard]] bool CheckTypes();
  bool Clash(const Record& record, PyObject* dtype);

  void Remember(PyObject* object);
  void PutAnonymous() { bytes_.PutPut(memo_count_++); }

  PyObject* const* tools_;
  TensorReader reader_;
  const size_t type_word_;
  int depth_left_;
  PickleBytes bytes_;
  AddressTable memo_;  // holds a reference of each: an address does not become another's
  uint32_t memo_count_ = 0;
  AddressTable by_storage_;  // numbers of records
  std::vector<Record> records_;
  std::vector<Location> locations_;  // of the CPU, and of devices behind that
  Constant rebuild_, storage_word_, ordered_dict_;
};

}  // namespace phalanx::checkpoint

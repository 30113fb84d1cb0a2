// What is used here of CPython's stable ABI, as the interpreter exports it since 3.8. It is declared, and not taken
// from CPython's headers: those look into objects, which differ without the GIL, and would be needed wherever this is
// built.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

struct PyObject;

extern "C" {  // NOLINTBEGIN(readability-identifier-naming, bugprone-reserved-identifier)
// Declared here and made by Python. NOLINTBEGIN(bugprone-dynamic-static-initializers)
extern PyObject PyBool_Type, PyBytes_Type, PyDict_Type, PyFloat_Type, PyList_Type, PyLong_Type, PyTuple_Type,
    PyUnicode_Type;
extern PyObject _Py_NoneStruct, _Py_TrueStruct;
extern PyObject *PyExc_RuntimeError, *PyExc_RecursionError, *PyExc_TypeError;
// NOLINTEND(bugprone-dynamic-static-initializers)

void Py_IncRef(PyObject* object);
void Py_DecRef(PyObject* object);
PyObject* PyObject_Type(PyObject* object);
PyObject* PyObject_Str(PyObject* object);
PyObject* PyObject_GetAttr(PyObject* object, PyObject* name);
PyObject* PyObject_CallFunctionObjArgs(PyObject* callable, ...);
PyObject* PyObject_CallMethodObjArgs(PyObject* object, PyObject* name, ...);
// Of 3.9 and newer, and quicker.
__attribute__((weak)) PyObject* PyObject_CallOneArg(PyObject* callable, PyObject* argument);
// Not of the stable ABI, but of all Pythons from 3.8 to 3.14: where an object keeps its __dict__, if it has made one.
__attribute__((weak)) PyObject** _PyObject_GetDictPtr(PyObject* object);
PyObject* PyIter_Next(PyObject* iterator);

ptrdiff_t PyDict_Size(PyObject* dict);
int PyDict_Next(PyObject* dict, ptrdiff_t* position, PyObject** key, PyObject** value);
ptrdiff_t PyList_Size(PyObject* list);
PyObject* PyList_New(ptrdiff_t size);
PyObject* PyList_GetItem(PyObject* list, ptrdiff_t index);            // borrowed
int PyList_SetItem(PyObject* list, ptrdiff_t index, PyObject* item);  // takes the item
int PyList_Append(PyObject* list, PyObject* item);
ptrdiff_t PySet_Size(PyObject* set);
int PySet_Contains(PyObject* set, PyObject* item);
ptrdiff_t PyTuple_Size(PyObject* tuple);
PyObject* PyTuple_New(ptrdiff_t size);
PyObject* PyTuple_GetItem(PyObject* tuple, ptrdiff_t index);            // borrowed
int PyTuple_SetItem(PyObject* tuple, ptrdiff_t index, PyObject* item);  // takes the item
long long PyLong_AsLongLong(PyObject* number);
unsigned long long PyLong_AsUnsignedLongLong(PyObject* number);
long long PyLong_AsLongLongAndOverflow(PyObject* number, int* overflow);
PyObject* PyLong_FromLongLong(long long number);
PyObject* PyLong_FromUnsignedLongLong(unsigned long long number);
double PyFloat_AsDouble(PyObject* number);
PyObject* PyUnicode_AsEncodedString(PyObject* text, const char* encoding, const char* errors);
const char* PyUnicode_AsUTF8AndSize(PyObject* text, ptrdiff_t* bytes);
PyObject* PyBytes_FromStringAndSize(const char* data, ptrdiff_t bytes);
char* PyBytes_AsString(PyObject* bytes);
ptrdiff_t PyBytes_Size(PyObject* bytes);
int _PyBytes_Resize(PyObject** bytes, ptrdiff_t size);

PyObject* PyErr_Occurred();  // borrowed
int PyErr_ExceptionMatches(PyObject* kind);
void PyErr_Clear();
void PyErr_SetString(PyObject* kind, const char* text);
}  // NOLINTEND(readability-identifier-naming, bugprone-reserved-identifier)

namespace phalanx::checkpoint {

// A reference that is given back. Empty where a call has failed: Python knows why.
class Ref {
 public:
  Ref() = default;
  explicit Ref(PyObject* taken) : object_(taken) {}
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  Ref(Ref&& other) noexcept : object_(other.Take()) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() {
    if (object_ != nullptr) Py_DecRef(object_);
  }
  static Ref Of(PyObject* borrowed) {
    Py_IncRef(borrowed);
    return Ref(borrowed);
  }

  PyObject* get() const { return object_; }
  explicit operator bool() const { return object_ != nullptr; }
  PyObject* Take() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_ = nullptr;
};

// Of them, which are taken; empty where one is.
template <size_t kCount>
Ref TupleOf(Ref (&parts)[kCount]) {
  Ref tuple(PyTuple_New(kCount));
  for (size_t i = 0; tuple && i < kCount; ++i) {
    if (!parts[i]) return Ref();
    PyTuple_SetItem(tuple.get(), static_cast<ptrdiff_t>(i), parts[i].Take());
  }
  return tuple;
}

// Which of an object's words is its type: the second, but for Pythons without the GIL.
size_t FindTypeWord();

inline PyObject* TypeOf(const PyObject* object, size_t type_word) {
  return reinterpret_cast<PyObject* const*>(object)[type_word];
}

}  // namespace phalanx::checkpoint

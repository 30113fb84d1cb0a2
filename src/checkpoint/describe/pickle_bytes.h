// A pickle of protocol 2 as it is written: opcodes into a bytes object of Python's, which grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "checkpoint/describe/python.h"

namespace phalanx::checkpoint {

class PickleBytes {
 public:
  PickleBytes() = default;
  PickleBytes(const PickleBytes&) = delete;
  PickleBytes& operator=(const PickleBytes&) = delete;
  ~PickleBytes() {
    if (bytes_ != nullptr) Py_DecRef(bytes_);
  }

  // Begins it, with so much room. Nothing may be written where this fails.
  [[nodiscard]] bool Begin(size_t room);
  // The bytes object; null where there was no memory for it, or for an earlier byte.
  PyObject* Finish();

  // Short ones: kRoom bytes at most from one Ensure to the next.
  static constexpr size_t kRoom = 512;
  [[nodiscard]] bool Ensure(size_t room = kRoom) { return static_cast<size_t>(end_ - at_) >= room || Grow(room); }
  void Put(uint8_t opcode) { *at_++ = opcode; }
  void PutNumber(uint8_t opcode, uint64_t number, int bytes) {
    Put(opcode);
    std::memcpy(at_, &number, sizeof number);
    at_ += bytes;
  }
  void PutInt(int64_t value);  // as Python writes an int: up to 11 bytes
  void PutFloat(double value);
  void PutGet(uint32_t memo);
  void PutPut(uint32_t memo);
  void PutShortText(const char* text, size_t bytes);
  // Of any length.
  [[nodiscard]] bool Write(const void* data, size_t bytes);

 private:
  bool Grow(size_t room);

  PyObject* bytes_ = nullptr;
  uint8_t *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;
};

enum Opcode : uint8_t {
  kOpMark = '(',
  kOpStop = '.',
  kOpPop = '0',
  kOpPopMark = '1',
  kOpNone = 'N',
  kOpTrue = 0x88,
  kOpFalse = 0x89,
  kOpBinInt = 'J',
  kOpBinInt1 = 'K',
  kOpBinInt2 = 'M',
  kOpLong1 = 0x8a,
  kOpBinFloat = 'G',
  kOpBinUnicode = 'X',
  kOpEmptyDict = '}',
  kOpSetItem = 's',
  kOpSetItems = 'u',
  kOpEmptyList = ']',
  kOpAppend = 'a',
  kOpAppends = 'e',
  kOpEmptyTuple = ')',
  kOpTuple = 't',
  kOpTuple1 = 0x85,  // and those of two and three behind it
  kOpTuple2 = 0x86,
  kOpReduce = 'R',
  kOpNewObject = 0x81,
  kOpBuild = 'b',
  kOpBinPersistentId = 'Q',
  kOpBinGet = 'h',
  kOpLongBinGet = 'j',
  kOpBinPut = 'q',
  kOpLongBinPut = 'r',
  kOpProtocol = 0x80,
};

}  // namespace phalanx::checkpoint

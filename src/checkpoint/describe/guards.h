// Which records of an image optimizers alone write, and whether something else has: what copying/overlap.py decides
// tensor by tensor, for many at once. With the GIL held; where a Ref is empty, Python knows the error.
#pragma once

#include <cstdint>

#include "checkpoint/describe/python.h"

namespace phalanx::checkpoint {

// Of an image; all lists are of one length.
struct ImageParts {
  PyObject* storages;
  PyObject* tensors;  // one that takes all of each storage, or None
  const uint64_t *pointers, *sizes;
  const uint64_t* versions;  // of those tensors
};

// (numbers of records, [tensor], their version counters, [tensor that is left]), the first three one by one, numbers as
// u64 in bytes: each tensor is of `written`, a list, and takes all of the storage of its record, which is larger than
// `above` bytes and none of `shared`, a set of their identities. What is left is of another kind, or takes a part of a
// record. `when`, a byte for each record, becomes 0 for those.
Ref FindGuards(PyObject* const* tools, size_t type_word, const ImageParts& image, PyObject* written, PyObject* shared,
               uint64_t above, uint8_t* when);

// The version counters of a list of tensors, as u64 in bytes; 0 for those that count none.
Ref VersionsOf(PyObject* const* tools, PyObject* tensors);

// Looks at tensors[first], and so on up to `end`, of which the record has the number records[first]. An int: -1, or
// twice the position of the first that has changed, and one more where its memory was moved.
Ref FindChanged(PyObject* const* tools, const ImageParts& image, PyObject* tensors, const uint64_t* records,
                const uint64_t* versions, ptrdiff_t first, ptrdiff_t end);

}  // namespace phalanx::checkpoint

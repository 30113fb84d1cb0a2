// What a worker's exception was, for people who read one line. Pure.
#pragma once

#include <string>
#include <string_view>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

constexpr size_t kMaxExceptionBytes = 200;

// "ValueError: bad sample in shard 17": the first line of the exception that Python wrote last among `words`, which are
// a worker's stderr, whatever stands behind it and with or without torch's "[rank1]: " before each line. Empty: none is
// there. At most kMaxExceptionBytes, printable ASCII and what is not ASCII.
std::string LastException(std::string_view words);

// Of a worker's end: from its error file, else from its last words. Empty: it was ended by a signal, or says nothing.
std::string LastException(const v1::WorkerExited& exit);

// "NameError: name 'x' is not defined, at train.py:12": that of an end that the same script comes to again, whoever
// tries it: an exception by which Python tells of a mistake in the program. Empty: another one (a network, a disk or a
// device may be well the next time), or it is not known where it was raised.
std::string LastingError(const v1::WorkerExited& exit);

}  // namespace phalanx::master
